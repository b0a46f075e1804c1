"""The runs of this daemon: submitted here, and worked on with whatever other daemons of the vault there are.

One thread, ``runs``, looks what is to be done; a thread for each run, its *driver*, begins and stores its targets. All
decisions are transactions of :class:`connmgr.vault.runs.StoredRuns`, and a daemon may be killed between any two.
Neither thread exists before the first run, except on PostgreSQL, where another daemon may submit one.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from connmgr.contract.event import RUN
from connmgr.contract.run import (
    ENDED,
    FAILED,
    JOB,
    MAX_TARGETS,
    PENDING,
    RUNNING,
    STOPPED,
    UNKNOWN,
    UNREACHABLE,
    RunStartRequest,
)
from connmgr.durations import boot_time
from connmgr.engine.running import Result
from connmgr.errors import (
    CommandCancelled,
    CommandTimeout,
    ConnmgrError,
    IntegrityError,
    RunEnded,
    Unavailable,
    UnknownRun,
    VaultUnavailable,
)
from connmgr.events import Publish, unheard
from connmgr.facts.gathering import Gatherer
from connmgr.jobs.jobs import Jobs
from connmgr.poller import Poller, Trouble
from connmgr.rights.ground import Ground
from connmgr.runs.author import Author, Authors, RunRights
from connmgr.runs.plan import batch_size
from connmgr.runs.work import FactsOrder, FactsWork, JobOrder, JobWork, ShellWork, TargetEnd, TargetStart, TargetWork
from connmgr.secrets.principals import Access
from connmgr.settings import Settings
from connmgr.shares import Held, MemoryShares, refused
from connmgr.shell.broadcast import Order
from connmgr.shell.commands import command_of
from connmgr.shell.shells import ShellTable
from connmgr.vault import Connection, Vault
from connmgr.vault.runs import TOPIC, BatchOwner, BegunTarget, NewRun, RunStep, StoredRun, TargetOutcome

logger = logging.getLogger("connmgr.runs")

MAX_DRIVERS = 8
"""Runs that a daemon works on at the same time; others wait for their turn, oldest first.

A token has a share of them (:mod:`connmgr.shares`), so that runs without an end keep nobody else's waiting.
"""

TICK_SECONDS = 0.5
"""Interval of looking while runs are under way."""

IDLE_SECONDS = 3.0
"""Interval of looking on PostgreSQL while none is."""

HELP_SECONDS = 1.0
"""Time that a run leaves to the daemons that have the links of its connections, before others open their own."""

REST_SECONDS = 10.0
"""Time for which a daemon keeps its boot when no run is under way."""

GATHER_SECONDS, LAST_SECONDS = 0.02, 0.1
"""Time for further outcomes to come, which are then stored in the same transaction; the second where none waits."""

SHARING_SECONDS = 0.1
"""Longest time for which a daemon leaves batches to others that it has room for."""

RETRY_SECONDS = 0.5
"""Time until another attempt when the database does not answer."""

UNAVAILABLE_SECONDS = 1.0
"""Time until a target begins again that could not because the daemon or its vault had no room for it."""

TIDY_SECONDS = 3600.0

SIZE_SECONDS = 10.0
"""Interval of looking how large the kept outputs are, while runs are under way."""

Recorder = Callable[[StoredRun, Author, Sequence[tuple[str, TargetOutcome]]], None]
"""Records outcomes, with the connection of each, in the audit log."""


class LeaseLapsed(CommandCancelled):
    """This daemon was silent for too long: others may have taken over, so it begins nothing."""


@dataclass
class News:
    """The number of a run's last change as seen from here, and who is to be told of the next one."""

    version: int
    waiting: list[Callable[[], None]] = field(default_factory=list)


