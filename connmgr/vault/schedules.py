"""Schedules in the vault: what begins runs by itself, and at most once at each time, however many daemons look.

A firing is one transaction: it takes the schedule's row, if that still has the time in question, inserts the run, and
sets the next time. So a daemon may be killed anywhere, and of several daemons one fires.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Final

import sqlalchemy as sa

from connmgr.contract.run import ENDED
from connmgr.errors import AlreadyFired, IntegrityError, ScheduleExists, UnknownSchedule
from connmgr.secrets.sealing import Box
from connmgr.shares import refused, room
from connmgr.vault.database import Database
from connmgr.vault.runs import NewRun, StoredRuns, holder_of
from connmgr.vault.schema import RESTORED, Row, canonical, meta
from connmgr.vault.schema import run as runs
from connmgr.vault.schema import schedule as table

MAX_SCHEDULES = 1000

MAX_BYTES = 32 << 20
"""Most bytes of all schedules: what they run may have input, and all are read at a time."""

TOPIC = "schedules"
"""Announced to the daemons of a vault when one was added or changed."""

KEEP: Final = object()
"""The last error stays as it is."""

_GLANCE = sa.select(
    sa.select(sa.func.min(table.c.next_at)).where(table.c.paused.is_(None)).scalar_subquery(),
    sa.exists().where(runs.c.state.in_(ENDED), sa.not_(runs.c.told)),
)


@dataclass(frozen=True, kw_only=True)
class StoredSchedule:
    """A schedule as it was last read. Times are aware and in UTC.

    ``spec`` is JSON: the token that added it and those above that, its times, what runs, who is told.
    """

    id: str
    name: str
    spec: Mapping[str, Any] = field(repr=False)
    due: datetime | None
    next_at: datetime | None
    waits: bool = False
    paused: str | None = None
    last_run: str | None = None
    last_error: str | None = None
    skipped: int = 0

    @property
    def token(self) -> str | None:
        """The id of the token that added it; None for the owner."""
        token: str | None = self.spec["token"]
        return token


Sight = Callable[[StoredSchedule], bool]
"""Whether somebody sees a schedule: names are unique among those that one sees, and tell nobody of others."""


def everything(_one: StoredSchedule) -> bool:
    """The owner's sight."""
    return True


@dataclass(frozen=True)
class Turn:
    """A schedule's next time, and the same with jitter; both None if it has ended."""

    due: datetime | None
    next_at: datetime | None


