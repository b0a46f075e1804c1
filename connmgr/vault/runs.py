"""Runs in the vault: submitted, claimed by daemons, begun and stored; all decisions about a run are transactions here.

A daemon *claims* batches of targets, *begins* targets of its batches, and *stores* their outcomes. Each claim raises
the batch's epoch, and an outcome is stored only under the boot and the epoch with which its target began: so the
outcome of a daemon that was thought dead, and whose batches others have taken over, changes nothing. A target that had
begun by then is ``unknown``, and is never repeated by itself, unless it is a job, whose key finds what was started.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from itertools import groupby, islice
from typing import Any, NamedTuple

import sqlalchemy as sa

from connmgr.computing import give_way
from connmgr.contract.run import (
    DONE,
    ENDED,
    FAILED,
    FAILURES,
    JOB,
    PAUSED,
    PENDING,
    RUNNING,
    STARTING,
    STOPPED,
    STOPPING,
    TARGET_STATES,
    UNDER_WAY,
    UNKNOWN,
    WAITING,
)
from connmgr.errors import IntegrityError, KeyReused, RunEnded, RunLimit, RunUnderWay, UnknownRun
from connmgr.secrets.sealing import Box
from connmgr.shares import of_tokens, refused
from connmgr.vault.database import Database
from connmgr.vault.jobs import ENDED as JOB_ENDED
from connmgr.vault.principal_rows import put_meta
from connmgr.vault.schema import RESTORED, Row, canonical, chunks, meta, now
from connmgr.vault.schema import daemon as daemons
from connmgr.vault.schema import job as jobs
from connmgr.vault.schema import run as runs
from connmgr.vault.schema import run_batch as batches
from connmgr.vault.schema import run_output as outputs
from connmgr.vault.schema import run_target as targets

logger = logging.getLogger("connmgr.runs")

TOPIC = "runs"
"""Announced to the daemons of a vault when there may be something to do."""

HELD, CLAIMED = "held", "claimed"
"""The states of batches beside ``waiting`` and ``done``: those of later waves are held."""

MAX_RUNS = 100
"""Most runs under way."""

MAX_KEPT = 10_000
"""Most runs that are kept; then the oldest ended ones are removed, of tokens those beyond their shares first."""

MAX_KEPT_BYTES = 8 << 30
"""Most bytes of kept runs, with their outputs; then as :data:`MAX_KEPT`, and of runs under way see :meth:`full`."""

FORGOTTEN = timedelta(days=1)
"""Silence after which a daemon is forgotten."""

PUT_BACK = "The vault's database was put back to an earlier state, since which targets may have begun."

FIRST_EPOCH = 1
"""The epoch of a batch that nobody had before."""

SHARING = 4
"""A daemon claims at most one of so many of the batches that nobody has the links of, so that others find some."""

FEW_OUTPUTS = 16
"""Outputs of targets that are in memory at a time."""

# Built once, because building a statement costs more than running it.
_THIS = runs.c.id == sa.bindparam("run_id")
# Without the selection, which may have megabytes.
_SHOWN = sa.select(*(column for column in runs.c if column.name != "selection"))
_ROW = _SHOWN.where(_THIS)
_STORE = (
    targets.update()
    # Matched by owner and epoch, and not by the state: a commit whose answer was lost, and which is then repeated, must
    # not look as if another daemon had taken over.
    .where(
        targets.c.run == sa.bindparam("run_id"),
        targets.c.n == sa.bindparam("number"),
        targets.c.owner == sa.bindparam("boot"),
        targets.c.epoch == sa.bindparam("at_epoch"),
    )
    .values(
        state=sa.bindparam("to_state"),
        exit_code=sa.bindparam("code"),
        seconds=sa.bindparam("took"),
        output=sa.bindparam("printed"),
        error=sa.bindparam("reason"),
        job=sa.bindparam("job_id"),
        again=sa.bindparam("again_at"),
        tries=targets.c.tries - sa.bindparam("uncounted"),
    )
)
_LET_GO = (
    jobs.update()
    .where(
        jobs.c.id == sa.bindparam("job_id"),
        # Not `IN`, which an `executemany` cannot have.
        sa.or_(*(jobs.c.state == state for state in JOB_ENDED)),
        sa.exists().where(
            targets.c.run == sa.bindparam("run_id"),
            targets.c.n == sa.bindparam("number"),
            targets.c.owner == sa.bindparam("boot"),
            targets.c.epoch == sa.bindparam("at_epoch"),
        ),
    )
    .values(keep=0)
)
_BEGIN = (
    targets.update()
    .where(
        targets.c.run == sa.bindparam("run_id"),
        targets.c.n.between(sa.bindparam("first"), sa.bindparam("last")),
    )
    .values(
        state=STARTING,
        owner=sa.bindparam("boot"),
        epoch=sa.bindparam("at_epoch"),
        tries=targets.c.tries + 1,
        again=None,
    )
)
_PRINTED = sa.text(
    "INSERT INTO run_output (run, digest, sealed) VALUES (:run_id, :digest, :sealed) ON CONFLICT DO NOTHING"
).bindparams(sa.bindparam("digest", type_=sa.LargeBinary), sa.bindparam("sealed", type_=sa.LargeBinary))
_OWN_BATCHES = sa.select(batches.c.batch, batches.c.epoch).where(
    batches.c.state == CLAIMED, batches.c.run == sa.bindparam("run_id"), batches.c.owner == sa.bindparam("boot")
)
_READY = (
    sa.select(targets.c.n, targets.c.batch, targets.c.tries, targets.c.job)
    .where(
        targets.c.run == sa.bindparam("run_id"),
        targets.c.state == WAITING,
        targets.c.batch.in_(sa.bindparam("mine", expanding=True)),
        sa.or_(targets.c.again.is_(None), targets.c.again <= sa.bindparam("at")),
    )
    .order_by(targets.c.n)
    .limit(sa.bindparam("most"))
)
_OPEN_BATCHES = (
    sa.select(targets.c.batch)
    .distinct()
    .where(
        targets.c.run == sa.bindparam("run_id"),
        targets.c.state.in_((WAITING, STARTING)),
        targets.c.batch.in_(sa.bindparam("mine", expanding=True)),
    )
)
_NEXT_TRY = sa.select(sa.func.min(targets.c.again)).where(
    targets.c.run == sa.bindparam("run_id"),
    targets.c.state == WAITING,
    targets.c.batch.in_(sa.bindparam("mine", expanding=True)),
)
_FAILURES = sa.select(sa.func.count()).where(
    targets.c.run == sa.bindparam("run_id"), sa.or_(*(targets.c.state == state for state in FAILURES))
)
_RUNNING = sa.select(targets.c.n).where(targets.c.run == sa.bindparam("run_id"), targets.c.state == STARTING).limit(1)
_OPEN_IN_WAVE = (
    sa.select(batches.c.batch)
    .where(
        batches.c.run == sa.bindparam("run_id"),
        batches.c.wave == sa.bindparam("of_wave"),
        batches.c.state.in_((WAITING, CLAIMED)),
    )
    .limit(1)
)
_CLAIMABLE = sa.and_(
    batches.c.state == WAITING,
    batches.c.run == sa.bindparam("run_id"),
    sa.or_(sa.not_(batches.c.bound), batches.c.home.in_((sa.bindparam("boot"), sa.bindparam("name")))),
)
_NEXT_BATCHES = (
    sa.select(batches.c.batch, batches.c.home, batches.c.epoch)
    .where(_CLAIMABLE)
    .order_by(
        sa.case(
            (batches.c.home.in_((sa.bindparam("boot"), sa.bindparam("name"))), 0), (batches.c.home == "", 1), else_=2
        ),
        batches.c.batch,
    )
    .limit(sa.bindparam("most"))
)
# The owners of claimed batches, and how many of those that wait have no home.
_OWNERS = (
    sa.select(batches.c.state, batches.c.owner, sa.func.sum(sa.case((batches.c.home == "", 1), else_=0)))
    .where(batches.c.run == sa.bindparam("run_id"), sa.or_(batches.c.state == CLAIMED, batches.c.state == WAITING))
    .group_by(batches.c.state, batches.c.owner)
)
_BEGUN_BY_OWNER = (
    sa.select(targets.c.owner, sa.func.count())
    .where(targets.c.run == sa.bindparam("run_id"), targets.c.state == STARTING)
    .group_by(targets.c.owner)
)
_UNDER_WAY = sa.select(runs.c.id).where(runs.c.state.in_(UNDER_WAY))
_UNTOLD = sa.select(runs.c.id).where(runs.c.state.in_(ENDED), sa.not_(runs.c.told)).limit(100)
_TELL = runs.update().where(runs.c.id.in_(sa.bindparam("ids", expanding=True))).values(told=True)
_COUNTS = (
    sa.select(targets.c.state, sa.func.count()).where(targets.c.run == sa.bindparam("run_id")).group_by(targets.c.state)
)
_CLAIM = (
    batches.update()
    .where(batches.c.run == sa.bindparam("run_id"), batches.c.batch.in_(sa.bindparam("chosen", expanding=True)))
    .values(state=CLAIMED, owner=sa.bindparam("boot"), epoch=batches.c.epoch + 1)
)
_FINISH = (
    batches.update()
    .where(batches.c.run == sa.bindparam("run_id"), batches.c.batch.in_(sa.bindparam("over", expanding=True)))
    .values(state=DONE, owner=None)
)
_FINISH_ALL = batches.update().where(batches.c.run == sa.bindparam("run_id")).values(state=DONE, owner=None)
_CLAIM_OWNERS = sa.select(batches.c.owner).distinct().where(batches.c.state == CLAIMED)
_MINE = sa.and_(batches.c.state == CLAIMED, batches.c.owner == sa.bindparam("boot"))
_AT_HOME = batches.c.home.in_((sa.bindparam("boot"), sa.bindparam("name")))
_NEAR = sa.exists().where(
    batches.c.run == runs.c.id,
    sa.or_(_MINE, sa.and_(batches.c.state == WAITING, sa.or_(_AT_HOME, batches.c.home == ""))),
)
_TO_DO = (
    sa.select(runs.c.id, _NEAR)
    .where(
        runs.c.state.in_((PENDING, RUNNING, STOPPING)),
        sa.exists().where(
            batches.c.run == runs.c.id,
            sa.or_(_MINE, sa.and_(batches.c.state == WAITING, sa.or_(_AT_HOME, sa.not_(batches.c.bound)))),
        ),
    )
    .order_by(runs.c.submitted, runs.c.id)
)
_TENDED = sa.select(runs.c.id, runs.c.state, runs.c.kills, runs.c.resumes, runs.c.deadline).where(
    runs.c.state.in_(UNDER_WAY)
)


@dataclass(frozen=True)
class NewBatch:
    """Targets that are claimed together: their wave, from 0, and the daemon that has their links.

    ``home`` is a daemon's name, or its boot; if the batch is ``bound`` to it, no other may claim it.
    """

    wave: int
    connections: Sequence[str]
    home: str = ""
    bound: bool = False


@dataclass(frozen=True, kw_only=True)
class NewRun:
    """A run to submit. ``spec`` is JSON: in whose name and how it runs; ``content`` is what runs. Both are sealed."""

    id: str
    spec: Mapping[str, Any]
    batches: Sequence[NewBatch]
    parallel: int
    name: str | None = None
    token: str | None = None
    key: str | None = None
    stop_after: int | None = None
    timeout: float | None = None
    content: Mapping[str, Any] = field(default_factory=dict)
    """JSON that may have megabytes, and that only who works on the run reads."""


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """A run as it was last read. Times are aware and in UTC."""

    id: str
    name: str | None
    token: str | None
    key: str | None
    spec: Mapping[str, Any] = field(repr=False)
    parallel: int
    stop_after: int | None
    state: str
    reason: str | None
    kills: bool
    wave: int
    submitted: datetime
    began: datetime | None
    ended: datetime | None
    expires: datetime | None

    @property
    def holder(self) -> str | None:
        """Whose share it uses (:mod:`connmgr.shares`)."""
        return holder_of(self.spec)


def holder_of(spec: Mapping[str, Any]) -> str | None:
    """Return the token whose share a run or schedule of this ``spec`` uses: the first of its lineage; or the owner."""
    lineage: Sequence[str] = spec["lineage"]
    return lineage[-1] if lineage else None


@dataclass(frozen=True)
class BegunTarget:
    """A target that this daemon has just marked as begun, and may now begin; ``tries`` counts this time."""

    n: int
    epoch: int
    tries: int
    job: str | None


@dataclass(frozen=True, kw_only=True)
class TargetOutcome:
    """The end of a target that began under ``epoch``. If ``again`` is not None, it begins again after so many seconds.

    ``counts`` is False if nothing was sent: the next try has the same number, and so a job has the same key.
    ``printed`` is the digest of its output and the output itself, sealed; see :meth:`StoredRuns.sealed_output`.
    """

    n: int
    epoch: int
    state: str
    exit_code: int | None = None
    seconds: float | None = None
    printed: tuple[bytes, bytes] | None = None
    error: Mapping[str, Any] | None = None
    job: str | None = None
    again: float | None = None
    counts: bool = True


@dataclass(frozen=True)
class RunStep:
    """What a daemon does next about a run: the ``begun`` targets, in a run that is in ``state``.

    ``kills`` says that commands that run are to be killed, and ``reason`` why the run ends. ``wait`` is the number of
    seconds until a target may be tried again, None if none waits for that. ``has_work`` is False if no batch of the run
    is this daemon's. ``is_full`` says that more targets may wait for room, and ``leaves`` that there was room for more,
    which is left to others for a moment.
    """

    state: str
    kills: bool
    begun: Sequence[BegunTarget] = ()
    wait: float | None = None
    has_work: bool = True
    is_full: bool = True
    leaves: bool = False
    reason: str | None = None


class BatchOwner(NamedTuple):
    """A daemon that takes part in runs: it owns batches under its ``boot``, and ``name`` is the home of some.

    Nothing begins if the boot was silent for ``lease`` seconds, or if the database does not know of its last beat, at
    ``known``; on SQLite, where one process holds the vault, both are None.
    """

    boot: str
    name: str
    lease: float | None = None
    known: datetime | None = None


class RunSize(NamedTuple):
    """How many bytes the vault keeps of a run, and whether it has ended."""

    id: str
    token: str | None
    size: int
    ended: bool


class TargetOutput(NamedTuple):
    """What a target has printed, and whether it was cut off."""

    stdout: bytes
    stderr: bytes
    truncated: bool


class StoredRuns:
    """The vault's runs; safe to use from several threads, and by several daemons on PostgreSQL.

    ``key`` returns the key under which commands and outputs are sealed. Its methods raise
    :class:`connmgr.errors.VaultUnavailable` when the database does not answer.
    """

    def __init__(self, database: Database, key: Callable[[], bytes]) -> None:
        self._database, self._key = database, key

    @cached_property
    def _box(self) -> Box:
        return Box(self._key())

    # What requests ask for.

    def submit(self, new: NewRun) -> tuple[str, bool]:
        """Store a run; as :meth:`submit_within`."""
        return self._database.write(lambda tx: self.submit_within(tx, new))

    def submit_within(self, tx: sa.Connection, new: NewRun) -> tuple[str, bool]:
        """Store a run, and return its id and True; or the id of the kept run with the same key and token, and False.

        :raises RunLimit: :data:`MAX_RUNS` are under way, or the token has its share of them.
        :raises KeyReused: the kept run with the key was asked for something else.
        """
        if new.key is not None:
            # `IS NOT DISTINCT FROM`, on SQLite `IS`: the owner's runs have no token.
            same = sa.select(runs.c.id).where(runs.c.key == new.key, runs.c.token.is_not_distinct_from(new.token))
            # A run whose time is over is not found by its key either, until it is removed.
            over = same.where(runs.c.expires <= self._now(tx))
            tx.execute(runs.update().where(runs.c.id.in_(over)).values(key=None))
            if (existing := tx.scalar(same)) is not None:
                former = self._stored(tx.execute(_SHOWN.where(runs.c.id == existing)).mappings().one())
                # Older versions did not store what was asked for.
                if former.spec.get("asked") not in (None, new.spec.get("asked")):
                    raise KeyReused(
                        f"key: The run {existing} was started with this key, for another command, other connections or "
                        "with other options. Take another key, or send what was sent then.",
                        run=existing,
                    )
                return existing, False
        if (tx.scalar(sa.select(sa.func.count()).where(runs.c.state.in_(UNDER_WAY))) or 0) >= MAX_RUNS:
            raise RunLimit(f"{MAX_RUNS} runs are under way: wait for one to end, or stop one.")
        if new.token is not None:
            rows = tx.execute(_SHOWN.where(runs.c.state.in_(UNDER_WAY), runs.c.token.is_not(None))).mappings().all()
            holders = [self._stored(row).holder for row in rows]
            if (why := refused(MAX_RUNS, holder_of(new.spec), holders)) is not None:
                raise RunLimit(
                    f"At most {MAX_RUNS} runs are under way at a time, and {why}: wait for one to end, or stop one."
                )
        at = self._now(tx)
        chosen = [id for batch in new.batches for id in batch.connections]
        row = {
            "id": new.id,
            "name": new.name,
            "token": new.token,
            "key": new.key,
            "sealed": self._box.seal(canonical([new.id, new.token, new.spec]).encode()),
            "selection": self._box.seal(zlib.compress(canonical([new.id, chosen, new.content]).encode())),
            "parallel": new.parallel,
            "stop_after": new.stop_after,
            "state": PENDING,
            "kills": False,
            "wave": 0,
            "submitted": at,
            "deadline": None if new.timeout is None else at + timedelta(seconds=new.timeout),
        }
        tx.execute(runs.insert(), row)
        of_run = {"run": new.id, "epoch": 0}
        tx.execute(
            batches.insert(),
            [
                {**of_run, "batch": number, "wave": batch.wave, "home": batch.home, "bound": batch.bound}
                | {"state": HELD if batch.wave else WAITING}
                for number, batch in enumerate(new.batches)
            ],
        )
        every = [(number, id) for number, batch in enumerate(new.batches) for id in batch.connections]
        tx.execute(
            targets.insert(),
            [
                {**of_run, "n": n, "connection": id, "batch": number, "state": WAITING, "tries": 0}
                for n, (number, id) in enumerate(every)
            ],
        )
        self._database.announce(tx, TOPIC)
        return new.id, True

    def get(self, id: str) -> StoredRun:
        """Return the run ``id``, or raise :class:`UnknownRun`. It may be one whose time is over."""
        row = self._database.read(lambda tx: tx.execute(_SHOWN.where(runs.c.id == id)).mappings().one_or_none())
        if row is None:
            raise UnknownRun(id)
        return self._stored(row)

    def kept(self, id: str) -> StoredRun:
        """Return the run ``id`` for a client, or raise :class:`UnknownRun`, also about one whose time is over."""
        run = self.get(id)
        if run.expires is not None and run.expires <= self.time():
            raise UnknownRun(id)
        return run

    def find(
        self,
        *,
        states: Collection[str] | None = None,
        name: str | None = None,
        limit: int | None = None,
        is_wanted: Callable[[StoredRun], bool] = lambda _: True,
    ) -> list[StoredRun]:
        """Return the kept runs in one of ``states``, newest first, at most ``limit`` of those that ``is_wanted``."""
        conditions: list[Any] = [sa.or_(runs.c.expires.is_(None), runs.c.expires > self.time())]
        if states is not None:
            conditions.append(runs.c.state.in_(states))
        if name is not None:
            conditions.append(runs.c.name == name)
        query = _SHOWN.where(*conditions).order_by(runs.c.submitted.desc(), runs.c.id)
        ids = self._database.read(lambda tx: list(tx.scalars(query.with_only_columns(runs.c.id))))
        result: list[StoredRun] = []
        for chunk in chunks(ids):
            # Those that are removed meanwhile are missing, as in any list that is a moment old.
            for row in self._database.read(partial(_rows, query.where(runs.c.id.in_(chunk)))):
                if is_wanted(run := self._stored(row)):
                    result.append(run)
                give_way()
            if limit is not None and len(result) >= limit:
                return result[:limit]
        return result

    def selection(self, id: str) -> list[str]:
        """Return the connections of a run's targets, in their order."""
        connections: list[str] = self._selected(id)[1]
        return connections

    def content(self, run: StoredRun) -> Mapping[str, Any]:
        """Return what a run runs, as :class:`NewRun` had it."""
        selected = self._selected(run.id)
        # Older versions had it in the spec.
        content: Mapping[str, Any] = selected[2] if len(selected) > 2 and selected[2] else run.spec
        return content

    def _selected(self, id: str) -> list[Any]:
        sealed = self._database.read(lambda tx: tx.scalar(sa.select(runs.c.selection).where(runs.c.id == id)))
        if sealed is None:
            raise UnknownRun(id)
        selected: list[Any] = json.loads(zlib.decompress(self._box.open(sealed)))
        # The seal proves that the vault wrote it, and the id that it wrote it for this row: rows could be exchanged.
        if selected[0] != id:
            raise _changed(id)
        return selected

    def counts(self, id: str) -> dict[str, int]:
        """Return how many targets of a run are in each state."""
        counts = dict(self._database.read(lambda tx: [tuple(row) for row in tx.execute(_COUNTS, {"run_id": id})]))
        return {state: counts.get(state, 0) for state in TARGET_STATES}

    def at_work(self, id: str) -> list[str]:
        """Return the boots of the daemons that have claimed batches of a run."""
        query = sa.select(batches.c.owner).distinct().where(batches.c.state == CLAIMED, batches.c.run == id)
        return sorted(self._database.read(lambda tx: list(tx.scalars(query))))

    def last_owners(self) -> dict[str, str]:
        """Return the name of the daemon that worked on each target of the newest run that has ended, by connections.

        Not its boot, which is another one after each rest.
        """
        newest = sa.select(runs.c.id).where(runs.c.state.in_(ENDED)).order_by(runs.c.submitted.desc()).limit(1)
        query = sa.select(targets.c.connection, targets.c.owner).where(
            targets.c.run == newest.scalar_subquery(), targets.c.owner.is_not(None)
        )
        rows = self._database.read(lambda tx: tx.execute(query).all())
        return {row.connection: row.owner.rpartition("/")[0] for row in rows}

    def targets(
        self,
        id: str,
        *,
        states: Collection[str] | None = None,
        connection: str | None = None,
        offset: int = 0,
        limit: int | None = None,
    ) -> tuple[list[Row], int]:
        """Return rows of a run's targets, with ``wave``, and how many there are in all; :meth:`printed` has outputs."""
        conditions: list[Any] = [targets.c.run == id]
        if states is not None:
            conditions.append(targets.c.state.in_(states))
        if connection is not None:
            conditions.append(targets.c.connection == connection)
        joined = targets.join(batches, sa.and_(batches.c.run == targets.c.run, batches.c.batch == targets.c.batch))
        query = (
            sa.select(targets, batches.c.wave)
            .select_from(joined)
            .where(*conditions)
            .order_by(targets.c.n)
            .offset(offset)
            .limit(limit)
        )
        counted = sa.select(sa.func.count()).select_from(targets).where(*conditions)

        def work(tx: sa.Connection) -> tuple[list[Row], int]:
            return list(tx.execute(query).mappings().all()), tx.scalar(counted) or 0

        return self._database.read(work)

    def states(self, id: str) -> list[str]:
        """Return the states of all targets of a run, in its order."""
        query = sa.select(targets.c.state).where(targets.c.run == id).order_by(targets.c.n)
        return self._database.read(lambda tx: list(tx.scalars(query)))

    def sealed_output(self, stdout: bytes, stderr: bytes, *, truncated: bool) -> tuple[bytes, bytes] | None:
        """Return the digest of an output, and the output sealed; None for no output."""
        if not (stdout or stderr or truncated):
            return None
        content = len(stdout).to_bytes(8, "big") + bytes([truncated]) + stdout + stderr
        return self._box.digest(content), self._box.seal(content)

    def printed(self, rows: Iterable[Row]) -> Iterator[TargetOutput]:
        """Yield what targets have printed, a few at a time: those of a run may have gigabytes."""
        rest = iter(rows)
        while few_rows := list(islice(rest, FEW_OUTPUTS)):
            sealed = self._sealed(few_rows[0]["run"], {row["output"] for row in few_rows if row["output"] is not None})
            for row in few_rows:
                yield self.opened(sealed.get(row["output"]))
                give_way()

    def _sealed(self, run: str, digests: Collection[bytes]) -> dict[bytes, bytes]:
        query = sa.select(outputs.c.digest, outputs.c.sealed).where(outputs.c.run == run, outputs.c.digest.in_(digests))
        return self._database.read(lambda tx: {row.digest: row.sealed for row in tx.execute(query)})

    def opened(self, sealed: bytes | None) -> TargetOutput:
        """Return a sealed output."""
        if sealed is None:
            return TargetOutput(b"", b"", False)
        content = self._box.open(sealed)
        end = 9 + int.from_bytes(content[:8], "big")
        return TargetOutput(content[9:end], content[end:], bool(content[8]))

    def pause(self, id: str) -> None:
        """Let a run begin no more targets until :meth:`resume`."""

        def work(tx: sa.Connection, row: Row) -> None:
            if row["state"] in (PENDING, RUNNING, WAITING):
                self._set(tx, id, state=PAUSED, reason=None, resumes=None)

        self._change(id, work)

    def resume(self, id: str) -> None:
        """Let a run go on that is paused, or waits between two waves."""

        def work(tx: sa.Connection, row: Row) -> None:
            if row["state"] in (PAUSED, WAITING):
                self._set(tx, id, state=RUNNING, reason=None, resumes=None)
                self._advance(tx, self._row(tx, id), self._now(tx), released=True)

        self._change(id, work)

    def stop(self, id: str, reason: str, *, kill: bool = False, ends: str = STOPPED) -> None:
        """Let a run begin no more targets, and end in the state ``ends`` when those that run have ended."""

        def work(tx: sa.Connection, row: Row) -> None:
            if row["state"] == STOPPING:
                self._set(tx, id, kills=row["kills"] or kill)
            else:
                self._stop(tx, id, reason, ends, self._now(tx), kill=kill)

        self._change(id, work)

    def remove(self, id: str) -> None:
        """Remove a run that has ended, and erase its output from the disk.

        :raises UnknownRun: there is no such run.
        :raises RunUnderWay: it has not ended.
        """

        def work(tx: sa.Connection) -> None:
            state = tx.scalar(sa.select(runs.c.state).where(runs.c.id == id))
            if state is None:
                raise UnknownRun(id)
            if state not in ENDED:
                raise RunUnderWay("The run is under way: stop it first.")
            tx.execute(runs.delete().where(runs.c.id == id))

        self._database.write(work, erases=True)

    def remove_expired(self) -> int:
        """Remove the runs whose time is over, and the oldest ended ones beyond what is kept; return how many."""

        # Asked outside of a write first: mostly nothing is over, and then no other writer has waited for this.
        def expired(tx: sa.Connection) -> list[str]:
            over = sa.select(runs.c.id).where(runs.c.expires <= self._now(tx))
            return list(dict.fromkeys([*tx.scalars(over), *_excess(self._sizes(tx))]))

        if not self._database.read(expired):
            return 0

        def work(tx: sa.Connection) -> int:
            ids = expired(tx)
            for chunk in chunks(ids):
                tx.execute(runs.delete().where(runs.c.id.in_(chunk)))
            return len(ids)

        removed = self._database.write(work, erases=True)
        logger.info(
            "%d ended runs were removed: their time was over, or there were more than %d, or than %d GiB of them.",
            *(removed, MAX_KEPT, MAX_KEPT_BYTES >> 30),
        )
        return removed

    def next_expiry(self) -> float | None:
        """Return in how many seconds the time of a run is over, 0 if it is already; None if that of none ever is."""
        first, at = self._database.read(lambda tx: (tx.scalar(sa.select(sa.func.min(runs.c.expires))), self._now(tx)))
        return None if first is None else max(0.0, (first - at).total_seconds())

    def full(self) -> set[str]:
        """Return the runs under way whose outputs are not kept any more: they, or those of their token, have too many.

        Ended runs were removed for them before.
        """
        sizes = [run for run in self._database.read(self._sizes) if not run.ended]
        share, share_of_all = of_tokens(MAX_KEPT_BYTES)
        by_token: Counter[str | None] = Counter()
        for run in sizes:
            by_token[run.token] += run.size
        all_full = by_token.total() > MAX_KEPT_BYTES
        tokens_full = by_token.total() - by_token[None] > share_of_all
        return {
            run.id
            for run in sizes
            if all_full or (run.token is not None and (tokens_full or by_token[run.token] > share))
        }

    def _sizes(self, tx: sa.Connection) -> list[RunSize]:
        """Return how much the vault keeps of each run, the newest first."""
        printed = sa.select(outputs.c.run, sa.func.sum(sa.func.length(outputs.c.sealed))).group_by(outputs.c.run)
        bytes_of = {run: int(size) for run, size in tx.execute(printed)}
        own = sa.func.length(runs.c.sealed) + sa.func.length(runs.c.selection)
        kept = sa.select(runs.c.id, runs.c.token, own, runs.c.state).order_by(runs.c.submitted.desc(), runs.c.id)
        rows = tx.execute(kept)
        return [RunSize(id, token, size + bytes_of.get(id, 0), state in ENDED) for id, token, size, state in rows]

    def take_ended(self) -> list[str]:
        """Return runs that have ended and of whose end nobody was told yet; from now on somebody was.

        Each is returned once, whatever the number of daemons.
        """
        if not self._database.read(lambda tx: list(tx.scalars(_UNTOLD))):
            return []

        def work(tx: sa.Connection) -> list[str]:
            ids = list(tx.scalars(_UNTOLD.with_for_update(skip_locked=True)))
            tx.execute(_TELL, {"ids": ids})
            return ids

        return self._database.write(work)

    def time(self) -> datetime:
        """Return the time by the clock that all daemons of the vault share."""
        return self._database.read(self._now) if self._database.is_shared else now()

    # What daemons ask for.

    def are_under_way(self) -> bool:
        """Whether a run is under way."""
        return self._database.read(lambda tx: tx.scalar(_UNDER_WAY.limit(1))) is not None

    def of_tokens(self, tokens: Iterable[str]) -> list[str]:
        """Return the runs under way that were started with one of ``tokens``."""
        query = _UNDER_WAY.where(runs.c.token.in_(list(tokens)))
        return self._database.read(lambda tx: list(tx.scalars(query)))

    def join(self, boot: str, name: str) -> datetime:
        """Let a daemon take part in runs on PostgreSQL, until it misses a beat; return the time of this one.

        Those that were silent for a day are forgotten.
        """

        def work(tx: sa.Connection) -> datetime:
            at = self._now(tx)
            tx.execute(daemons.delete().where(daemons.c.seen < at - FORGOTTEN))
            tx.execute(daemons.insert(), {"boot": boot, "name": name, "seen": at})
            return at

        return self._database.write(work)

    def beat(self, boot: str, lease: float, known: datetime) -> datetime | None:
        """Renew the lease of a daemon and return the time; None if it has lapsed, which nothing renews.

        ``known`` is its last beat: where the database knows an earlier one, somebody has put it back.
        """

        def work(tx: sa.Connection) -> datetime | None:
            at = self._now(tx)
            alive = (daemons.c.seen > at - timedelta(seconds=lease), daemons.c.seen >= known)
            beaten = daemons.update().where(daemons.c.boot == boot, *alive).values(seen=at)
            return at if tx.execute(beaten).rowcount else None

        # Not behind the daemon's other writers: hundreds of shells that start at a time would outlast the lease.
        return self._database.write_beside(work)

    def is_put_back(self, boot: str, known: datetime) -> bool:
        """Whether the database has forgotten the last beat of a daemon: it is as it was before that."""

        def read(tx: sa.Connection) -> bool:
            seen = tx.scalar(sa.select(daemons.c.seen).where(daemons.c.boot == boot))
            return known > self._now(tx) - FORGOTTEN if seen is None else seen < known

        return self._database.read(read)

    def note_put_back(self, known: datetime) -> None:
        """Stop what is under way in a database that somebody has put back to how it was before the time ``known``.

        What it calls waiting may have begun since, and nothing shall be begun twice; as with a restored backup, times
        of schedules since then count as missed. It is done once, by the first daemon that notices.
        """

        why = canonical({"code": "vault_put_back", "message": PUT_BACK})

        def work(tx: sa.Connection) -> int | None:
            noted = tx.scalar(sa.select(meta.c.value).where(meta.c.name == RESTORED))
            if noted is not None and datetime.fromisoformat(noted.decode()) > known:
                return None
            at, rows = self._now(tx), tx.execute(_SHOWN.where(runs.c.state.in_(UNDER_WAY))).mappings().all()
            for row in rows:
                of_run = targets.update().where(targets.c.run == row["id"])
                tx.execute(of_run.where(targets.c.state == WAITING).values(state=STOPPED))
                tx.execute(of_run.where(targets.c.state == STARTING).values(state=UNKNOWN, error=why))
                self._end(tx, row, STOPPED, PUT_BACK, at)
            put_meta(tx, RESTORED, at.isoformat().encode())
            self._database.announce(tx, TOPIC)
            return len(rows)

        stopped = self._database.write(work)
        if stopped is not None:
            logger.error("%s Runs that are stopped because of it: %d.", PUT_BACK, stopped)

    def leave(self, boot: str) -> None:
        """End a daemon's part in runs, in order: its batches, which it begins no more of, are free at once."""

        def work(tx: sa.Connection) -> None:
            self._release(tx, [boot])
            tx.execute(daemons.delete().where(daemons.c.boot == boot))

        self._database.write(work)

    def take_over(self, boot: str, lease: float) -> int:
        """Free the batches of daemons that are gone, and return how many.

        On SQLite every other boot is gone, for one process holds the vault. On PostgreSQL it is one whose lease has
        lapsed; but after an outage of the server nobody could beat, so all are waited for as long as a lease.
        """

        def gone(tx: sa.Connection) -> list[str]:
            owners = set(tx.scalars(_CLAIM_OWNERS))
            if self._database.is_shared:
                if owners - {boot} and not tx.scalar(_UP_FOR, {"lease": lease}):
                    return []
                alive = daemons.c.seen > self._now(tx) - timedelta(seconds=lease)
                owners -= set(tx.scalars(sa.select(daemons.c.boot).where(alive)))
            return sorted(owners - {boot})

        if self._database.is_shared:
            self._fail_bound(lease)
        if not self._database.read(gone):
            return 0
        return self._database.write(lambda tx: self._release(tx, gone(tx)))

    def _fail_bound(self, lease: float) -> None:
        """Let fail what only a daemon that is gone could open, with secrets that were unlocked there."""

        def lost_batches(tx: sa.Connection) -> list[Any]:
            # A boot is the daemon's name, a slash and random digits; a name alone is that of a machine.
            waiting = sa.and_(batches.c.state.in_((WAITING, HELD)), batches.c.bound, batches.c.home.contains("/"))
            alive = sa.select(daemons.c.boot).where(daemons.c.seen > self._now(tx) - timedelta(seconds=lease))
            return list(
                tx.execute(sa.select(batches.c.run, batches.c.batch).where(waiting, batches.c.home.not_in(alive)))
            )

        if not self._database.read(lost_batches):
            return

        def work(tx: sa.Connection) -> None:
            at, lost = self._now(tx), lost_batches(tx)
            why = {
                "code": "secret_locked",
                "message": "Its secrets were unlocked only in a daemon that has ended: unlock them, and retry the run.",
            }
            for id in dict.fromkeys(run for run, _ in lost):
                numbers = [number for run, number in lost if run == id]
                of_these = sa.and_(targets.c.run == id, targets.c.state == WAITING, targets.c.batch.in_(numbers))
                tx.execute(targets.update().where(of_these).values(state=FAILED, error=canonical(why)))
                done = sa.and_(batches.c.run == id, batches.c.batch.in_(numbers))
                tx.execute(batches.update().where(done).values(state=DONE))
                row = self._row(tx, id)
                if row["state"] not in (STOPPING, *ENDED) and self._has_failed(tx, row):
                    self._stop_for_failures(tx, row, at)
                self._advance(tx, self._row(tx, id), at)

        self._database.write(work)

    def runs_to_do(self, boot: str, name: str) -> list[tuple[str, bool]]:
        """Return the runs with batches that this daemon has or could claim, oldest first.

        With each goes whether some are its own or at home here; the others have their home at another daemon.
        """
        here = {"boot": boot, "name": name}
        return self._database.read(lambda tx: [(row[0], bool(row[1])) for row in tx.execute(_TO_DO, here)])

    def tend(self) -> dict[str, tuple[str, bool]]:
        """Resume the runs whose pause is over, and stop those whose time is over.

        Return the runs that were under way before that: their state, and whether their commands are to be killed.
        """

        def read(tx: sa.Connection) -> tuple[Sequence[Any], datetime]:
            rows = tx.execute(_TENDED).all()
            # An idle daemon asks one thing only.
            return rows, self._now(tx) if rows else now()

        under_way, at = self._database.read(read)
        for row in under_way:
            if row.state == WAITING and row.resumes is not None and row.resumes <= at:
                self._unless_ended(self.resume, row.id)
            if row.state != STOPPING and row.deadline is not None and row.deadline <= at:
                late = "The run took longer than its runTimeout."
                self._unless_ended(self.stop, row.id, late, kill=True, ends=FAILED)
        return {row.id: (row.state, row.kills) for row in under_way}

    def _unless_ended(self, change: Callable[..., None], id: str, *arguments: Any, **how: Any) -> None:
        try:
            change(id, *arguments, **how)
        except (RunEnded, UnknownRun):
            # Another daemon, or a request, was faster.
            return

    def step(
        self,
        id: str,
        owner: BatchOwner,
        outcomes: Sequence[TargetOutcome],
        room: int,
        *,
        batch: int,
        helps: bool = True,
    ) -> RunStep:
        """Store ``outcomes``, and begin up to ``room`` targets more; ``helps`` allows those at home elsewhere."""
        return self._database.write(lambda tx: self._step(tx, id, owner, outcomes, room, batch, helps=helps))

    def _step(
        self,
        tx: sa.Connection,
        id: str,
        owner: BatchOwner,
        outcomes: Sequence[TargetOutcome],
        room: int,
        batch: int,
        *,
        helps: bool,
    ) -> RunStep:
        """Store and begin; claim further batches, of about ``batch`` targets, where the daemon has too few.

        Whoever stores the last outcome of a wave begins the next one, or ends the run.
        """
        row: Row | None = tx.execute(_ROW, {"run_id": id}).mappings().one_or_none()
        if row is None:
            return RunStep(STOPPED, True, has_work=False)
        at = self._now(tx)
        if outcomes:
            is_ending = row["state"] in (STOPPING, *ENDED)
            if is_ending:
                # Nothing begins again in a run that ends.
                outcomes = [replace(outcome, again=None) for outcome in outcomes]
            self._store(tx, id, owner.boot, outcomes, at)
            failed = any(outcome.state in FAILURES and outcome.again is None for outcome in outcomes)
            if failed and not is_ending and self._has_failed(tx, row):
                self._stop_for_failures(tx, row, at)
                row = self._row(tx, id)
        mine = {own.batch: own.epoch for own in tx.execute(_OWN_BATCHES, {"run_id": id, "boot": owner.boot})}
        self._finish_batches(tx, id, mine)
        if row["state"] == PENDING:
            # The others were told when it was submitted.
            self._set(tx, id, announces=False, state=RUNNING, began=at)
            row = {**row, "state": RUNNING, "began": at}
        row = self._advance(tx, row, at)
        begun: list[BegunTarget] = []
        leaves = False
        # The daemon's own look at its lease came before this transaction, which may have waited for the server. If
        # others have freed its batches since, it would claim them again, and have targets twice that it had begun.
        if row["state"] == RUNNING and room > 0 and self._is_alive(tx, owner, at):
            begun, leaves = self._begin(tx, row, owner, mine, room, at, batch, helps=helps)
        wait = None
        waiting = {"run_id": id, "mine": list(mine)}
        if mine and not begun and (next_at := tx.scalar(_NEXT_TRY, waiting)) is not None:
            wait = max(0.0, (next_at - at).total_seconds())
        is_full = leaves or len(begun) >= room
        return RunStep(row["state"], row["kills"], begun, wait, bool(mine), is_full, leaves, row["reason"])

    def _is_alive(self, tx: sa.Connection, owner: BatchOwner, at: datetime) -> bool:
        if owner.lease is None:
            return True
        seen, lease = tx.scalar(sa.select(daemons.c.seen).where(daemons.c.boot == owner.boot)), owner.lease
        return seen is not None and seen > at - timedelta(seconds=lease) and seen >= (owner.known or seen)

    def _store(self, tx: sa.Connection, id: str, boot: str, outcomes: Sequence[TargetOutcome], at: datetime) -> None:
        printed = {outcome.printed[0]: outcome.printed[1] for outcome in outcomes if outcome.printed is not None}
        if printed:
            tx.execute(
                _PRINTED, [{"run_id": id, "digest": digest, "sealed": sealed} for digest, sealed in printed.items()]
            )
        tx.execute(
            _STORE,
            [
                {
                    "run_id": id,
                    "number": outcome.n,
                    "boot": boot,
                    "at_epoch": outcome.epoch,
                    "to_state": outcome.state if outcome.again is None else WAITING,
                    "code": outcome.exit_code,
                    "took": outcome.seconds,
                    "printed": None if outcome.printed is None else outcome.printed[0],
                    "reason": None if outcome.error is None else canonical(outcome.error),
                    "job_id": outcome.job,
                    "again_at": None if outcome.again is None else at + timedelta(seconds=outcome.again),
                    "uncounted": 0 if outcome.counts else 1,
                }
                for outcome in outcomes
            ],
        )
        # With the outcome, and not before, the job's key has done its duty. Not so where others may have had the target
        # before: one that was frozen just before it started the job would start it when it wakes, if it were removed.
        over = [
            {"run_id": id, "number": outcome.n, "boot": boot, "at_epoch": outcome.epoch, "job_id": outcome.job}
            for outcome in outcomes
            if outcome.job is not None
            and outcome.state in (DONE, FAILED)
            and (outcome.epoch == FIRST_EPOCH or not self._database.is_shared)
        ]
        if over:
            tx.execute(_LET_GO, over)

    def _finish_batches(self, tx: sa.Connection, id: str, mine: dict[int, int]) -> None:
        """Mark those of ``mine`` as done in which nothing waits or runs, and remove them from there."""
        if not mine:
            return
        left = set(tx.scalars(_OPEN_BATCHES, {"run_id": id, "mine": list(mine)}))
        over = [number for number in mine if number not in left]
        if over:
            tx.execute(_FINISH, {"run_id": id, "over": over})
            for number in over:
                del mine[number]

    def _begin(
        self,
        tx: sa.Connection,
        row: Row,
        owner: BatchOwner,
        mine: dict[int, int],
        room: int,
        at: datetime,
        batch: int,
        *,
        helps: bool,
    ) -> tuple[list[BegunTarget], bool]:
        """Begin what there is room for; return it, and whether some is left to other daemons for now.

        ``mine`` are the daemon's batches, each with its epoch; those that it claims are added.
        """
        id, leaves = row["id"], False
        # How many batches without a home it may claim; in this transaction no other daemon claims any.
        free = room
        if self._database.is_shared:
            if not mine:
                # Even where there is no room now: the others then leave some.
                mine |= self._claim(tx, id, owner, 1, 1, helps=helps)[0]
            allowed, waiting = self._share(tx, id, owner.boot, row["parallel"])
            room = min(room, allowed)
            if room <= 0:
                return [], False
            free = -(-waiting // SHARING)
            leaves = free < waiting
        ready = self._ready(tx, id, mine, room, at)
        while len(ready) < room:
            most = (room - len(ready)) // batch + 1
            claimed, homeless = self._claim(tx, id, owner, most, free, helps=helps and not ready)
            if not claimed:
                break
            free -= homeless
            mine |= claimed
            ready += self._ready(tx, id, claimed, room - len(ready), at)
            if ready and len(claimed) < most:
                # There is nothing more to claim.
                break
        if ready:
            # The targets of a batch are numbered in sequence: few rows of parameters for many targets.
            ranges = [
                {"run_id": id, "first": first, "last": last, "boot": owner.boot, "at_epoch": mine[batch]}
                for batch, first, last in _ranges(ready)
            ]
            tx.execute(_BEGIN, ranges)
        begun = [BegunTarget(target.n, mine[target.batch], target.tries + 1, target.job) for target in ready]
        return begun, leaves and len(begun) < room

    def _share(self, tx: sa.Connection, id: str, boot: str, parallel: int) -> tuple[int, int]:
        """Return how many targets more a daemon may begin, of those that all daemons together may run.

        Return also how many batches without a home wait.
        """
        begun: dict[str | None, int] = {}
        for owner, count in tx.execute(_BEGUN_BY_OWNER, {"run_id": id}):
            begun[owner] = count
        owners, waiting = {boot}, 0
        for state, owner, homeless in tx.execute(_OWNERS, {"run_id": id}):
            if state == CLAIMED:
                owners.add(owner)
            else:
                waiting += int(homeless)
        share = -(-parallel // len(owners))
        return min(parallel - sum(begun.values()), share - begun.get(boot, 0)), waiting

    def _ready(self, tx: sa.Connection, id: str, mine: Mapping[int, int], room: int, at: datetime) -> list[Any]:
        if not mine:
            return []
        return list(tx.execute(_READY, {"run_id": id, "mine": list(mine), "at": at, "most": room}).all())

    def _claim(
        self, tx: sa.Connection, id: str, owner: BatchOwner, most: int, free: int, *, helps: bool
    ) -> tuple[dict[int, int], int]:
        """Claim up to ``most`` batches, ``free`` of them without a home.

        Return the new epoch of each, and how many have no home.
        """
        here = {"boot": owner.boot, "name": owner.name}
        candidates = tx.execute(_NEXT_BATCHES, {"run_id": id, **here, "most": most}).all()
        at_home = [candidate.batch for candidate in candidates if candidate.home in (owner.boot, owner.name)]
        homeless = [candidate.batch for candidate in candidates if not candidate.home]
        chosen = at_home + homeless[:free]
        if not chosen and not homeless and helps:
            # Batches whose links another daemon has are taken one at a time: opening links costs more than waiting.
            chosen = [candidate.batch for candidate in candidates[:1]]
        if not chosen:
            return {}, 0
        tx.execute(_CLAIM, {"run_id": id, "chosen": chosen, "boot": owner.boot})
        # Nobody else has raised an epoch meanwhile: one transaction writes at a time.
        epochs = {candidate.batch: candidate.epoch + 1 for candidate in candidates}
        return {batch: epochs[batch] for batch in chosen}, len(homeless[:free])

    def _release(self, tx: sa.Connection, boots: Collection[str]) -> int:
        """Free the batches of ``boots``; return how many.

        A target that they had begun becomes unknown. As a job it waits again: its key finds what was started.
        """
        if not boots:
            return 0
        of_these = sa.and_(batches.c.state == CLAIMED, batches.c.owner.in_(boots))
        freed = tx.execute(sa.select(batches.c.run, batches.c.batch).where(of_these)).all()
        at = self._now(tx)
        for id in dict.fromkeys(run for run, _ in freed):
            row = self._row(tx, id)
            numbers = [number for run, number in freed if run == id]
            begun = sa.and_(targets.c.run == id, targets.c.state == STARTING, targets.c.batch.in_(numbers))
            if self._stored(row).spec["as"] == JOB and row["state"] != STOPPING:
                # Under the same number of tries, which is part of the key. The epoch is raised in either case, so that
                # what the former owner stores, if it lives, changes nothing.
                tries, epoch = targets.c.tries - 1, targets.c.epoch + 1
                tx.execute(targets.update().where(begun).values(state=WAITING, tries=tries, epoch=epoch))
            else:
                reason = "The daemon that had begun it has ended; whether the command has run is unknown."
                why = canonical({"code": "daemon_gone", "message": reason})
                tx.execute(targets.update().where(begun).values(state=UNKNOWN, error=why, epoch=targets.c.epoch + 1))
            tx.execute(
                batches.update()
                .where(batches.c.run == id, batches.c.batch.in_(numbers))
                .values(state=WAITING, owner=None, epoch=batches.c.epoch + 1)
            )
            left = set(tx.scalars(_OPEN_BATCHES, {"run_id": id, "mine": numbers}))
            if over := [number for number in numbers if number not in left]:
                tx.execute(batches.update().where(batches.c.run == id, batches.c.batch.in_(over)).values(state=DONE))
            if row["state"] not in (STOPPING, *ENDED) and self._has_failed(tx, row):
                self._stop_for_failures(tx, row, at)
            self._advance(tx, self._row(tx, id), at)
        if freed:
            self._database.announce(tx, TOPIC)
        return len(freed)

    # The course of a run.

    def _change(self, id: str, work: Callable[[sa.Connection, Row], None]) -> None:
        """Change a run that is under way.

        :raises UnknownRun: there is no such run.
        :raises RunEnded: it has ended.
        """

        def change(tx: sa.Connection) -> None:
            row = tx.execute(_ROW, {"run_id": id}).mappings().one_or_none()
            if row is None:
                raise UnknownRun(id)
            if row["state"] in ENDED:
                raise RunEnded(f"The run has ended: it is {row['state']}.")
            work(tx, row)

        self._database.write(change)

    def _set(self, tx: sa.Connection, id: str, *, announces: bool = True, **values: Any) -> None:
        tx.execute(runs.update().where(runs.c.id == id).values(**values))
        if announces:
            self._database.announce(tx, TOPIC)

    def _failures(self, tx: sa.Connection, id: str) -> int:
        return tx.scalar(_FAILURES, {"run_id": id}) or 0

    def _has_failed(self, tx: sa.Connection, row: Row) -> bool:
        return row["stop_after"] is not None and self._failures(tx, row["id"]) >= row["stop_after"]

    def _stop_for_failures(self, tx: sa.Connection, row: Row, at: datetime) -> None:
        failures = self._failures(tx, row["id"])
        reason = (
            f"{failures} {'target' if failures == 1 else 'targets'} failed; the run stops after {row['stop_after']}."
        )
        self._stop(tx, row["id"], reason, FAILED, at)

    def _stop(self, tx: sa.Connection, id: str, reason: str, ends: str, at: datetime, *, kill: bool = False) -> None:
        waiting = sa.and_(targets.c.run == id, targets.c.state == WAITING)
        tx.execute(targets.update().where(waiting).values(state=STOPPED, again=None))
        unclaimed = sa.and_(batches.c.run == id, batches.c.state.in_((HELD, WAITING)))
        tx.execute(batches.update().where(unclaimed).values(state=DONE))
        self._set(tx, id, state=STOPPING, reason=reason, ends=ends, kills=kill, resumes=None)
        self._advance(tx, self._row(tx, id), at)

    def _advance(self, tx: sa.Connection, row: Row, at: datetime, *, released: bool = False) -> Row:
        """Begin the next wave of a run, or end the run, if it has come so far; return its row as it is then."""
        id = row["id"]
        if row["state"] == STOPPING:
            if tx.scalar(_RUNNING, {"run_id": id}) is not None:
                return row
            self._end(tx, row, row["ends"], row["reason"], at)
        elif row["state"] == RUNNING and tx.scalar(_OPEN_IN_WAVE, {"run_id": id, "of_wave": row["wave"]}) is None:
            self._end_wave(tx, row, at, released=released)
        else:
            return row
        return self._row(tx, id)

    def _row(self, tx: sa.Connection, id: str) -> Row:
        """Return the row of a run that exists."""
        return tx.execute(_ROW, {"run_id": id}).mappings().one()

    def _end_wave(self, tx: sa.Connection, row: Row, at: datetime, *, released: bool) -> None:
        """Begin the wave that follows, or end the run after the last one."""
        id = row["id"]
        spec, wave = self._stored(row).spec, row["wave"] + 1
        if wave == len(spec["waves"]):
            failures = self._failures(tx, id)
            failed = failures > 0 and row["stop_after"] is None
            reason = f"{failures} of {sum(spec['waves'])} targets failed." if failures else None
            self._end(tx, row, FAILED if failed else DONE, reason, at)
        elif not released and spec["waveApproval"]:
            reason = (
                f"Wave {wave} of {len(spec['waves'])} has ended; the next one begins when somebody resumes the run."
            )
            self._set(tx, id, state=WAITING, reason=reason, resumes=None)
        elif not released and spec["wavePause"]:
            reason = f"Wave {wave} of {len(spec['waves'])} has ended; the next one begins after a pause."
            resumes = at + timedelta(seconds=spec["wavePause"])
            self._set(tx, id, state=WAITING, reason=reason, resumes=resumes)
        else:
            of_wave = sa.and_(batches.c.run == id, batches.c.wave == wave, batches.c.state == HELD)
            tx.execute(batches.update().where(of_wave).values(state=WAITING))
            self._set(tx, id, wave=wave, reason=None)

    def _end(self, tx: sa.Connection, row: Row, state: str, reason: str | None, at: datetime) -> None:
        keep = self._stored(row).spec["keep"]
        tx.execute(_FINISH_ALL, {"run_id": row["id"]})
        expires = None if keep is None else at + timedelta(seconds=keep)
        self._set(tx, row["id"], state=state, reason=reason, ended=at, expires=expires, resumes=None, deadline=None)

    def _stored(self, row: Row) -> StoredRun:
        of, token, spec = json.loads(self._box.open(row["sealed"]))
        if of != row["id"] or token != row["token"]:
            raise _changed(row["id"])
        members = {name: row[name] for name in StoredRun.__dataclass_fields__ if name != "spec"}
        return StoredRun(**members, spec=spec)

    def _now(self, tx: sa.Connection) -> datetime:
        """Return the time by the clock that all daemons of the vault share."""
        if not self._database.is_shared:
            return now()
        at: datetime = tx.scalar(sa.text("SELECT clock_timestamp()"))
        return at


_UP_FOR = sa.text("SELECT now() - pg_postmaster_start_time() > make_interval(secs => :lease)")


def _rows(wanted: sa.Select[Any], tx: sa.Connection) -> Sequence[Row]:
    return tx.execute(wanted).mappings().all()


def _changed(id: str) -> IntegrityError:
    return IntegrityError(
        f"The run {id} was changed outside of connmgr: remove it, or restore the vault from a backup."
    )


def _ranges(ready: Iterable[Any]) -> Iterator[tuple[int, int, int]]:
    """Yield batch, first and last number of the targets that follow each other in the same batch."""
    # In a sequence, a number and its index differ by the same amount.
    for (batch, _), group in groupby(
        enumerate(ready), lambda numbered: (numbered[1].batch, numbered[1].n - numbered[0])
    ):
        numbers = [target.n for _, target in group]
        yield batch, numbers[0], numbers[-1]


def _excess(sizes: Sequence[RunSize]) -> list[str]:
    """Return those of ended runs, the newest first, that are not kept; those under way use room, too."""
    share, share_of_all = of_tokens(MAX_KEPT)
    bytes_share, bytes_share_of_all = of_tokens(MAX_KEPT_BYTES)
    kept: Counter[str | None] = Counter()
    used: Counter[str | None] = Counter()
    for run in sizes:
        used[run.token] += 0 if run.ended else run.size
    excess = []
    for run in filter(lambda run: run.ended, sizes):
        of_all, bytes_of_all = kept.total() - kept[None], used.total() - used[None] + run.size
        has_room = kept.total() < MAX_KEPT and used.total() + run.size <= MAX_KEPT_BYTES
        if has_room and run.token is not None:
            has_room = kept[run.token] < share and of_all < share_of_all
            has_room = has_room and used[run.token] + run.size <= bytes_share and bytes_of_all <= bytes_share_of_all
        if has_room:
            kept[run.token] += 1
            used[run.token] += run.size
        else:
            excess.append(run.id)
    return excess
