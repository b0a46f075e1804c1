"""How the targets of a run are worked on: in the open shells of connections, as jobs with keys, or asked for facts.

All ways have the same few methods (:class:`TargetWork`). None knows the vault's rows of runs:
:mod:`connmgr.runs.runs` says what begins, and stores what comes out.
"""

from __future__ import annotations

import abc
import contextlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from connmgr import errors
from connmgr.cancellation import Cancellation
from connmgr.contract.run import DONE, FAILED, STOPPED, UNKNOWN, UNREACHABLE
from connmgr.engine.envelope import Command
from connmgr.engine.running import Result
from connmgr.facts.gathering import Gatherer
from connmgr.jobs.jobs import JobOutput, Jobs
from connmgr.jobs.launch import Launch
from connmgr.jobs.remote import RemoteJobs
from connmgr.plugin import Deadline
from connmgr.rights.ground import Ground
from connmgr.secrets.principals import Access
from connmgr.shell.broadcast import Broadcast, Order, Outcomes
from connmgr.shell.commands import state_of
from connmgr.shell.shells import ShellTable
from connmgr.vault import Connection, Vault
from connmgr.vault.jobs import STARTING, StoredJob
from connmgr.vault.schema import now

REFUSED = (
    errors.UnknownConnection,
    errors.UnknownType,
    errors.SecretLocked,
    errors.IntegrityError,
    errors.RequestError,
)
"""Errors that are not about reaching a machine: nothing was sent, and another try would not help."""

JOB_KEEP_SECONDS = 7 * 86400
"""A job is kept so long whose outcome its run has not stored, or that two daemons may have started."""

LOOK_SECONDS = 60.0
"""Longest wait for a job's news before it is looked at anyway."""

KILL_GRACE_SECONDS = 5.0

RETRY_SECONDS = 0.5
"""Time until another attempt while the vault's database does not answer, or the daemon has no room."""

FED_FIRST = 100
"""Connections whose shells are looked up before those of others, where many begin at a time."""

Done = TypeVar("Done")


class TargetStart(NamedTuple):
    """A target to begin: its connection, and the key of its job, if it is to be one."""

    connection: str
    key: str


class TargetEnd(NamedTuple):
    """What became of the command on one connection; ``sent`` says whether any of it may have been sent."""

    connection: str
    seconds: float
    result: Result | BaseException
    sent: bool
    job: str | None = None

    @property
    def was_sent(self) -> bool:
        """Whether the command may have run."""
        return self.sent and not (isinstance(self.result, errors.ShellLost) and not self.result.sent)

    @property
    def state(self) -> str:
        """The state of the target."""
        if isinstance(self.result, Result):
            return FAILED if self.result.exit_code else DONE
        if not self.was_sent:
            if isinstance(self.result, errors.CommandCancelled):
                return STOPPED
            return FAILED if isinstance(self.result, REFUSED) else UNREACHABLE
        # It has run, and what became of it is known; or the link was lost meanwhile.
        definite = (errors.CommandTimeout, errors.CommandCancelled, errors.RequestError)
        return FAILED if isinstance(self.result, definite) else UNKNOWN


class TargetWork(Protocol):
    """Works on the targets that are fed, while it is open."""

    def open(self) -> AbstractContextManager[None]:
        """Work until the context ends; then kill the commands that still run."""

    def feed(self, targets: Collection[TargetStart]) -> None:
        """Begin on ``targets``."""

    def take(self, seconds: float, least: int = 1) -> list[TargetEnd]:
        """Return targets that have ended; as :meth:`connmgr.shell.broadcast.Outcomes.take`."""

    def settle(self, jobs: Collection[str]) -> None:
        """Remove those of ``jobs``, of targets whose outcomes are stored, that nobody needs any more."""

    def wake(self) -> None:
        """Let :meth:`take` return."""

    def kill(self, reason: str) -> None:
        """Kill what runs, and begin nothing more; all outcomes follow, and begin with ``reason``."""