class Membership:
    """This daemon's part in the runs of a vault: its boot, under which it owns batches, and its lease.

    On SQLite one process holds the vault, and the lease never ends. On PostgreSQL a lapsed lease is never renewed: the
    daemon takes another boot, for the batches of the old one may be others' since.
    """

    def __init__(self, vault: Vault, name: str, lease: float) -> None:
        self.name = name
        self._vault, self._lease = vault, lease
        self._shared = vault.database.is_shared
        self._ends = 0.0
        self._known: datetime | None = None
        """The last beat, by the clock of the database, which knows of it unless somebody has put it back."""

        self._beaten = self._taken_over = float("-inf")
        self._joining = threading.Lock()
        self.boot = ""

    def join(self) -> str:
        """Take part, if need be with a new boot, and return the boot."""
        with self._joining:
            return self.boot or self._join()

    def rest(self) -> None:
        """Take no part while no run is under way: an idle daemon writes nothing."""
        with self._joining:
            if self._shared:
                self.boot = ""

    def _join(self) -> str:
        boot, sent = f"{self.name}/{secrets.token_hex(6)}", boot_time()
        self._known = self._vault.runs.join(boot, self.name)
        self.boot, self._beaten = boot, sent
        # From before the request was sent: the server cannot have noted an earlier time.
        self._ends = sent + self._lease if self._shared else float("inf")
        return boot

    def owner(self, boot: str) -> BatchOwner:
        """Return this daemon as ``boot``, for a transaction of the vault."""
        return BatchOwner(boot, self.name, self._lease, self._known) if self._shared else BatchOwner(boot, self.name)

    def is_held(self, boot: str) -> bool:
        """Whether this daemon may begin targets as ``boot``."""
        return boot == self.boot and boot_time() < self._ends

    def beat(self) -> None:
        """Renew the lease in time; after it has lapsed, take part anew."""
        if not (self._shared and self.boot and self._known) or boot_time() < self._beaten + self._lease / 3:
            return
        sent = boot_time()
        beaten = self._vault.runs.beat(self.boot, self._lease, self._known) if sent < self._ends else None
        if beaten is not None:
            self._known, self._beaten, self._ends = beaten, sent, sent + self._lease
        else:
            if self._vault.runs.is_put_back(self.boot, self._known):
                # Before it takes part anew: what waits there may have begun.
                self._vault.runs.note_put_back(self._known)
            logger.warning("The lease of this daemon has lapsed; others may go on with what it had claimed of runs.")
            with self._joining:
                self._join()

    def take_over(self) -> None:
        """Free the batches of daemons that are gone, now and then."""
        if boot_time() >= self._taken_over + self._lease / 5:
            self._taken_over = boot_time()
            self._vault.runs.take_over(self.boot, self._lease)


