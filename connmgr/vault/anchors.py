"""Anchors of audit logs: how far each log has come, stored where an attacker on its files cannot change it."""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b

import sqlalchemy as sa

from connmgr.errors import IntegrityError
from connmgr.vault import principal_rows
from connmgr.vault.database import Database
from connmgr.vault.schema import canonical, meta

WRITE_SECONDS = 2.0
"""Longest wait of storing an anchor for other writers; the next anchor follows a second later."""

_PREFIX = "audit_trail:"
_MAC_BYTES = 32


@dataclass(frozen=True)
class Anchor:
    """The state of an audit log at one time."""

    log: str
    """The log's id. Stored as ``trail``, the name of this member in entries."""

    place: str
    """The name of the host, a colon, and the directory of the log's files."""

    first: int
    """The number of the oldest entry that must still be there."""

    seq: int
    """The number of the last entry that must be there; 0 for a log without entries."""

    hash: str
    """The hash of that entry's line, or of the log's beginning."""

    time: str
    """The time of this state, in UTC as ISO 8601."""

    machine: str = ""
    """Identifies the machine even if it is renamed; empty where the system has no such id, and in older anchors."""

    writer: str = ""
    """Drawn by each run of a daemon, so that a daemon notices another one that writes a copy of its log."""

    @property
    def host(self) -> str:
        """The name of the host at that time."""
        return self.place.partition(":")[0]

    @property
    def directory(self) -> str:
        """The directory of the log's files on that host."""
        return self.place.partition(":")[2]


class Anchors:
    """The anchors in the table ``meta``, each authenticated under ``key``; safe to use from several threads.

    Its methods raise :class:`connmgr.errors.VaultUnavailable` when the database does not answer.
    """

    def __init__(self, database: Database, key: bytes) -> None:
        self._database, self._key = database, key
        self.is_shared = database.is_shared
        """Whether daemons on other machines may use this vault, each with its own log."""

    def all(self) -> Mapping[str, Anchor]:
        """Return the anchors by their logs; raise IntegrityError if one was changed outside of connmgr."""
        rows = sa.select(meta).where(meta.c.name.startswith(_PREFIX, autoescape=True))
        values = self._database.read(lambda tx: tx.execute(rows).all())
        return {anchor.log: anchor for anchor in (self._read(row.name, row.value) for row in values)}

    def put(self, anchor: Anchor, *, takes_over: bool = False) -> Anchor | None:
        """Store the anchor of a log in place of its last one, and return None.

        If another ``writer`` stored the last one, nothing is stored and that one is returned, unless the caller
        ``takes_over``, as a starting daemon does.
        """
        members = asdict(anchor)
        text = canonical({"trail": members.pop("log"), **members}).encode()
        name, value = _PREFIX + anchor.log, self._mac(text) + text

        def replace(tx: sa.Connection) -> Anchor | None:
            # Two daemons that write copies of one log, such as after a clone of the machine, would otherwise take turns
            # here, and each would find its file beyond the other's anchor.
            if not takes_over:
                row = tx.execute(sa.select(meta).where(meta.c.name == name)).one_or_none()
                last = row and self._read(row.name, row.value)
                if last and last.writer != anchor.writer:
                    return last
            principal_rows.put_meta(tx, name, value)
            return None

        return self._database.write(replace, timeout=WRITE_SECONDS)

    def remove(self, log: str) -> None:
        """Remove the anchor of a log."""
        of_it = sa.delete(meta).where(meta.c.name == _PREFIX + log)
        self._database.write(lambda tx: tx.execute(of_it), timeout=WRITE_SECONDS)

    def _read(self, name: str, value: object) -> Anchor:
        code, text = (value[:_MAC_BYTES], value[_MAC_BYTES:]) if isinstance(value, bytes) else (b"", b"")
        if hmac.compare_digest(code, self._mac(text)):
            members = json.loads(text)
            anchor = Anchor(log=members.pop("trail"), **members)
            if name == _PREFIX + anchor.log:
                return anchor
        raise IntegrityError("An audit log's anchor in the vault was changed outside of connmgr.")

    def _mac(self, text: bytes) -> bytes:
        return blake2b(text, key=self._key, digest_size=_MAC_BYTES).digest()