class ShellWork:
    """Runs the command in the open shells of connections, and starts missing ones."""

    def __init__(self, vault: Vault, shells: ShellTable, access: Access, order: Order) -> None:
        self._vault, self._shells, self._access = vault, shells, access
        self._admits = order.admits
        self._sent = set[str]()
        self._order = replace(order, admits=self._admit)
        self._broadcast = Broadcast(shells, access, self._order, (), ())

    def open(self) -> AbstractContextManager[None]:
        return self._broadcast.open()

    def feed(self, targets: Collection[TargetStart]) -> None:
        if not targets:
            return
        ids = [target.connection for target in targets]
        # In one transaction, because each costs an fsync; the use of each shell would make its own.
        self._vault.connections.touch(*ids)
        # The first commands run while the shells of the other connections are looked up.
        for batch in filter(None, (ids[:FED_FIRST], ids[FED_FIRST:])):
            ready = set[str]() if self._order.fresh else self._ready(batch)
            self._broadcast.feed([id for id in batch if id in ready], [id for id in batch if id not in ready])

    def _ready(self, ids: Collection[str]) -> set[str]:
        """Return the connections whose shells run, and can be used at once."""
        access, session = self._access, self._order.session
        known = self._shells.lately_admitted(ids, access, session)
        try:
            rows = self._vault.connections.each([id for id in ids if id not in known]).values()
            sound = [row for row in rows if isinstance(row, Connection)]
            return known | {row.id for row in self._shells.admitted(sound, access, session)}
        except errors.VaultUnavailable:
            # The targets have begun in the vault, so each must have an outcome: the thread of each finds out.
            return known

    def take(self, seconds: float, least: int = 1) -> list[TargetEnd]:
        ended = self._broadcast.take(seconds, least)
        return [
            TargetEnd(outcome.connection, outcome.seconds, outcome.result, self._was_sent(outcome.connection))
            for outcome in ended
        ]

    def settle(self, jobs: Collection[str]) -> None:
        """Do nothing: there are no jobs."""

    def wake(self) -> None:
        self._broadcast.wake()

    def kill(self, reason: str) -> None:
        self._broadcast.kill(reason)

    def _admit(self, connection: str) -> None:
        """Called when the command is about to be sent."""
        if self._admits is not None:
            self._admits(connection)
        self._sent.add(connection)

    def _was_sent(self, connection: str) -> bool:
        sent = connection in self._sent
        self._sent.discard(connection)
        return sent


@dataclass(frozen=True)
class FactsOrder:
    """The parts of facts to gather about each machine, all if empty: at most ``parallel`` machines at a time."""

    parts: Collection[str]
    timeout: float
    parallel: int
    admits: Callable[[str], None]


@dataclass(frozen=True)
class JobOrder:
    """A command to run as a job on each connection: at most ``parallel`` at a time, of ``token``, called ``name``."""

    command: Command
    timeout: float
    parallel: int
    session: str | None
    name: str | None
    token: str | None
    grounds: Mapping[str, Ground]
    admits: Callable[[str], None]
    most_output: int
    cap: int


class PooledWork(abc.ABC):
    """Works on each target in a thread of its own, at most ``parallel`` at a time, by :meth:`_outcome`."""

    def __init__(self, parallel: int, name: str) -> None:
        self._parallel, self._name = parallel, name
        self._cancellation = Cancellation()
        self._closing = threading.Event()
        self._outcomes = Outcomes[TargetEnd]()

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        self._pool = ThreadPoolExecutor(self._parallel, self._name)
        try:
            yield
        finally:
            # Jobs run on: whoever continues the run finds them by their keys.
            self._closing.set()
            self._cancellation.cancel("The daemon stops")
            self._pool.shutdown()

    def feed(self, targets: Collection[TargetStart]) -> None:
        for target in targets:
            self._pool.submit(self._run, target)

    def take(self, seconds: float, least: int = 1) -> list[TargetEnd]:
        return self._outcomes.take(seconds, least)

    def wake(self) -> None:
        self._outcomes.wake()

    def kill(self, reason: str) -> None:
        self._cancellation.cancel(reason)

    def _run(self, target: TargetStart) -> None:
        at = time.monotonic()
        result, sent, job = self._outcome(target)
        if self._closing.is_set() and not isinstance(result, Result):
            return
        self._outcomes.put([TargetEnd(target.connection, time.monotonic() - at, result, sent, job)])

    @abc.abstractmethod
    def _outcome(self, target: TargetStart) -> tuple[Result | BaseException, bool, str | None]:
        """Return what became of a target, whether any of it may have been sent, and its job."""