class Runs:
    """Runs, and their threads. Safe to use from several threads.

    ``record`` is called with outcomes that were stored; ``leads_to_host`` says whether a connection does; ``outputs``
    are the shares of memory of what tokens' commands print.
    """

    def __init__(
        self,
        vault: Vault,
        shells: ShellTable,
        jobs: Jobs,
        facts: Gatherer,
        authors: Authors,
        settings: Settings,
        record: Recorder,
        leads_to_host: Callable[[Connection], bool],
        outputs: MemoryShares,
        publish: Publish = unheard,
    ) -> None:
        self._publish = publish
        self._leads_to_host, self._outputs = leads_to_host, outputs
        self._leading_away: dict[str, tuple[tuple[object, ...], bool]] = {}
        """What was found out about connections: from which of their data, and whether they lead to a host."""

        self._states: dict[str, str] = {}
        """The states of the runs under way that were published last."""

        self._first_seen: dict[str, float] = {}
        """When this daemon first saw each of these."""

        self._rests_at = 0.0

        self._vault, self._shells, self._jobs, self._facts = vault, shells, jobs, facts
        self._authors, self._settings, self._record = authors, settings, record
        self.name = settings.daemon_name or socket.gethostname()
        self._membership = Membership(vault, self.name, settings.run_lease)
        self._lock = threading.Lock()
        self._poller = Poller("runs", self._turn, RETRY_SECONDS, logger)
        self._tidies_at = self._sized = float("-inf")
        self.full: set[str] = set()
        """The runs whose further outputs are not kept."""

        self._drivers: dict[str, RunDriver] = {}
        self._access: dict[str, Access] = {}
        """What the senders of runs could open, as they began them."""

        self._submitting = threading.Lock()
        """Held from the storing of a run until its access is here: the thread `runs` may find it in between."""

        self._news: dict[str, News] = {}
        """Of runs under way, and of others for which somebody waits."""

        self._changes = 0
        """How many changes of runs were seen from here."""
        self.changed: Callable[[], object] = lambda: None
        """Called when a run may have ended, by whatever thread; it must not wait."""
        self.ended_targets: Counter[str] = Counter()
        """How many targets have ended here, by their states."""

        vault.announcements.on(TOPIC, self.poke)

    def begin(self) -> None:
        """Go on with the runs that are under way, as the daemon starts."""
        if self._vault.database.is_shared or self._vault.runs.are_under_way():
            self.poke()
        elif self._vault.runs.next_expiry() is not None:
            # Nobody else erases what was to be kept for a time.
            self.poke()

    def poke(self) -> None:
        """Look now what is to be done, in a thread that then lasts as long as the daemon."""
        self._poller.poke()

    def submit(
        self, new: NewRun, access: Access, store: Callable[[NewRun], tuple[str, bool]] | None = None
    ) -> tuple[str, bool]:
        """Store a run and begin it; as :meth:`StoredRuns.submit`. Here it may use what ``access`` opens.

        ``store`` stores it as part of a larger change.
        """
        with self._submitting:
            id, is_new = (store or self._vault.runs.submit)(new)
            if is_new:
                with self._lock:
                    self._access[id] = access
        if is_new:
            with self._lock:
                self._states[id] = PENDING
            self._publish_state(self._vault.runs.get(id))
            self.poke()
        return id, is_new

    def last_homes(self) -> Mapping[str, str]:
        """Return the name of the daemon that had each connection in the last run, and so its link; none on SQLite."""
        return self._vault.runs.last_owners() if self._vault.database.is_shared else {}

    def home_of(self, connection: Connection, last: Mapping[str, str], *, own_secrets: bool) -> tuple[str, bool]:
        """Return the home of a connection's batch, and whether the batch is bound to it; ``last`` are the last homes.

        On another daemon, a connection to the daemon's own machine would be another machine: it is bound to this
        daemon. So is a connection whose secrets only the sender of this request has opened.
        """
        if not self._vault.database.is_shared:
            return "", False
        if own_secrets:
            return self._membership.join(), True
        if not self._leads_away(connection):
            return self.name, True
        is_open = self._shells.surroundings(connection.id) is not None
        # Of another daemon it is not known whether it still has the link; nothing depends on that but speed.
        return last.get(connection.id) or (self.name if is_open else ""), False

    def _leads_away(self, connection: Connection) -> bool:
        """Whether a connection leads to a host, and not to the machine of whichever daemon opens it."""
        # Asking reads ssh_config, which takes half a millisecond: an answer is kept until the connection's row changes.
        data = connection.type, connection.data, connection.dependency_digest
        cached = self._leading_away.get(connection.id)
        if cached is None or cached[0] != data:
            if len(self._leading_away) >= MAX_TARGETS:
                self._leading_away.clear()
            cached = self._leading_away[connection.id] = data, self._leads_to_host(connection)
        return cached[1]

    def pause(self, id: str) -> None:
        """Let a run begin no more targets."""
        self._vault.runs.pause(id)
        self._tell(id)

    def resume(self, id: str) -> None:
        """Let a run go on."""
        self._vault.runs.resume(id)
        self._tell(id)

    def stop(self, id: str, reason: str, *, kill: bool) -> None:
        """Let a run end; with ``kill``, end its commands too."""
        self._vault.runs.stop(id, reason, kill=kill)
        self._tell(id)

    def remove(self, run: StoredRun) -> None:
        """Remove a run that has ended; as :meth:`StoredRuns.remove`."""
        self._vault.runs.remove(run.id)
        self._publish_state(run, "removed")

    def stop_those_of(self, reasons: Mapping[str, ConnmgrError]) -> None:
        """Stop the runs of tokens that have become invalid, each for its reason, and kill their commands."""
        for id in self._vault.runs.of_tokens(reasons):
            run = self._vault.runs.get(id)
            with suppress(RunEnded, UnknownRun):
                self.stop(id, reasons[run.token or ""].message, kill=True)

    def version(self, id: str) -> int:
        """Return a number that changes with a run, as far as it was noticed here."""
        with self._lock:
            return self._news_of(id).version

    def _news_of(self, id: str) -> News:
        # Of a run that is not known here any more, any earlier version is outdated.
        return self._news.get(id) or News(self._changes)

    def subscribe(self, id: str, version: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` once when ``version`` is outdated; return a function that cancels that."""
        with self._lock:
            news = self._news_of(id)
            if news.version == version:
                self._news[id] = news
                news.waiting.append(callback)
                return lambda: self._forget(id, callback)
        callback()
        return lambda: None

    @property
    def active(self) -> int:
        """The number of runs that this daemon works on."""
        with self._lock:
            return len(self._drivers)

    def close(self, timeout: float) -> None:
        """Begin nothing more, wait for what runs, at most about ``timeout`` seconds, and let others go on."""
        # At first without waiting: from here on no turn starts a driver, so the list below has all of them.
        self._poller.close(0.0)
        with self._lock:
            drivers = list(self._drivers.values())
        for driver in drivers:
            driver.close(timeout)
        deadline = time.monotonic() + timeout
        for driver in drivers:
            driver.thread.join(max(0.1, deadline - time.monotonic()) + 1.0)
        self._poller.close(timeout)
        # Last: what a driver stores is stored only while its batches belong to this boot.
        if self._membership.boot:
            try:
                self._vault.runs.leave(self._membership.boot)
                self._membership.boot = ""
            except ConnmgrError as error:
                logger.warning("The runs are not handed over: %s", error.message)

    def _forget(self, id: str, callback: Callable[[], None]) -> None:
        with self._lock:
            if id in self._news and callback in self._news[id].waiting:
                self._news[id].waiting.remove(callback)

    def _tell(self, id: str) -> None:
        """Tell those who wait for a run's news, and the threads that work on it."""
        self._tell_waiting(id)
        with self._lock:
            driver = self._drivers.get(id)
        if driver is not None:
            driver.look()
        self.poke()
        self.changed()

    def _turn(self) -> float | None:
        """Take part in the runs that are under way, and return the seconds until the next turn; None: when poked."""
        if time.monotonic() >= self._tidies_at:
            self._vault.runs.remove_expired()
            self._tidies_at = time.monotonic() + TIDY_SECONDS
        if self.active and time.monotonic() - self._sized > SIZE_SECONDS:
            self._sized = time.monotonic()
            before, self.full = self.full, self._vault.runs.full()
            if self.full:
                self._vault.runs.remove_expired()
            for id in self.full - before:
                logger.warning("What the run %s prints from now on is not kept: the kept outputs are too large.", id)
        shared = self._vault.database.is_shared
        # In this order, as _forget_ended() says: a run that is submitted in between must not count as ended.
        submitted = self._submitted()
        under_way = self._vault.runs.tend()
        if not self.active and not under_way:
            self._forget_ended((), submitted)
            self._publish_states({})
            if not shared:
                return self._until_tidied()
            if time.monotonic() >= self._rests_at:
                self._membership.rest()
                return IDLE_SECONDS
            self._membership.beat()
            return TICK_SECONDS
        self._rests_at = time.monotonic() + REST_SECONDS
        self._membership.beat()
        self._membership.take_over()
        self._look(submitted, under_way)
        return TICK_SECONDS

    def _until_tidied(self) -> float | None:
        """Return after how many seconds to remove runs whose time is over then; None if that of none ever is."""
        left = self._vault.runs.next_expiry()
        if left is None:
            return None
        self._tidies_at = min(self._tidies_at, time.monotonic() + left)
        return max(0.0, self._tidies_at - time.monotonic())

    def _look(self, submitted: Iterable[str], under_way: Mapping[str, tuple[str, bool]]) -> None:
        """Start drivers, and wake those whose run has changed; the arguments as :meth:`_forget_ended` has them."""
        self._forget_ended(under_way, submitted)
        with self._lock:
            for id, driver in self._drivers.items():
                if under_way.get(id, (STOPPED, False))[0] != RUNNING:
                    driver.look()
        self._publish_states({id: state for id, (state, _) in under_way.items()})
        first_seen = self._first_seen = {id: self._first_seen.get(id, time.monotonic()) for id in under_way}
        for id, is_near in self._vault.runs.runs_to_do(self._membership.boot, self.name):
            since = first_seen.setdefault(id, time.monotonic())
            # The daemon at which its targets are at home has their links open, and gets the time to begin them itself.
            if not is_near and time.monotonic() < since + HELP_SECONDS:
                continue
            self._membership.join()
            if id in self._drivers or len(self._drivers) >= MAX_DRIVERS:
                continue
            holder = self._holder_of(id)
            with self._submitting:
                access = self._access.get(id)
            with self._lock:
                holders = [driver.holder for driver in self._drivers.values()]
                # Under the lock with which close() lists the drivers: it would not wait for one that comes later.
                if refused(MAX_DRIVERS, holder, holders) is not None or self._poller.closing.is_set():
                    continue
                driver = RunDriver(self, id, holder, self._membership, access, since + HELP_SECONDS)
                self._drivers[id] = driver
            driver.thread.start()

    def _holder_of(self, id: str) -> str | None:
        try:
            return self._vault.runs.get(id).holder
        except (UnknownRun, IntegrityError):
            # Its driver finds out, and ends it.
            return None

    def _submitted(self) -> list[str]:
        """Return the runs that were begun here and are not forgotten."""
        with self._lock:
            return list(self._access)

    def _forget_ended(self, under_way: Collection[str], submitted: Iterable[str]) -> None:
        """Tell those who wait for runs that are not ``under_way`` any more, and forget what those needed.

        ``submitted`` was read before ``under_way``: a run that was begun in between is in neither.
        """
        with self._lock:
            watched = [id for id, news in self._news.items() if news.waiting and id not in under_way]
            for id in submitted:
                if id not in under_way:
                    self._access.pop(id, None)
        for id in watched:
            self._tell_waiting(id)
        with self._lock:
            gone = [id for id, news in self._news.items() if not news.waiting and id not in under_way]
            for id in gone:
                del self._news[id]

    def _publish_states(self, under_way: Mapping[str, str]) -> None:
        """Publish what has changed since the last look, also by another daemon of the vault."""
        with self._lock:
            before, self._states = self._states, dict(under_way)
        for id in {**before, **under_way}:
            if before.get(id) == under_way.get(id):
                continue
            with suppress(UnknownRun):
                run = self._vault.runs.get(id)
                if run.state != before.get(id):
                    self._publish_state(run)
                if run.state not in ENDED:
                    # It was submitted after the look.
                    with self._lock:
                        self._states[id] = run.state

    def _publish_state(self, run: StoredRun, change: str | None = None) -> None:
        above = tuple(run.spec["lineage"])
        self._publish(RUN, change or run.state, id=run.id, token=run.token, facts=above, state=run.state, name=run.name)

    def _tell_waiting(self, id: str) -> None:
        """Tell those who wait for a run's news."""
        with self._lock:
            self._changes += 1
            news = self._news[id] = News(self._changes, self._news_of(id).waiting)
            waiting, news.waiting = news.waiting, []
        # Without the lock, which a callback that subscribes again takes.
        for callback in waiting:
            callback()

    def _gone(self, driver: RunDriver) -> None:
        with self._lock:
            self._drivers.pop(driver.id, None)
        self._tell(driver.id)


class RunDriver:
    """Works on the batches of one run that this daemon claims, in a thread of its own, until there are none.

    From ``helps_from`` on, by the monotonic clock, it claims some whose home is another daemon.
    """

    def __init__(
        self, runs: Runs, id: str, holder: str | None, membership: Membership, access: Access | None, helps_from: float
    ) -> None:
        self.id, self.holder = id, holder
        self.thread = threading.Thread(target=self._run, name="run", daemon=True)
        self._runs, self._vault, self._authors, self._session = runs, runs._vault, runs._authors, access
        self._membership, self._boot, self._helps_from = membership, membership.boot, helps_from
        self._begun: dict[str, BegunTarget] = {}
        self._closes_at: float | None = None
        self._work: TargetWork | None = None
        self._killed = self._lapsed = False
        self._trouble = Trouble(logger, f"The run {id} waits for the vault", f"The run {id} goes on.")

    def look(self) -> None:
        """Look whether the run was stopped or paused."""
        if (work := self._work) is not None:
            work.wake()

    def close(self, timeout: float) -> None:
        """Begin nothing more, and kill what still runs after ``timeout`` seconds."""
        self._closes_at = time.monotonic() + timeout
        self.look()

    def _run(self) -> None:
        try:
            self._drive()
        except (UnknownRun, RunEnded):
            logger.info("The run %s is over.", self.id)
        except ConnmgrError as error:
            self._give_up(error)
        except Exception:
            logger.exception("The run %s could not go on.", self.id)
            self._give_up(None)
        finally:
            self._runs._gone(self)

    def _give_up(self, error: ConnmgrError | None) -> None:
        """Stop the run as failed, and its begun targets as unknown; while the vault is away, only say so."""
        if isinstance(error, VaultUnavailable):
            self._trouble.note(error.message)
            return
        reason = "It could not go on; the daemon's log says more." if error is None else error.message
        lost = [
            TargetOutcome(n=target.n, epoch=target.epoch, state=UNKNOWN, error={"code": "internal", "message": reason})
            for target in self._begun.values()
        ]
        try:
            # In this order: while it is stopping, no other daemon begins the targets that are stored as unknown here.
            self._vault.runs.stop(self.id, reason, kill=True, ends=FAILED)
            self._vault.runs.step(self.id, self._membership.owner(self._boot), lost, 0, batch=1)
        except ConnmgrError as further:
            logger.warning("The run %s is not stopped: %s", self.id, further.message)

    def _drive(self) -> None:
        run = self._vault.runs.get(self.id)
        self._run_row, self._selection = run, self._vault.runs.selection(self.id)
        self._batch = batch_size(len(self._selection), shared=self._vault.database.is_shared)
        self._author = self._authors.of(run, self._session)
        self._access = self._author.access
        self._author.require_valid()
        work = self._work = self._work_of(run)
        with work.open():
            outcomes: list[TargetOutcome] = []
            while True:
                step = self._step(outcomes, run.parallel - len(self._begun) + len(outcomes))
                if step is None:
                    return
                if self._closes_at is None:
                    work.settle([outcome.job for outcome in outcomes if outcome.job is not None])
                outcomes = []
                work.feed([self._start_of(target) for target in step.begun])
                if self._closes_at is not None and run.spec["as"] == JOB:
                    # The jobs run on, and whoever continues the run finds them.
                    return
                if step.kills and not self._killed:
                    self._killed = True
                    work.kill((step.reason or "The run was stopped").removesuffix("."))
                if not self._begun and not self._goes_on(step):
                    return
                outcomes = self._gathered(work, step)

    def _goes_on(self, step: RunStep) -> bool:
        """Whether something may be begun soon by this thread, where nothing runs now."""
        return step.state == RUNNING and step.has_work and self._closes_at is None and not self._lapsed

    def _step(self, outcomes: list[TargetOutcome], room: int) -> RunStep | None:
        """Store and begin in one transaction, waiting for the database if need be; None if the lease has lapsed.

        What had begun before that is stored even so: if others have taken over, the epoch says so, and nothing changes.
        """
        while True:
            has_lease = self._membership.is_held(self._boot)
            if not has_lease and not self._lapsed:
                self._lapsed = True
                why = "is stopping" if self._closes_at is not None else "was silent for too long"
                logger.warning("The run %s goes on without this daemon, which %s.", self.id, why)
            if self._lapsed and not self._begun:
                return None
            if self._closes_at is not None or not has_lease or self._killed:
                room = 0
            try:
                helps = time.monotonic() >= self._helps_from
                owner = self._membership.owner(self._boot)
                step = self._vault.runs.step(self.id, owner, outcomes, room, batch=self._batch, helps=helps)
            except VaultUnavailable as error:
                if self._closes_at is not None:
                    raise
                self._trouble.note(error.message)
                self._runs._poller.closing.wait(RETRY_SECONDS)
                continue
            self._trouble.end()
            for outcome in outcomes:
                # Not before: those of a run that is given up are unknown.
                del self._begun[self._selection[outcome.n]]
            if outcomes:
                self._runs.ended_targets.update(outcome.state for outcome in outcomes)
                named = [(self._selection[outcome.n], outcome) for outcome in outcomes]
                self._runs._record(self._run_row, self._author, named)
            if step.state in ENDED:
                self._runs._tell_waiting(self.id)
            self._begun |= {self._selection[target.n]: target for target in step.begun}
            return step

    def _start_of(self, target: BegunTarget) -> TargetStart:
        return TargetStart(self._selection[target.n], f"run:{self.id}:{target.n}:{target.tries}")

    def _gathered(self, work: TargetWork, step: RunStep) -> list[TargetOutcome]:
        """Return the outcomes of the next targets that end, as soon as there are some."""
        seconds = SHARING_SECONDS if step.leaves else TICK_SECONDS
        if not self._begun:
            # Nothing runs: targets wait for another try, or other daemons have all that may run at a time.
            seconds = min(seconds, TICK_SECONDS / 5 if step.wait is None else step.wait + 0.01)
        if self._closes_at is not None:
            if time.monotonic() >= self._closes_at and not self._killed:
                self._killed = True
                work.kill("The daemon stops")
            seconds = 0.1
        ended = work.take(seconds)
        if ended:
            # One transaction for many: each costs an fsync, and much of what runs at a time ends at about this time.
            left = len(self._begun) - len(ended)
            if left:
                ended += work.take(GATHER_SECONDS if step.is_full else LAST_SECONDS, left)
        return [self._outcome(self._begun[target.connection], target) for target in ended]

    def _outcome(self, begun: BegunTarget, ended: TargetEnd) -> TargetOutcome:
        spec, state, result = self._run_row.spec, ended.state, ended.result
        printed, error = None, None
        if isinstance(result, Result | CommandTimeout):
            printed = self._printed(result.stdout, result.stderr, truncated=result.truncated)
        if not isinstance(result, Result):
            error = self._shown(result)
        again, counts = None, True
        if state in (FAILED, UNREACHABLE) and begun.tries <= spec["retries"] and not self._killed:
            again = float(spec["retryDelay"])
        elif state == STOPPED and (self._closes_at is not None or isinstance(result, LeaseLapsed)):
            # It was marked as begun, and nothing was sent, because the daemon stops or was silent for too long. If
            # another has taken over, this changes nothing; else it must not end here, for nobody has stopped the run.
            again, counts = 0.0, False
        if isinstance(result, Unavailable) and not ended.was_sent and not self._killed:
            # The vault's server was away, or the daemon had no room: that is not the target's fault.
            again, counts = UNAVAILABLE_SECONDS, False
        return TargetOutcome(
            n=begun.n,
            epoch=begun.epoch,
            state=state,
            exit_code=result.exit_code if isinstance(result, Result) else None,
            seconds=ended.seconds,
            printed=printed,
            error=error,
            job=ended.job,
            again=again,
            counts=counts,
        )

    def _printed(
        self, stdout: bytes | bytearray, stderr: bytes | bytearray, *, truncated: bool
    ) -> tuple[bytes, bytes] | None:
        most = self._runs._settings.run_output
        if self.id in self._runs.full and (stdout or stderr):
            # Told as cut off; each target's outcome is kept.
            return self._vault.runs.sealed_output(b"", b"", truncated=True)
        cut = truncated or len(stdout) > most or len(stderr) > most
        return self._vault.runs.sealed_output(bytes(stdout[-most:]), bytes(stderr[-most:]), truncated=cut)

    def _shown(self, error: BaseException) -> Mapping[str, Any]:
        if not isinstance(error, ConnmgrError):
            logger.error("Unforeseen %s in the run %s", type(error).__name__, self.id, exc_info=error)
            return {"code": "internal", "message": "An internal error occurred; the daemon's log says more."}
        return {"code": error.code, "message": self._authors.told(self._author, error).message}

    def _work_of(self, run: StoredRun) -> TargetWork:
        runs, spec, content = self._runs, run.spec, self._vault.runs.content(run)
        request = RunStartRequest.read(content["request"])
        grounds = {ground["connection"]: Ground.loaded(ground) for ground in content["grounds"]}
        rights = self._authors.rights_of(run, self._author, content)
        if request.facts is not None:
            facts = FactsOrder(request.facts, spec["timeout"], run.parallel, self._admits(rights))
            return FactsWork(runs._facts, self._access, facts)
        # What is in memory at a time is counted until it is stored, as the outputs of requests are until they are sent.
        memory = None if self.holder is None else partial(Held, runs._outputs, self.holder)
        command = command_of(request, self._author.name, self._author.grant, request.send_env, memory)
        if spec["as"] == JOB:
            job = JobOrder(
                command,
                spec["timeout"],
                run.parallel,
                request.session,
                run.name,
                run.token,
                grounds,
                self._admits(rights),
                runs._settings.run_output,
                runs._settings.job_output,
            )
            return JobWork(self._vault, runs._shells, runs._jobs, self._access, job)
        order = Order(
            command,
            spec["timeout"],
            run.parallel,
            True,
            request.session,
            request.fresh,
            grounds,
            self._admits(rights),
        )
        return ShellWork(self._vault, runs._shells, self._access, order)

    def _admits(self, rights: RunRights) -> Callable[[str], None]:
        def admits(connection: str) -> None:
            # The last look before a command is sent: a daemon that was frozen wakes here.
            if not self._membership.is_held(self._boot):
                raise LeaseLapsed("This daemon was silent for too long; others may have begun this target.")
            if self._closes_at is not None:
                raise CommandCancelled("The daemon stops.")
            rights.require(connection)

        return admits
