"""Documents of the vault: records without their own table, kept as JSON under an authentication code.

A *kind* of document belongs to one part of the program: ``token``, ``approval``, ``command``,
``inventory``, ``recovery``.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from connmgr.durations import boot_time
from connmgr.errors import IntegrityError
from connmgr.secrets.vault_key import VaultKey
from connmgr.vault.database import Database
from connmgr.vault.principal_rows import check_key, has_code
from connmgr.vault.schema import Row, canonical, now
from connmgr.vault.schema import document as table

MAX_SEEN = 4000
"""Most documents, removed ones included, of which it is known when they end by a clock that nobody sets."""

_FORMAT = "document-1"
_COVERED = ("kind", "id", "key", "body", "created", "expires")
_BY_ID = sa.select(table).where(table.c.kind == sa.bindparam("kind"), table.c.id == sa.bindparam("id"))
_BY_KEY = sa.select(table).where(table.c.kind == sa.bindparam("kind"), table.c.key == sa.bindparam("key"))
_ALL = sa.select(table).where(table.c.kind == sa.bindparam("kind")).order_by(table.c.created, table.c.id)


@dataclass(frozen=True, kw_only=True)
class Document:
    """A stored document. Times are aware and in UTC."""

    key: str
    """A second key beside its ``id``, unique within its kind."""

    body: Mapping[str, Any]
    expires: datetime | None = None
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    created: datetime = field(default_factory=now)
    counts: Mapping[str, Any] = field(default_factory=dict)
    """Its counters. No code authenticates them, so no right may depend on them."""


class Documents:
    """The documents of one ``kind``; safe to use from several threads.

    Its methods raise :class:`IntegrityError` for a document that was changed outside of connmgr, and
    :class:`connmgr.errors.VaultUnavailable` when the database does not answer.
    """

    def __init__(self, database: Database, key: VaultKey, kind: str) -> None:
        self._database, self._key, self._kind = database, key, kind
        self._ends: dict[tuple[str, datetime], float] = {}
        """When documents expire by a clock that nobody sets, from when they were first asked about."""

    def now(self) -> datetime:
        """Return the time by which documents expire, by the clock of all daemons of the vault."""
        return self._database.now()

    def has_expired(self, id: str, expires: datetime) -> bool:
        """Whether the time of the document ``id`` is over.

        A clock that somebody sets back while the daemon runs makes no document last longer that was asked about before.
        """
        left, running = (expires - self.now()).total_seconds(), boot_time()
        # Not of one that has expired: the clock may be ahead just now, and be set right.
        ends = self._ends.setdefault((id, expires), running + left) if left > 0 else running
        if len(self._ends) > MAX_SEEN:
            for oldest in list(self._ends)[: MAX_SEEN // 2]:
                self._ends.pop(oldest, None)
        return running >= ends

    def add(self, added: Document, *, most: int | None = None) -> bool:
        """Store a document; return False, and store nothing, if its key is taken or there are ``most`` already."""

        def work(tx: sa.Connection) -> bool:
            if tx.execute(_BY_KEY, {"kind": self._kind, "key": added.key}).first() is not None:
                return False
            counted = sa.select(sa.func.count()).where(table.c.kind == self._kind)
            if most is not None and (tx.scalar(counted) or 0) >= most:
                return False
            tx.execute(table.insert().values(self._row(added)))
            return True

        return self._database.write(work)

    def get(self, id: str) -> Document | None:
        """Return the document ``id``, or None."""
        return self._database.read(lambda tx: self._one(tx, _BY_ID, id=id))

    def by_key(self, key: str) -> Document | None:
        """Return the document with this key, or None."""
        return self._database.read(lambda tx: self._one(tx, _BY_KEY, key=key))

    def all(self) -> list[Document]:
        """Return all documents, oldest first."""
        return self._database.read(self.all_within)

    def all_within(self, tx: sa.Connection) -> list[Document]:
        """Return all documents, oldest first, within a transaction."""
        rows = tx.execute(_ALL, {"kind": self._kind}).mappings().all()
        return [self._document(None, row) for row in rows]

    def codes(self, ids: Iterable[str]) -> dict[str, bytes]:
        """Return the codes of the existing documents among ``ids``; a changed document has a different code."""
        query = sa.select(table.c.id, table.c.mac).where(table.c.kind == self._kind, table.c.id.in_(list(ids)))
        return {row.id: row.mac for row in self._database.read(lambda tx: tx.execute(query).all())}

    def change(self, id: str, change: Callable[[Document], Document | None]) -> Document | None:
        """Replace the document ``id`` by the result of ``change``, and return it; None removes it.

        Nothing happens without such a document. After a conflict ``change`` is called again. The former body, which
        may have secrets, is erased from the disk. Former counts are not: they have no secrets, and change often.
        """

        def work(tx: sa.Connection) -> tuple[Document | None, Document | None]:
            before = self._one(tx, _BY_ID.with_for_update(), id=id)
            after = None if before is None else change(before)
            of_this = (table.c.kind == self._kind, table.c.id == id)
            # `change` was called under the row lock of PostgreSQL, or as the only writer of SQLite: of two daemons that
            # count or use up the same document, the second one sees what the first has made of it.
            if before is not None and after is None:
                tx.execute(table.delete().where(*of_this))
            elif after is not None and after != before:
                tx.execute(table.update().where(*of_this).values(self._row(after)))
            return before, after

        return self._database.write(work, erases=_lost_body)[1]

    def change_within(self, tx: sa.Connection, key: str, change: Callable[[Document], Document]) -> None:
        """Replace the document with this key, if there is one, by the result of ``change``, within a larger change."""
        before = self._one(tx, _BY_KEY, key=key)
        if before is not None:
            of_this = (table.c.kind == self._kind, table.c.id == before.id)
            tx.execute(table.update().where(*of_this).values(self._row(change(before))))

    def remove(self, ids: Iterable[str]) -> None:
        """Remove documents, also from the disk; a missing document is not an error."""
        self._database.write(lambda tx: self.remove_within(tx, ids), erases=True)

    def remove_within(self, tx: sa.Connection, ids: Iterable[str]) -> None:
        """Remove documents within a larger change; a missing document is not an error."""
        tx.execute(table.delete().where(table.c.kind == self._kind, table.c.id.in_(list(ids))))

    def _one(self, tx: sa.Connection, statement: sa.Select[Any], **by: str) -> Document | None:
        row = tx.execute(statement, {"kind": self._kind, **by}).mappings().one_or_none()
        return None if row is None else self._document(tx, row)

    def _row(self, document: Document) -> dict[str, Any]:
        row = {
            **vars(document),
            "kind": self._kind,
            "body": canonical(document.body),
            "counts": canonical(document.counts),
        }
        return row | {"mac": _mac(row, self._key)}

    def _document(self, tx: sa.Connection | None, row: Row) -> Document:
        if not _intact(row, self._key):
            if tx is not None:
                # Under a rotated key no row is authentic, though nobody tampered with them.
                check_key(tx, self._key)
            raise _changed(row)
        members = {name: row[name] for name in ("id", "key", "created", "expires")}
        return Document(**members, body=json.loads(row["body"]), counts=_counts(row["counts"]))


def _lost_body(before_and_after: tuple[Document | None, Document | None]) -> bool:
    """Whether a document has another body than before, or is gone."""
    before, after = before_and_after
    return before is not None and (after is None or after.body != before.body)


def authenticate(tx: sa.Connection, old: VaultKey, new: VaultKey) -> None:
    """Give every document its code under ``new``.

    :raises IntegrityError: one was changed outside of connmgr.
    """
    for row in tx.execute(sa.select(table)).mappings().all():
        if not _intact(row, old):
            raise _changed(row)
        of_this = (table.c.kind == row["kind"], table.c.id == row["id"])
        tx.execute(table.update().where(*of_this).values(mac=_mac(row, new)))


def faults(tx: sa.Connection, key: VaultKey) -> list[str]:
    """Return a message for each document that is not authentic."""
    return [_changed(row).message for row in tx.execute(sa.select(table)).mappings() if not _intact(row, key)]


def counted(document: Document, **counts: Any) -> Document:
    """Return ``document`` with other counts."""
    return replace(document, counts={**document.counts, **counts})


def _counts(text: object) -> Mapping[str, Any]:
    try:
        # Anybody who can write to the database can change counts: nonsense in them must not keep a token from being
        # read.
        counts = json.loads(text) if isinstance(text, str) else {}
    except ValueError:
        return {}
    return counts if isinstance(counts, dict) else {}


def _mac(row: Row, key: VaultKey) -> bytes:
    times = {name: row[name] and row[name].isoformat() for name in ("created", "expires")}
    covered = {**row, **times}
    return key.mac(canonical([_FORMAT, *(covered[name] for name in _COVERED)]).encode())


def _intact(row: Row, key: VaultKey) -> bool:
    return has_code(row, lambda: _mac(row, key))


def _changed(row: Row) -> IntegrityError:
    what = f"The {row['kind']} {row['id']}"
    return IntegrityError(f"{what} was changed outside of connmgr: remove it, or restore the vault from a backup.")
