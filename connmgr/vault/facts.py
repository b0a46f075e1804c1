"""Facts about the machines of connections, as they were gathered last: rows under an authentication code.

A row has what is gathered together, its *part*: ``system``, ``package``, or the first word of a plugin's facts. Facts
end with their connection, and as soon as it may lead to another machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from connmgr.contract.common import SYSTEM_FACTS
from connmgr.errors import IntegrityError
from connmgr.secrets.vault_key import VaultKey
from connmgr.vault import connection_rows
from connmgr.vault.database import Database
from connmgr.vault.principal_rows import check_key, has_code
from connmgr.vault.schema import Row, canonical, chunks, now
from connmgr.vault.schema import fact as table

_FORMAT = "fact-1"
_SYSTEM = "system"
PIECE_CHARACTERS = 4 << 20

Value = str | int


@dataclass(frozen=True)
class KnownFacts:
    """What was found on one machine, by the whole names of the facts, and when each part was gathered."""

    values: Mapping[str, Value]
    gathered: Mapping[str, datetime]


def part_of(name: str) -> str:
    """Return the part that has the fact ``name``."""
    first = name.partition(".")[0]
    return _SYSTEM if first in SYSTEM_FACTS else first


class StoredFacts:
    """The facts in the vault; safe to use from several threads.

    Its methods raise :class:`IntegrityError` for facts that were changed outside of connmgr, and
    :class:`connmgr.errors.VaultUnavailable` when the database does not answer.
    """

    def __init__(self, database: Database, key: VaultKey) -> None:
        self._database = database
        self._key = key

    def of(self, connections: Iterable[str]) -> dict[str, KnownFacts]:
        """Return the stored facts of ``connections``; a connection without any is left out."""

        def work(tx: sa.Connection) -> dict[str, KnownFacts]:
            facts: dict[str, KnownFacts] = {}
            for some in chunks(dict.fromkeys(connections)):
                for row in tx.execute(sa.select(table).where(table.c.connection.in_(some))).mappings():
                    before = facts.get(row["connection"], KnownFacts({}, {}))
                    facts[row["connection"]] = KnownFacts(
                        {**before.values, **self._verified(tx, row)}, {**before.gathered, row["part"]: row["gathered"]}
                    )
            return facts

        return self._database.read(work)

    def in_pieces(self, connections: Iterable[str]) -> Iterator[tuple[list[str], dict[str, KnownFacts]]]:
        """Yield ``connections`` in their order and some at a time, each time with their facts as :meth:`of` has them.

        The package lists of all machines would not fit into memory at once: those of one time have about
        :data:`PIECE_CHARACTERS`, or are one machine's.
        """
        for some in chunks(dict.fromkeys(connections)):
            sizes, piece, size = self._sizes(some), list[str](), 0
            for id in some:
                if piece and size + sizes.get(id, 0) > PIECE_CHARACTERS:
                    yield piece, self.of(piece)
                    piece, size = [], 0
                piece.append(id)
                size += sizes.get(id, 0)
            yield piece, self.of(piece)

    def _sizes(self, connections: list[str]) -> dict[str, int]:
        """Return how many characters the facts of each of ``connections`` have; no more than fit into one statement."""
        query = sa.select(table.c.connection, sa.func.sum(sa.func.length(table.c.body)).label("size"))
        query = query.where(table.c.connection.in_(connections)).group_by(table.c.connection)
        return {row.connection: int(row.size) for row in self._database.read(lambda tx: tx.execute(query).all())}

    def put(self, connection: str, basis: tuple[str, str], parts: Mapping[str, Mapping[str, Value]]) -> bool:
        """Replace ``parts`` of the facts of a connection; each has its facts by their whole names.

        ``basis`` are the data and the dependency digest with which the machine was reached. If the connection has
        others by now, or is gone, nothing is stored, and False is returned.
        """
        at = now()
        rows = []
        for part, values in parts.items():
            row = {"connection": connection, "part": part, "gathered": at, "body": canonical(values)}
            rows.append(row | {"mac": _mac(row, self._key)})

        def work(tx: sa.Connection) -> bool:
            # The connection may have been pointed at another machine while this one was asked.
            if connection_rows.basis(tx, connection) != basis:
                return False
            tx.execute(table.delete().where(table.c.connection == connection, table.c.part.in_(list(parts))))
            if rows:
                tx.execute(table.insert(), rows)
            return True

        return self._database.write(work)

    def _verified(self, tx: sa.Connection, row: Row) -> dict[str, Value]:
        try:
            return verified(row, self._key)
        except IntegrityError:
            # Under a rotated key no row is authentic, though nobody tampered with them.
            check_key(tx, self._key)
            raise


def verified(row: Row, key: VaultKey) -> dict[str, Value]:
    """Return the facts of a row.

    :raises IntegrityError: connmgr did not write it.
    """
    if not _intact(row, key):
        raise _changed(row)
    values: dict[str, Value] = json.loads(row["body"])
    return values


def faults(tx: sa.Connection, key: VaultKey) -> list[str]:
    """Return a message for each row that is not authentic."""
    return [_changed(row).message for row in tx.execute(sa.select(table)).mappings() if not _intact(row, key)]


def authenticate(tx: sa.Connection, old: VaultKey, new: VaultKey) -> None:
    """Give every row its code under ``new``; rows that were changed outside of connmgr stay refused."""
    for row in tx.execute(sa.select(table)).mappings().all():
        if _intact(row, old):
            this = (table.c.connection == row["connection"], table.c.part == row["part"])
            tx.execute(table.update().where(*this).values(mac=_mac(row, new)))


def _mac(row: Row, key: VaultKey) -> bytes:
    covered = [_FORMAT, row["connection"], row["part"], row["gathered"].isoformat()]
    # The body is JSON already, and long.
    return key.mac((canonical(covered) + row["body"]).encode())


def _intact(row: Row, key: VaultKey) -> bool:
    return has_code(row, lambda: _mac(row, key))


def _changed(row: Mapping[Any, Any]) -> IntegrityError:
    return IntegrityError(
        f"The facts about connection {row['connection']} were changed outside of connmgr: gather them again.",
        connection=row["connection"],
    )
