"""The vault's rows of jobs, by which every daemon of the vault finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from typing import Any

import sqlalchemy as sa

from connmgr.contract.job import ENDED as ENDED
from connmgr.contract.job import RUNNING as RUNNING
from connmgr.contract.job import STARTING as STARTING
from connmgr.contract.job import UNDER_WAY as UNDER_WAY
from connmgr.errors import JobLimit, KeyReused, UnknownJob
from connmgr.shares import of_tokens
from connmgr.vault import connection_rows
from connmgr.vault.database import Database
from connmgr.vault.names import ELEVATION_SEPARATOR, base_of, with_elevation
from connmgr.vault.schema import Row, canonical, chunks, now
from connmgr.vault.schema import job as table

# Built once, because building a statement costs more than running it.
_INSERT = table.insert()
_ONE = sa.select(table).where(table.c.id == sa.bindparam("id"))
_THERE = table.c.connection == sa.bindparam("connection")
_OF_TOKENS = table.c.token.is_not(None)
_OWN = table.c.token == sa.bindparam("token")
_COUNTS = sa.select(
    sa.func.count(sa.case((_THERE, 1))),
    sa.func.count(),
    *(sa.func.count(sa.case((which, 1))) for which in (_OF_TOKENS & _THERE, _OF_TOKENS, _OWN & _THERE, _OWN)),
).where(table.c.state.in_(UNDER_WAY))
# Built once: whoever listens for events has it asked every second.
_JOBS_UNDER_WAY = sa.select(table).where(table.c.state.in_(UNDER_WAY)).order_by(table.c.created, table.c.id)
_SET_STATE = (
    table.update()
    # The first recorded end counts: a later check may find less.
    .where(table.c.id == sa.bindparam("job"), table.c.state.in_(UNDER_WAY))
    .values(state=sa.bindparam("now"), exit_code=sa.bindparam("code"), ended=sa.bindparam("at"))
)


@dataclass(frozen=True, kw_only=True)
class StoredJob:
    """A job as it was requested, and its last seen state. Times are aware and in UTC, ``keep`` is in seconds."""

    id: str
    connection: str
    """The id of its connection, which may be elevated."""
    session: str | None
    name: str | None
    key: str | None
    command: str
    stdin_open: bool
    keep: int
    created: datetime
    state: str = STARTING
    exit_code: int | None = None
    ended: datetime | None = None
    token: str | None = None
    """The id of the token with which it was started; None for the owner's."""

    asked: bytes | None = field(default=None, repr=False)
    """What stands for all that the start with its ``key`` asked for (:meth:`StoredJobs.digest`)."""


@dataclass(frozen=True)
class JobFilter:
    """The jobs to find; None matches everything. ``connections`` and ``tokens`` are ids, times are aware.

    A connection's jobs include those of elevated connections over it.
    """

    connections: Sequence[str] | None = None
    states: Sequence[str] | None = None
    name: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    tokens: Sequence[str] | None = None