class FactsWork(PooledWork):
    """Gathers facts about the machine of each connection; nothing is changed there."""

    def __init__(self, facts: Gatherer, access: Access, order: FactsOrder) -> None:
        super().__init__(order.parallel, "run-facts")
        self._facts, self._access, self._order = facts, access, order
        self._parts = facts.chosen(order.parts or None)

    def settle(self, jobs: Collection[str]) -> None:
        """Do nothing: there are no jobs."""

    def _outcome(self, target: TargetStart) -> tuple[Result | BaseException, bool, str | None]:
        try:
            self._cancellation.require()
            self._order.admits(target.connection)
            gathered = self._facts.one(
                target.connection, self._parts, self._access, self._order.timeout, self._cancellation
            )
        except BaseException as error:  # noqa: BLE001 - a plugin may raise anything, and it is the target's outcome
            return error, False, None
        if isinstance(gathered.error, errors.FactsFailed):
            return Result(1, b"", gathered.error.message.encode(), False), True, None
        if gathered.error is not None:
            return gathered.error, False, None
        return Result(0, f"{gathered.facts} facts".encode(), b"", False), True, None


class JobWork(PooledWork):
    """Runs the command as a job with a key on each connection.

    If a job with the key exists, because a daemon that is gone has started it, that one is waited for. A thread waits
    for each job: one that ends at once would not need a job.
    """

    def __init__(self, vault: Vault, shells: ShellTable, jobs: Jobs, access: Access, order: JobOrder) -> None:
        super().__init__(order.parallel, "run-job")
        self._vault, self._shells, self._jobs, self._access, self._order = vault, shells, jobs, access, order

    def _outcome(self, target: TargetStart) -> tuple[Result | BaseException, bool, str | None]:
        sent, job, former = False, None, None
        try:
            self._cancellation.require()
            self._order.admits(target.connection)
            former = self._patiently(lambda: self._vault.jobs.of_key(target.connection, target.key))
            sent = True
            if former is not None and former.state != STARTING:
                # Whether its machine can be reached now or not: it runs there, or has run.
                job = former.id
            else:
                job = self._patiently(lambda: self._start(target))
            return self._end(job), sent, job
        except BaseException as error:  # noqa: BLE001 - a plugin may raise anything, and it is the target's outcome
            if job is None:
                # The key finds out whether it was started, if the run goes on elsewhere; here, the link's end leaves
                # that open, and so does a machine that is away since a former daemon asked it to start the job.
                lost = isinstance(error, errors.ShellLost | errors.TransferFailed)
                away = former is not None and not isinstance(error, errors.CommandCancelled | errors.Unavailable)
                sent = sent and (lost or away)
            return error, sent, job

    def settle(self, jobs: Collection[str]) -> None:
        for job in jobs:
            self._pool.submit(self._remove, job)

    def _remove(self, job: str) -> None:
        # If that fails, the job is removed when its machine can be reached: it is kept for no time after its end.
        with contextlib.suppress(errors.ConnmgrError):
            if not self._vault.jobs.get(job).keep:
                self._jobs.remove(job, self._access, force=False)

    def _start(self, target: TargetStart) -> str:
        """Start the job of a target, or find it, and return its id."""
        self._cancellation.require()
        order, connection = self._order, target.connection
        stored = StoredJob(
            id=str(uuid.uuid4()),
            connection=connection,
            session=order.session,
            name=order.name,
            key=target.key,
            command=json.dumps(
                [word.decode() for word in order.command.argv] or order.command.text.decode(errors="replace")
            ),
            stdin_open=False,
            keep=JOB_KEEP_SECONDS,
            created=now(),
            token=order.token,
        )
        self._shells.start(connection, self._access, order.session, self._cancellation)
        # Again, because opening a link takes a while, in which others may have taken over.
        order.admits(connection)
        with self._shells.using(connection, self._access, order.session) as session:
            ground = order.grounds.get(connection)
            surroundings = session.surroundings
            if ground is not None:
                ground.require(session.connection_digest, state_of(surroundings))
            launch = Launch(
                id=stored.id,
                text=order.command.text or None,
                argv=order.command.argv,
                surroundings=surroundings,
                cwd=order.command.directory,
                environment={
                    **session.environment.select(order.command.sent or {}),
                    **(order.command.environment or {}),
                },
                stdin=order.command.stdin,
                timeout=order.timeout,
                cap=order.cap,
                sandbox=order.command.sandbox,
            )
            beside = RemoteJobs(session.transport, session.helpers)
            return self._jobs.start(stored, launch, beside, self._cancellation)[0].id

    def _patiently(self, work: Callable[[], Done]) -> Done:
        """Return the result of ``work``, tried again while there is no room for it, or the vault is away.

        The job's key makes that safe. A run that is stopped waits for room to kill its job, but not for the vault.
        """
        while True:
            try:
                return work()
            except errors.Unavailable as error:
                ends = self._cancellation.cancelled and isinstance(error, errors.VaultUnavailable)
                if self._closing.wait(RETRY_SECONDS) or ends:
                    raise

    def _end(self, job: str) -> Result:
        """Wait for a job's end, and return its outcome.

        The job stays until that is stored: whoever continues the run before finds it by its key.
        """
        while not (seen := self._patiently(lambda: self._jobs.look(job, self._access))).over:
            if self._closing.is_set():
                raise errors.CommandCancelled("The daemon stops; the job runs on.")
            if self._cancellation.cancelled:
                # The next round tries again.
                with contextlib.suppress(errors.JobFinished, errors.Unavailable):
                    self._jobs.kill(job, self._access, "TERM", KILL_GRACE_SECONDS)
            news = threading.Event()
            since = seen.last.version
            cancel = self._patiently(partial(self._jobs.subscribe, job, self._access, since, news.set))
            try:
                with self._cancellation.waking(news.set):
                    news.wait(KILL_GRACE_SECONDS if self._cancellation.cancelled else LOOK_SECONDS)
            finally:
                cancel()
        stored = seen.stored
        memory = None if self._order.command.memory is None else self._order.command.memory()
        has_room = memory is None or memory.take(2 * self._order.most_output)
        try:
            stdout, stderr, truncated = self._printed(job) if has_room else (b"", b"", True)
        except errors.OutputGone:
            # It was removed on its machine. How the job ended is known.
            stdout, stderr, truncated = b"", b"", True
            if stored.exit_code is None:
                raise
        self._patiently(lambda: self._jobs.reported(job))
        if stored.state == "timed_out":
            text = f"The command ran longer than {self._order.timeout:g} s and was killed."
            raise errors.CommandTimeout(text, stdout, stderr, truncated=truncated, memory=memory)
        if stored.state == "killed" and self._cancellation.cancelled:
            raise errors.CommandCancelled(f"{self._cancellation.reason}; the job was killed.")
        if stored.exit_code is None:
            raise errors.ShellLost("The job's machine was restarted, or what it printed was removed there.")
        return Result(stored.exit_code, stdout, stderr, truncated, memory)

    def _printed(self, job: str) -> tuple[bytes, bytes, bool]:
        """Return what a job that has ended has printed, from the end if it is long, and whether more was printed."""
        most = self._order.most_output
        read = self._read(job, 0, 0)
        sizes = (0, 0) if read.seen is None else (read.seen.stdout.size, read.seen.stderr.size)
        if max(sizes) > most:
            read = self._read(job, *(max(0, size - most) for size in sizes))
        is_whole = not read.stale and (len(read.stdout), len(read.stderr)) == sizes
        return read.stdout, read.stderr, not is_whole

    def _read(self, job: str, stdout: int, stderr: int) -> JobOutput:
        """Read a job's output from the offsets on; if its machine is away, for :data:`LOOK_SECONDS`, again."""
        deadline = Deadline(LOOK_SECONDS)
        while True:
            read = self._patiently(
                lambda: self._jobs.output(job, self._access, stdout, stderr, self._order.most_output)
            )
            if not read.stale or not deadline.left():
                return read
            if self._closing.wait(RETRY_SECONDS):
                raise errors.CommandCancelled("The daemon stops; what the job has printed is read later.")
            if self._cancellation.cancelled:
                return read