class StoredSchedules:
    """The vault's schedules; safe to use from several threads, and by several daemons on PostgreSQL.

    ``key`` returns the key under which they are sealed. Its methods raise
    :class:`connmgr.errors.VaultUnavailable` when the database does not answer.
    """

    def __init__(self, database: Database, key: Callable[[], bytes], runs: StoredRuns) -> None:
        self._database, self._key, self._runs = database, key, runs

    @cached_property
    def _box(self) -> Box:
        return Box(self._key())

    def add(self, new: StoredSchedule, is_visible: Sight = everything) -> None:
        """Store a schedule for somebody who sees those that are ``is_visible``.

        :raises ScheduleExists: another visible one has its name, or there are :data:`MAX_SCHEDULES`, of which a token
            has a share.
        """

        def work(tx: sa.Connection) -> None:
            self._require_name(tx, new, is_visible)
            if (tx.scalar(sa.select(sa.func.count()).select_from(table)) or 0) >= MAX_SCHEDULES:
                raise ScheduleExists(
                    f"There are {MAX_SCHEDULES} schedules, as many as a vault may have: remove one first."
                )
            row = self._row_of(new)
            self._require_room(tx, new, row)
            if (holder := holder_of(new.spec)) is not None:
                holders = [holder_of(self._stored(row).spec) for row in tx.execute(sa.select(table)).mappings()]
                if (why := refused(MAX_SCHEDULES, holder, holders)) is not None:
                    raise ScheduleExists(f"A vault has room for {MAX_SCHEDULES} schedules, and {why}: remove some.")
            tx.execute(table.insert(), row)
            self._database.announce(tx, TOPIC)

        self._database.write(work)

    def _require_room(self, tx: sa.Connection, schedule: StoredSchedule, row: Row) -> None:
        """Raise :class:`ScheduleExists` unless the share of its holder has room for a schedule of this ``row``."""
        others = tx.execute(sa.select(table).where(table.c.id != schedule.id)).mappings()
        used = [(holder_of(self._stored(other).spec), len(other["sealed"])) for other in others]
        if len(row["sealed"]) > (left := max(0, room(MAX_BYTES, holder_of(schedule.spec), used))):
            raise ScheduleExists(
                f"The schedule's command and input have {len(row['sealed']):,} bytes, and only {left:,} are left of "
                f"the {MAX_BYTES >> 20} MiB for all schedules, or of the token's share: keep the input in files on the "
                "machines."
            )

    def get(self, id: str) -> StoredSchedule:
        """Return the schedule of this uuid, or raise :class:`UnknownSchedule`."""
        row = self._database.read(lambda tx: self._row_where(tx, table.c.id == id))
        if row is None:
            raise UnknownSchedule(id)
        return self._stored(row)

    def called(self, name: str) -> list[StoredSchedule]:
        """Return the schedule of this uuid, if there is one, before those of this name."""
        # A schedule's name may be another one's uuid, which then means the other one.
        query = sa.select(table).where(sa.or_(table.c.id == name.lower(), table.c.name == name))
        rows = self._database.read(lambda tx: tx.execute(query.order_by(table.c.id)).mappings().all())
        return sorted(map(self._stored, rows), key=lambda schedule: schedule.id != name.lower())

    def all(self) -> list[StoredSchedule]:
        """Return all schedules, by their names."""
        query = sa.select(table).order_by(table.c.name)
        return [self._stored(row) for row in self._database.read(lambda tx: tx.execute(query).mappings().all())]

    def due(self, at: datetime) -> list[StoredSchedule]:
        """Return the schedules whose time has come, the earliest first, and of one time by their names."""
        query = (
            sa.select(table)
            .where(table.c.next_at <= at, table.c.paused.is_(None))
            .order_by(table.c.next_at, table.c.name)
        )
        return [self._stored(row) for row in self._database.read(lambda tx: tx.execute(query).mappings().all())]

    def earliest(self, after: datetime | None = None) -> datetime | None:
        """Return the next time of all schedules, later than ``after``; None if none fires any more."""
        query = sa.select(table.c.next_at).where(table.c.paused.is_(None), table.c.next_at.is_not(None))
        if after is not None:
            query = query.where(table.c.next_at > after)
        return self._database.read(lambda tx: tx.scalar(query.order_by(table.c.next_at).limit(1)))

    def glance(self) -> tuple[datetime | None, bool]:
        """Return :meth:`earliest`, and whether a run has ended of which nobody was told, in one query.

        It is all that a daemon without schedules asks, every few seconds on PostgreSQL.
        """
        row = self._database.read(lambda tx: tx.execute(_GLANCE).one())
        return row[0], bool(row[1])

    def restored(self) -> datetime | None:
        """Return when the vault was restored from a backup, None if it never was."""
        query = sa.select(meta.c.value).where(meta.c.name == RESTORED)
        value = self._database.read(lambda tx: tx.scalar(query))
        return None if value is None else datetime.fromisoformat(value.decode())

    def change(
        self, id: str, change: Callable[[StoredSchedule], StoredSchedule], is_visible: Sight = everything
    ) -> StoredSchedule:
        """Replace a schedule by the result of ``change``, and return it; ``is_visible`` as for :meth:`add`.

        Of two changes at the same time, the second one is given what the first one has made of the schedule. ``change``
        may be called again after a conflict.

        :raises UnknownSchedule: it is gone.
        :raises ScheduleExists: another visible one has its new name.
        """

        def work(tx: sa.Connection) -> StoredSchedule:
            row = self._row_where(tx, table.c.id == id, locks=True)
            if row is None:
                raise UnknownSchedule(id)
            after = change(self._stored(row))
            if after.name != row["name"]:
                self._require_name(tx, after, is_visible)
            changed = self._row_of(after)
            if len(changed["sealed"]) > len(row["sealed"]):
                self._require_room(tx, after, changed)
            tx.execute(table.update().where(table.c.id == id), changed)
            self._database.announce(tx, TOPIC)
            return after

        # What it ran may have had secrets in its variables or its input.
        return self._database.write(work, erases=True)

    def remove(self, id: str, is_visible: Sight = everything) -> None:
        """Remove a schedule that ``is_visible``, or raise :class:`UnknownSchedule`; its runs stay."""

        def work(tx: sa.Connection) -> None:
            row = self._row_where(tx, table.c.id == id, locks=True)
            if row is None or not is_visible(self._stored(row)):
                raise UnknownSchedule(id)
            tx.execute(table.delete().where(table.c.id == id))

        self._database.write(work, erases=True)

    def fire(self, schedule: StoredSchedule, following: Turn, new: NewRun, *, skipped: int = 0) -> tuple[str, bool]:
        """Start the run of the time that ``schedule`` has, and give it the ``following`` time.

        ``skipped`` times in between were left out.
        :raises AlreadyFired: it has another time by now, was paused or removed, or another daemon fires it.
        :raises connmgr.errors.RunLimit: too many runs are under way; nothing was changed.
        """

        def work(tx: sa.Connection) -> tuple[str, bool]:
            self._take(tx, schedule)
            # In one transaction with the next time: a daemon that is killed in between would fire twice, or never.
            started = self._runs.submit_within(tx, new)
            more = table.c.skipped + skipped
            self._set(tx, schedule.id, following, last_run=started[0], last_error=None, skipped=more)
            return started

        return self._database.write(work)

    def leave_out(self, schedule: StoredSchedule, following: Turn, *, skipped: int = 0, error: Any = KEEP) -> bool:
        """Give a schedule the ``following`` time in place of the one that it has; return False if it has another."""

        def work(tx: sa.Connection) -> None:
            self._take(tx, schedule)
            more = {} if error is KEEP else {"last_error": error}
            self._set(tx, schedule.id, following, skipped=table.c.skipped + skipped, **more)

        return self._unless_fired(work)

    def wait(self, schedule: StoredSchedule) -> bool:
        """Note that the time of a schedule waits for the end of its last run."""

        def work(tx: sa.Connection) -> None:
            self._take(tx, schedule)
            tx.execute(table.update().where(table.c.id == schedule.id).values(waits=True))

        return self._unless_fired(work)

    def pause(self, schedule: StoredSchedule, reason: str) -> bool:
        """Pause a schedule that cannot go on; return False if it has another time by now."""

        def work(tx: sa.Connection) -> None:
            self._take(tx, schedule)
            tx.execute(table.update().where(table.c.id == schedule.id).values(paused=reason, last_error=reason))

        return self._unless_fired(work)

    def note_run(self, id: str, run: str) -> None:
        """Note the run that was started beside the schedule's times."""
        self._database.write(lambda tx: tx.execute(table.update().where(table.c.id == id).values(last_run=run)))

    def of_run(self, run: str) -> StoredSchedule | None:
        """Return the schedule whose last run this is."""
        row = self._database.read(lambda tx: self._row_where(tx, table.c.last_run == run))
        return None if row is None else self._stored(row)

    def _unless_fired(self, work: Callable[[sa.Connection], None]) -> bool:
        try:
            self._database.write(work)
        except AlreadyFired:
            return False
        return True

    def _take(self, tx: sa.Connection, schedule: StoredSchedule) -> None:
        query = sa.select(table).where(
            table.c.id == schedule.id,
            table.c.due == schedule.due,
            table.c.next_at == schedule.next_at,
            table.c.paused.is_(None),
        )
        # Of two daemons that look at the same moment, one locks the row. The other must not wait for it, for after the
        # commit the row has another time anyway: it finds nothing, and goes on.
        row = tx.execute(query.limit(1).with_for_update(skip_locked=True)).mappings().one_or_none()
        # Its time may be the same after a change of what it runs, or of whose rights it has.
        if row is None or self._stored(row).spec != schedule.spec:
            raise AlreadyFired(
                f"The schedule {schedule.name} has fired at this time already, or was changed, paused or removed."
            )

    def _set(self, tx: sa.Connection, id: str, following: Turn, **more: Any) -> None:
        values = {"due": following.due, "next_at": following.next_at, "waits": False, **more}
        tx.execute(table.update().where(table.c.id == id).values(values))

    def _require_name(self, tx: sa.Connection, schedule: StoredSchedule, is_visible: Sight) -> None:
        same = sa.select(table).where(table.c.name == schedule.name, table.c.id != schedule.id)
        if any(is_visible(self._stored(row)) for row in tx.execute(same).mappings()):
            raise ScheduleExists(
                f"name: A schedule is called {schedule.name!r} already; update it, or take another name."
            )

    def _row_where(self, tx: sa.Connection, condition: sa.ColumnElement[bool], *, locks: bool = False) -> Row | None:
        query = sa.select(table).where(condition).limit(1)
        return tx.execute(query.with_for_update() if locks else query).mappings().one_or_none()

    def _row_of(self, schedule: StoredSchedule) -> dict[str, Any]:
        sealed = self._box.seal(canonical([schedule.id, schedule.spec]).encode())
        return {name: value for name, value in vars(schedule).items() if name != "spec"} | {"sealed": sealed}

    def _stored(self, row: Row) -> StoredSchedule:
        of, spec = json.loads(self._box.open(row["sealed"]))
        if of != row["id"]:
            raise IntegrityError(
                f"The schedule {row['name']} was changed outside of connmgr: remove it, or restore a backup."
            )
        members = {name: row[name] for name in StoredSchedule.__dataclass_fields__ if name != "spec"}
        return StoredSchedule(**members, spec=spec)