class StoredJobs:
    """The vault's jobs; safe to use from several threads.

    Rows have no authentication code, because they decide neither where a command runs nor where a secret goes.
    Its methods raise :class:`connmgr.errors.VaultUnavailable` when the database does not answer.
    """

    def __init__(self, database: Database, key: Callable[[], bytes]) -> None:
        self._database, self._key = database, key

    def require_room(
        self, connection: str, *, most_of_connection: int, most: int, token: str | None = None, starting: int = 0
    ) -> int:
        """Return how many more jobs may be started on a connection; raise :class:`JobLimit` if the number is 0.

        ``most`` limits the jobs under way in the whole vault. A ``token`` gets the error, too, if it or all tokens
        together have their share (:mod:`connmgr.shares`); ``starting`` further jobs, which may not be stored yet, count
        as theirs.
        """
        bound = {"connection": base_of(connection), "token": token}
        counted: tuple[int, ...] = tuple(self._database.read(lambda tx: tx.execute(_COUNTS, bound).one()))
        there, all, of_tokens_there, of_all_tokens, own_there, own = counted
        for under_way, limit, of in ((there, most_of_connection, "connection"), (all, most, "vault")):
            if under_way >= limit:
                raise JobLimit(f"{limit} jobs are under way on this {of}: wait for one to end, or kill one.")
        if token is not None:
            shares = (
                (own_there, of_tokens_there, most_of_connection, "connection"),
                (own, of_all_tokens, most, "vault"),
            )
            for mine, theirs, limit, of in shares:
                of_one, together = of_tokens(limit)
                if mine + starting >= of_one or theirs + starting >= together:
                    raise JobLimit(
                        f"A token may have {of_one} of the {limit} jobs under way on a {of}, and all tokens "
                        f"{together}: wait for one to end, or kill one."
                    )
        return min(most_of_connection - there, most - all)

    def add(self, job: StoredJob) -> StoredJob:
        """Store ``job``, or return the job of its connection that has the same key.

        :raises connmgr.errors.UnknownConnection: its connection was removed.
        :raises connmgr.errors.KeyReused: that one was asked for something else.
        """

        def work(tx: sa.Connection) -> StoredJob:
            row = _row(job)
            connection_rows.require(tx, [row["connection"]])
            if job.key is not None and (same_key := self._of_key(tx, job.connection, job.key)) is not None:
                _require_same(same_key, job)
                return same_key
            tx.execute(_INSERT, row)
            return job

        return self._database.write(work)

    def digest(self, asked: object) -> bytes:
        """Return what stands for JSON that a start ``asked`` for, which may have secrets."""
        return blake2b(canonical(asked).encode(), key=self._key(), digest_size=32).digest()

    def of_key(self, connection: str, key: str) -> StoredJob | None:
        """Return the job of ``connection`` that has ``key``, if there is one."""
        return self._database.read(lambda tx: self._of_key(tx, connection, key))

    def _of_key(self, tx: sa.Connection, connection: str, key: str) -> StoredJob | None:
        base, _, elevation = connection.partition(ELEVATION_SEPARATOR)
        of_key = (table.c.connection == base, table.c.elevation == elevation, table.c.key == key)
        row = tx.execute(sa.select(table).where(*of_key)).mappings().one_or_none()
        return None if row is None else _stored(row)

    def get(self, id: str) -> StoredJob:
        """Return the job ``id``, or raise :class:`UnknownJob`."""
        row = self._database.read(lambda tx: tx.execute(_ONE, {"id": id}).mappings().one_or_none())
        if row is None:
            raise UnknownJob(id)
        return _stored(row)

    def set_state(self, id: str, state: str, exit_code: int | None = None) -> bool:
        """Record a job's state, unless its end is recorded already; return whether it was recorded."""
        values = {"job": id, "now": state, "code": exit_code, "at": now() if state in ENDED else None}
        return self._database.write(lambda tx: tx.execute(_SET_STATE, values).rowcount > 0)

    def find(self, filter: JobFilter) -> list[StoredJob]:
        """Return the jobs that match ``filter``, oldest first."""
        columns: list[tuple[Any, Any]] = [
            (table.c.connection, filter.connections),
            (table.c.state, filter.states),
            (table.c.token, filter.tokens),
        ]
        conditions = [column.in_(values) for column, values in columns if values is not None]
        if filter.name is not None:
            conditions.append(table.c.name == filter.name)
        if filter.created_after is not None:
            conditions.append(table.c.created >= filter.created_after)
        if filter.created_before is not None:
            conditions.append(table.c.created <= filter.created_before)
        query = sa.select(table).where(*conditions).order_by(table.c.created, table.c.id)
        return [_stored(row) for row in self._database.read(lambda tx: tx.execute(query).mappings().all())]

    def under_way(self) -> list[StoredJob]:
        """Return the jobs that have not ended as far as is known, oldest first."""
        return [_stored(row) for row in self._database.read(lambda tx: tx.execute(_JOBS_UNDER_WAY).mappings().all())]

    def known(self, ids: Iterable[str]) -> set[str]:
        """Return the ids among ``ids`` that are jobs of the vault, of any connection."""

        def work(tx: sa.Connection) -> set[str]:
            return {id for some in chunks(ids) for id in tx.scalars(sa.select(table.c.id).where(table.c.id.in_(some)))}

        return self._database.read(work)

    def remove(self, id: str) -> None:
        """Remove a job, if it exists, and erase it from the disk, because its command may contain secrets."""
        self._database.write(lambda tx: tx.execute(table.delete().where(table.c.id == id)), erases=True)


def _require_same(former: StoredJob, job: StoredJob) -> None:
    if former.asked is None or job.asked is None:
        # A job of a run, whose keys nobody chooses; or one that an older version has stored.
        is_same = (former.command, former.session) == (job.command, job.session)
    else:
        is_same = former.asked == job.asked
    if not is_same:
        raise KeyReused(
            f"key: The job {former.id} was started with this key, for another command or with other options. Take "
            "another key, or send what was sent then.",
            job=former.id,
        )


def _row(job: StoredJob) -> dict[str, Any]:
    base, _, elevation = job.connection.partition(ELEVATION_SEPARATOR)
    return {**vars(job), "connection": base, "elevation": elevation}


def _stored(row: Row) -> StoredJob:
    members = {name: value for name, value in row.items() if name != "elevation"}
    return StoredJob(**{**members, "connection": with_elevation(row["connection"], row["elevation"])})
