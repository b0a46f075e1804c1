"""The jobs of all connections: started, read, fed, killed and removed, over any link to their machine.

The vault has a row for each job, so that every daemon of the vault finds it. A :class:`CachedJob` has the state that
this daemon has last seen, and wakes the clients that wait for news of the job. A :class:`JobWatch` asks the remote host
while any client waits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from connmgr import errors
from connmgr.cancellation import NEVER, Cancellation
from connmgr.contract.event import JOB, WAITING
from connmgr.engine.waiting import SILENT_SECONDS, Lull, WaitingWork
from connmgr.errors import Busy
from connmgr.events import Publish, unheard
from connmgr.jobs.launch import Launch
from connmgr.jobs.remote import UNREACHABLE, RemoteHosts, RemoteJob, RemoteJobs
from connmgr.plugin import Deadline
from connmgr.secrets.principals import Access
from connmgr.vault import Vault
from connmgr.vault.jobs import ENDED, RUNNING, STARTING, UNDER_WAY, StoredJob
from connmgr.vault.names import base_of
from connmgr.vault.schema import now

logger = logging.getLogger("connmgr.jobs")

READ_SECONDS = 30.0
"""Longest wait of a request for another request that reads the same job."""

FRESH_SECONDS = 0.05
"""Age up to which a cached state is returned without asking the remote host."""

CURRENT_SECONDS = 1.0
"""Time for which another daemon's changes of a job's row may go unnoticed."""

CALL_SECONDS = 30.0
"""Longest time of one call to a remote host."""

BEGIN_WITHIN = timedelta(minutes=1)
"""Time after the request within which a missing job may still begin."""

COUNTED_SECONDS = 1.0
"""Time for which a count of the jobs under way is reused, while it is far below the limit."""

GONE = "gone"
LOST = "lost"

LEAST_SECONDS, LONGEST_SECONDS = 0.01, 0.25
"""Shortest and longest interval of asking: after news or for a new waiter, and after a long time without news."""

UNREACHABLE_SECONDS = 1.0
"""Interval at which a remote host that did not answer is asked again."""


@dataclass(frozen=True)
class JobLimits:
    """Most jobs under way on one connection, and in the vault."""

    of_connection: int
    in_all: int


@dataclass(frozen=True)
class JobOutput:
    """The output of a job from two offsets on, in bytes, and the job's state at that time.

    ``directory`` is where its command ended: b"" if the job does not record it, None if it was not read.
    """

    seen: RemoteJob | None
    stale: bool
    version: int
    stdout_offset: int = 0
    stdout: bytes = b""
    stderr_offset: int = 0
    stderr: bytes = b""
    directory: bytes | None = None


class CachedJob:
    """The state of one job as last seen. Safe to use from several threads."""

    def __init__(self, stored: StoredJob) -> None:
        self.stored = stored
        self.is_started = False
        """Whether this daemon has started it on the remote host."""
        self._used = time.monotonic()
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._waiting: dict[int, Callable[[], None]] = {}
        self._numbers = 0
        self._seen_at = float("-inf")
        self._last = JobOutput(None, stale=False, version=0)
        self.lull = Lull()

    @property
    def last(self) -> JobOutput:
        """The output that was read last."""
        return self._last

    def use(self, stored: StoredJob) -> None:
        """Store the job's current row."""
        self.stored, self._used = stored, time.monotonic()

    def is_current(self, seconds: float) -> bool:
        """Whether the row was read within ``seconds``."""
        return time.monotonic() - self._used < seconds

    def is_used(self, seconds: float) -> bool:
        """Whether a caller waits for the job, or has asked for it within ``seconds``."""
        return self.waiting or self.is_current(seconds)

    def is_fresh(self, seconds: float) -> bool:
        """Whether the remote host was seen within ``seconds``."""
        return time.monotonic() - self._seen_at < seconds

    def outdate(self) -> None:
        """Make the next request ask the remote host."""
        self._seen_at = float("-inf")

    @property
    def over(self) -> bool:
        """Whether the job has ended, and its output is complete."""
        last = self._last.seen
        return self.stored.state in ENDED and (last is None or (last.stdout.ended and last.stderr.ended))

    @property
    def waiting(self) -> bool:
        """Whether a client waits for news."""
        return bool(self._waiting)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Be the only reader of the remote host; other callers that want the same meanwhile share the result.

        :raises Busy: other readers take too long.
        """
        if not self._reading.acquire(timeout=READ_SECONDS):
            raise Busy("The remote host is slow to answer other requests for this job; try again.")
        try:
            yield
        finally:
            self._reading.release()

    def moved_on(self, remote_job: RemoteJob) -> RemoteJob:
        """Return ``remote_job``, with what the job was known to wait for, if it has printed nothing since."""
        before = self._last.seen
        if before is None and self.stored.created + timedelta(seconds=SILENT_SECONDS) < now():
            # Older than this daemon's knowledge of it, and so perhaps silent for long.
            self.lull = Lull(_progress(remote_job), float("-inf"))
        still = self.lull.note(_progress(remote_job))
        waiting = before.waiting if still and before is not None and remote_job.state == RUNNING else None
        return replace(remote_job, waiting=waiting)

    def went_on(self) -> bool:
        """Note that the job got input; return whether it was known to wait for that."""
        self.lull.stir()
        with self._lock:
            last = self._last
            if last.seen is None or last.seen.waiting is None:
                return False
            self._last = replace(last, seen=replace(last.seen, waiting=None), version=last.version + 1)
            callbacks = self._take_waiting()
        for callback in callbacks:
            callback()
        return True

    def cached_output(self, stdout_offset: int, stderr_offset: int, fresh_seconds: float) -> JobOutput | None:
        """Return the cached output from these offsets on, or None if the remote host must be asked."""
        last = self._last
        if last.seen is None or not self.is_fresh(fresh_seconds):
            return None
        if last.seen.state == "exited" and last.directory is None:
            return None
        if (stdout_offset, stderr_offset) == (last.stdout_offset, last.stderr_offset) and (last.stdout or last.stderr):
            return last
        if (stdout_offset, stderr_offset) == (last.seen.stdout.size, last.seen.stderr.size):
            return replace(last, stdout_offset=stdout_offset, stdout=b"", stderr_offset=stderr_offset, stderr=b"")
        return None

    def publish(
        self,
        remote_job: RemoteJob,
        stdout_offset: int = 0,
        stdout: bytes = b"",
        stderr_offset: int = 0,
        stderr: bytes = b"",
        directory: bytes | None = None,
        *,
        stirs: int | None = None,
        tell: Callable[[str], object] = lambda _: None,
    ) -> JobOutput:
        """Store the seen state of the job, notify the waiters of news, and ``tell`` if it waits or goes on.

        ``stirs`` is how often it had moved before a look at what it waits for.
        """
        with self._lock:
            if stirs not in (None, self.lull.stirs):
                # It has got input meanwhile, perhaps what it waited for.
                remote_job = replace(remote_job, waiting=None)
            before = self._last
            version = before.version + (remote_job != before.seen or before.stale)
            now = JobOutput(remote_job, False, version, stdout_offset, stdout, stderr_offset, stderr, directory)
            if stdout or stderr or version != before.version:
                # Otherwise the earlier output still serves other callers.
                self._last = now
            self._seen_at = time.monotonic()
            callbacks = self._take_waiting() if version != before.version else []
            waited = before.seen is not None and before.seen.waiting is not None
        if remote_job.state == RUNNING and waited != (remote_job.waiting is not None):
            tell(RUNNING if waited else WAITING)
        for callback in callbacks:
            callback()
        return now

    def unreachable(self, stdout_offset: int = 0, stderr_offset: int = 0) -> JobOutput:
        """Mark the last seen state as stale: the remote host is unreachable. Return its output from these offsets."""
        with self._lock:
            last = self._last = replace(self._last, stale=True, version=self._last.version + (not self._last.stale))
        if (stdout_offset, stderr_offset) == (last.stdout_offset, last.stderr_offset):
            return last
        return JobOutput(last.seen, True, last.version, stdout_offset, b"", stderr_offset, b"")

    def subscribe(self, version: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` once when ``version`` is outdated; return a function that cancels that."""
        # The version is compared under the lock under which publish() raises it: news between the caller's answer and
        # this call would otherwise wake nobody.
        with self._lock:
            if self._last.version == version:
                self._numbers += 1
                number = self._numbers
                self._waiting[number] = callback
                return lambda: self._forget(number)
        callback()
        return lambda: None

    def tell_all(self) -> None:
        """Call all waiters."""
        with self._lock:
            callbacks = self._take_waiting()
        for callback in callbacks:
            callback()

    def _take_waiting(self) -> list[Callable[[], None]]:
        callbacks, self._waiting = list(self._waiting.values()), {}
        return callbacks

    def _forget(self, number: int) -> None:
        with self._lock:
            self._waiting.pop(number, None)


class Jobs:
    """The jobs of the vault. Safe to use from several threads.

    A request holds a ``slot`` while a link is opened for it, or the remote host answers.
    """

    def __init__(
        self,
        vault: Vault,
        hosts: RemoteHosts,
        limits: JobLimits,
        slot: Callable[[], AbstractContextManager[None]],
        publish: Publish = unheard,
    ) -> None:
        self._publish = publish
        self._vault = vault
        self._hosts = hosts
        self._limits = limits
        self._slot = slot
        self._lock = threading.Lock()
        self._cached: dict[str, CachedJob] = {}
        self._watches: dict[str, JobWatch] = {}
        self._access: dict[str, Access] = {}
        self._starting: set[str] = set()
        self._room = ("", 0, 0.0)
        """The connection that was counted last, how many more jobs may start there uncounted, and until when."""
        self._of_tokens = 0
        """The number of jobs of tokens that are being started."""

        self._unreported: dict[str, tuple[float, StoredJob]] = {}
        """The jobs whose end this daemon was the first to see, and when; no request has reported it yet."""

    def find(self, id: str) -> CachedJob:
        """Return the cached state of a job, with its row at most a second old.

        :raises connmgr.errors.UnknownJob: there is no such job.
        """
        with self._lock:
            cached = self._cached.get(id)
        if cached is not None and cached.is_current(CURRENT_SECONDS):
            return cached
        try:
            return self.cache(self._vault.jobs.get(id))
        except errors.UnknownJob:
            with self._lock:
                self._cached.pop(id, None)
            raise

    def cache(self, stored: StoredJob) -> CachedJob:
        """Return the cached state of a job whose current row is ``stored``."""
        with self._lock:
            cached = self._cached.setdefault(stored.id, CachedJob(stored))
        cached.use(stored)
        return cached

    def seen(self, remote: RemoteJobs, id: str) -> RemoteJob:
        """Return a job's current state on the remote host, without notifying the waiters."""
        return next(iter(remote.look([remote_name(id)], CALL_SECONDS).values()))

    def waiting(self, job: StoredJob) -> WaitingWork | None:
        """Return what a job was last seen to wait for."""
        with self._lock:
            cached = self._cached.get(job.id)
        last = None if cached is None or job.state != RUNNING else cached.last.seen
        return None if last is None else last.waiting

    @property
    def starting(self) -> frozenset[str]:
        """The jobs that are being started; the remote host may have them before the vault does."""
        with self._lock:
            return frozenset(self._starting)

    def start(
        self, job: StoredJob, launch: Launch, remote: RemoteJobs, cancellation: Cancellation = NEVER
    ) -> tuple[StoredJob, str | None]:
        """Start ``job`` as ``launch`` in ``remote``, or find the job of its connection with the same key.

        Return the job, and a warning about the remote host, if any.
        :raises connmgr.errors.CommandCancelled: the request was cancelled before the job was stored.
        :raises connmgr.errors.InvalidRequest: its connection is temporary.
        :raises connmgr.errors.JobLimit: too many jobs are under way.
        :raises connmgr.errors.ConnmgrError: the remote host refused the job, and nothing is left there; or the link
            broke, and it is unknown whether the job runs: another start with the same key finds out.
        """
        if self._vault.connections.temporary.get(job.connection) is not None:
            raise errors.InvalidRequest("connection: A temporary connection cannot have jobs; store it first.")
        with self._place(job):
            cancellation.require()
            if job.key is None:
                with self._beginning(job.id):
                    return self._start_and_store(job, remote, launch)
            # The row comes before the job: of two requests with the same key, on this daemon or another one of the
            # vault, the second finds the first one's row. It starts the job only if the first request certainly did
            # not, which the remote host says.
            stored = self._vault.jobs.add(job)
            cached = self.cache(stored)
            with cached.reading():
                if stored.id != job.id and (
                    stored.state != STARTING or cached.is_started or self.seen(remote, stored.id).state != GONE
                ):
                    return stored, None
                return self._start_and_store(stored, remote, launch, is_stored=True)

    @contextmanager
    def _beginning(self, id: str) -> Iterator[None]:
        with self._lock:
            self._starting.add(id)
        try:
            yield
        finally:
            with self._lock:
                self._starting.discard(id)

    def _start_and_store(
        self, job: StoredJob, remote: RemoteJobs, launch: Launch, *, is_stored: bool = False
    ) -> tuple[StoredJob, str | None]:
        """Start a job on the remote host, and store it meanwhile; if one of the two fails, undo the other.

        :raises connmgr.errors.CommandCancelled: the vault failed, and the job, which had begun, was killed.
        """
        failure: errors.ConnmgrError | None = None

        def store() -> None:
            nonlocal is_stored, failure
            try:
                if not is_stored:
                    self._vault.jobs.add(job)
                is_stored = True
            except errors.ConnmgrError as error:
                failure = error

        cached, name = self.cache(job), remote_name(job.id)
        try:
            # The commit waits for a disk while the remote host waits for its processes; no thread is needed for that.
            warning = remote.start(replace(launch, id=name), CALL_SECONDS, store)
        except errors.FileExists:
            # Another daemon of the vault got the same request.
            return job, None
        except UNREACHABLE:
            # Without a row the remote host was not asked to start the job. With a row nobody knows whether it runs, so
            # the row stays, and the next look at the remote host tells.
            if not is_stored:
                self.drop(job.id)
            raise
        except errors.ConnmgrError:
            if is_stored:
                self.forget(job)
            raise
        if failure is not None:
            self.drop(job.id)
            remote.kill(name, "KILL", 0, CALL_SECONDS)
            remote.remove([name], CALL_SECONDS)
            # Not the vault's own error, after which a request may be repeated: the command may have done its work.
            raise errors.CommandCancelled(
                f"The command began, and was killed, because the vault could not record its job. {failure}"
            ) from failure
        cached.is_started = True
        self._tell("started", job)
        return job, warning

    @contextmanager
    def _place(self, job: StoredJob) -> Iterator[None]:
        """Require room for ``job``; for a token, jobs that are being started right now count too."""
        with self._lock:
            self._of_tokens += job.token is not None
        try:
            if job.token is None:
                self._require_room(job.connection)
            else:
                self._count_room(job.connection, job.token)
            yield
        finally:
            with self._lock:
                self._of_tokens -= job.token is not None

    def _require_room(self, connection: str) -> None:
        """Raise :class:`connmgr.errors.JobLimit` if too many jobs are under way."""
        # Counting takes a tenth of a start. So half of what a count has left may start within a second without another
        # one, as long as no other connection has jobs started; the other half is for other daemons of the vault.
        base = base_of(connection)
        with self._lock:
            counted, room, until = self._room
            if counted == base and room > 0 and time.monotonic() < until:
                self._room = base, room - 1, until
                return
        room_left = self._count_room(connection) - 1
        with self._lock:
            self._room = base, room_left // 2, time.monotonic() + COUNTED_SECONDS

    def _count_room(self, connection: str, token: str | None = None) -> int:
        require = partial(
            self._vault.jobs.require_room,
            connection,
            most_of_connection=self._limits.of_connection,
            most=self._limits.in_all,
            token=token,
        )
        try:
            return require(starting=max(0, self._of_tokens - 1))
        except errors.JobLimit:
            # The vault counts jobs whose end nobody has seen yet; the remote hosts know better.
            self.refresh(self._vault.jobs.under_way())
            return require(starting=max(0, self._of_tokens - 1))

    def output(self, id: str, access: Access, stdout: int, stderr: int, max_bytes: int) -> JobOutput:
        """Return a job's output from the two offsets on, at most about ``max_bytes`` of each stream.

        :raises connmgr.errors.UnknownJob: there is no such job.
        :raises connmgr.errors.SecretLocked: ``access`` may not open a secret on the way.
        :raises connmgr.errors.OutputGone: the output was removed or replaced on the remote host.
        :raises connmgr.errors.InvalidRequest: an offset is past the end.
        """
        cached = self.find(id)

        def read(remote: RemoteJobs) -> JobOutput:
            known = cached.stored
            state, out, err, directory = remote.read(remote_name(id), stdout, stderr, max_bytes, CALL_SECONDS)
            self._record(cached, known, state)
            if state.state == GONE:
                raise errors.OutputGone("The job's output was removed on the remote host.")
            return cached.publish(
                cached.moved_on(state), stdout, out, stderr, err, directory, tell=partial(self._tell, job=cached.stored)
            )

        with cached.reading():
            answer = cached.cached_output(stdout, stderr, FRESH_SECONDS)
            if answer is None or not self._hosts.allows(cached.stored.connection, access):
                answer = self._ask(cached, access, read, stdout, stderr)
        for name, offset in (("stdout", stdout), ("stderr", stderr)):
            # The last seen output may end before the offset.
            if answer.seen is not None and not answer.stale and offset > (size := getattr(answer.seen, name).size):
                raise errors.InvalidRequest(f"{name}: offset {offset} is past the end ({size} bytes so far).")
        return answer

    def look(self, id: str, access: Access) -> CachedJob:
        """Refresh a job's state, unless it is fresh or the job has ended; raises as :meth:`find`, and SecretLocked."""
        cached = self.find(id)
        if cached.over:
            return cached
        with cached.reading():
            if not cached.is_fresh(FRESH_SECONDS) or not self._hosts.allows(cached.stored.connection, access):
                self._ask(cached, access, lambda remote: self._refresh_one(remote, cached))
        return cached

    def subscribe(self, id: str, access: Access, version: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` at the next news after ``version``; return a function that cancels that."""
        cached = self.find(id)
        connection = cached.stored.connection
        with self._lock:
            self._access[connection] = access
            watch = self._watches.get(connection)
            if watch is None:
                watch = self._watches[connection] = JobWatch(connection, partial(self._refresh_watched, connection))
        return watch.subscribe(cached, version, callback)

    def input(self, id: str, access: Access, data: bytes, *, eof: bool) -> None:
        """Send ``data`` to a job that was started with open input, and end its input with ``eof``.

        :raises connmgr.errors.StdinClosed: the job takes no input, or its input has ended.
        :raises connmgr.errors.JobFinished: the job has ended.
        """
        cached = self._under_way(id)
        if not cached.stored.stdin_open:
            raise errors.StdinClosed("The job was started without open input.")
        with self._slot():
            # Once: if the link broke before the answer, the input may have arrived, and would arrive twice.
            self._hosts.ask_once(
                cached.stored.connection, access, lambda remote: remote.input(remote_name(id), data, eof, CALL_SECONDS)
            )
        if cached.went_on():
            self._tell(RUNNING, cached.stored)

    def kill(self, id: str, access: Access, signal: str, grace: float) -> None:
        """Send ``signal`` to all processes of a job; after ``grace`` seconds, KILL to the processes that still run.

        :raises connmgr.errors.JobFinished: the job has ended.
        :raises connmgr.errors.ShellBusy: the job has not begun.
        """
        cached = self._under_way(id)
        with self._slot():
            state = self._hosts.ask(
                cached.stored.connection,
                access,
                lambda remote: remote.kill(remote_name(id), signal, grace, CALL_SECONDS),
            )
        cached.outdate()
        if _may_begin(cached.stored, state):
            raise errors.ShellBusy("The job has not begun yet; try again.")

    def remove(self, id: str, access: Access, *, force: bool) -> None:
        """Remove a job that has ended, and its files on the remote host; with ``force`` kill a running one first.

        :raises connmgr.errors.JobRunning: the job runs.
        """
        cached = self.find(id)

        def work(remote: RemoteJobs) -> None:
            state = self.seen(remote, id)
            if not force and (state.state == RUNNING or _may_begin(cached.stored, state)):
                raise errors.JobRunning("The job is running: kill it first, or remove it with force.")
            if force and state.state in (STARTING, RUNNING, LOST, GONE):
                # Processes of a lost job may still run.
                remote.kill(remote_name(id), "KILL", 0, CALL_SECONDS)
            remote.remove([remote_name(id)], CALL_SECONDS)

        with self._slot():
            self._hosts.ask(cached.stored.connection, access, work)
        self.forget(cached.stored)

    def refresh(self, jobs: Iterable[StoredJob]) -> dict[str, StoredJob]:
        """Refresh the states of ``jobs`` over open links; return the rows of the jobs that could be seen."""
        by_connection: dict[str, dict[str, CachedJob]] = {}
        for job in jobs:
            by_connection.setdefault(job.connection, {})[job.id] = self.cache(job)
        refreshed: dict[str, StoredJob] = {}
        for connection, cached in by_connection.items():
            if self._hosts.ask_at_once(connection, partial(self._refresh_all, cached)) is not None:
                refreshed |= {id: state.stored for id, state in cached.items()}
        return refreshed

    def forget(self, job: StoredJob) -> None:
        """Remove a job whose files on the remote host are removed."""
        self._vault.jobs.remove(job.id)
        self.drop(job.id)
        self._tell("removed", job)

    def drop(self, id: str) -> None:
        """Notify the waiters that the vault no longer has the job."""
        with self._lock:
            cached = self._cached.pop(id, None)
        if cached is not None:
            cached.tell_all()

    def reported(self, id: str) -> None:
        """Note that a request has reported the end of a job, if it has ended."""
        with self._lock:
            self._unreported.pop(id, None)

    def take_unreported(self, seconds: float) -> list[StoredJob]:
        """Return the jobs whose end was seen ``seconds`` ago or earlier, and that no request has reported, each once.

        A request that waits for an end has that time to report it.
        """
        until = time.monotonic() - seconds
        with self._lock:
            ids = [id for id, (seen_at, _) in self._unreported.items() if seen_at <= until]
            return [self._unreported.pop(id)[1] for id in ids]

    def let_go(self, idle_seconds: float) -> None:
        """Forget the cached states of unused jobs."""
        with self._lock:
            self._cached = {id: cached for id, cached in self._cached.items() if cached.is_used(idle_seconds)}

    def close(self, timeout: float) -> None:
        """Notify all waiters. The jobs run on."""
        with self._lock:
            watches = list(self._watches.values())
        deadline = Deadline(timeout)
        for watch in watches:
            watch.close(deadline.left())

    def _under_way(self, id: str) -> CachedJob:
        cached = self.find(id)
        if cached.stored.state in ENDED:
            raise errors.JobFinished("The job has ended.")
        return cached

    def _ask(
        self,
        cached: CachedJob,
        access: Access,
        work: Callable[[RemoteJobs], JobOutput],
        stdout: int = 0,
        stderr: int = 0,
    ) -> JobOutput:
        try:
            with self._slot():
                return self._hosts.ask(cached.stored.connection, access, work)
        except UNREACHABLE:
            return cached.unreachable(stdout, stderr)

    def _refresh_one(self, remote: RemoteJobs, cached: CachedJob) -> JobOutput:
        self._refresh_all({cached.stored.id: cached}, remote)
        return cached.last

    def _refresh_watched(self, connection: str, jobs: Mapping[str, CachedJob]) -> bool | None:
        try:
            return self._hosts.ask(connection, self._access[connection], partial(self._refresh_all, jobs))
        except UNREACHABLE:
            for cached in jobs.values():
                cached.unreachable()
        except errors.ConnmgrError:
            # Such as a locked secret. Each waiter asks again and gets the error that applies to its own access.
            for cached in jobs.values():
                cached.tell_all()
        return None

    def _refresh_all(self, jobs: Mapping[str, CachedJob], remote: RemoteJobs) -> bool:
        """Ask the remote host about jobs of one connection; return whether any has news."""
        news = False
        by_name = {remote_name(id): cached for id, cached in jobs.items()}
        known = {name: cached.stored for name, cached in by_name.items()}
        stirs = {name: cached.lull.stirs for name, cached in by_name.items()}
        looked = {name: by_name[name].moved_on(state) for name, state in remote.look(by_name, CALL_SECONDS).items()}
        silent = {
            name: state
            for name, state in looked.items()
            if state.state == RUNNING and by_name[name].lull.is_due(waits=state.waiting is not None)
        }
        if silent:
            for name in silent:
                by_name[name].lull.look()
            looked |= remote.waiting(silent, CALL_SECONDS)
        for name, state in looked.items():
            cached = by_name[name]
            before = cached.last.version
            self._record(cached, known[name], state)
            tell = partial(self._tell, job=cached.stored)
            news |= cached.publish(state, stirs=stirs[name], tell=tell).version != before
        return news

    def _record(self, cached: CachedJob, known: StoredJob, remote_job: RemoteJob) -> None:
        """Record the state of a job, if it has changed; ``known`` is its row from before the look at the host."""
        # A job that begins during a look may be missing in it, and another look may have seen it run meanwhile: by the
        # row as it is now, it would be lost.
        if _may_begin(known, remote_job):
            return
        stored = cached.stored
        state = LOST if remote_job.state in (GONE, STARTING) else remote_job.state
        # Two requests may see the end at once, and another daemon too. The row decides which one was first, and only
        # that one tells of it.
        if state != stored.state and stored.state in UNDER_WAY:
            is_first = self._vault.jobs.set_state(stored.id, state, remote_job.exit_code)
            cached.use(self._vault.jobs.get(stored.id))
            if is_first:
                self._tell(state, cached.stored)
            if is_first and state in ENDED:
                with self._lock:
                    self._unreported[stored.id] = time.monotonic(), cached.stored

    def _tell(self, change: str, job: StoredJob) -> None:
        self._publish(
            JOB,
            change,
            job.connection,
            job.id,
            token=job.token,
            state=job.state,
            exit_code=job.exit_code,
            name=job.name,
        )


def _may_begin(stored: StoredJob, remote_job: RemoteJob) -> bool:
    """Whether a job that does not run yet was requested so recently that it may still begin."""
    return remote_job.state in (GONE, STARTING) and stored.state == STARTING and stored.created + BEGIN_WITHIN > now()


def _progress(remote_job: RemoteJob) -> tuple[str, int, int]:
    """Return what changes as long as a job is not silent."""
    return remote_job.state, remote_job.stdout.size, remote_job.stderr.size


def remote_name(id: str) -> str:
    """Return the remote host's name of the job ``id``."""
    return id.replace("-", "")


Look = Callable[[Mapping[str, CachedJob]], bool | None]
"""Refreshes jobs of one connection; returns whether any has news, None if the remote host did not answer."""


class JobWatch:
    """The waiters for news of the jobs of one connection, and the thread that serves them."""

    def __init__(self, connection: str, look: Look) -> None:
        self._look = look
        self._name = f"jobs-{connection[:8]}"
        self._lock = threading.Lock()
        self._jobs: dict[str, CachedJob] = {}
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def subscribe(self, cached: CachedJob, version: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Like :meth:`CachedJob.subscribe`, and refresh the job until it has news."""
        cancel = cached.subscribe(version, callback)
        with self._lock:
            if self._closing.is_set():
                return cancel
            self._jobs[cached.stored.id] = cached
            self._wake.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        return cancel

    def close(self, timeout: float) -> None:
        """End the thread, within about ``timeout`` seconds, and notify the waiters."""
        with self._lock:
            self._closing.set()
            thread = self._thread
        self._wake.set()
        for cached in list(self._jobs.values()):
            cached.tell_all()
        if thread is not None:
            thread.join(timeout)

    def _run(self) -> None:
        interval = LEAST_SECONDS
        while waited := self._awaited():
            try:
                news = self._look(waited)
            except BaseException:
                # A plugin may raise any exception, and the waiters have their own deadlines.
                logger.exception("Jobs of a connection could not be looked at.")
                news = None
            if self._closing.wait(UNREACHABLE_SECONDS if news is None else LEAST_SECONDS):
                return
            interval = LEAST_SECONDS if news else min(1.5 * interval, LONGEST_SECONDS)
            if news is not None and self._wake.wait(interval - LEAST_SECONDS):
                interval = LEAST_SECONDS
            self._wake.clear()

    def _awaited(self) -> Mapping[str, CachedJob]:
        """Return the awaited jobs; if there are none, let the thread end."""
        # Under the lock of subscribe(): either the thread sees the new job, or subscribe() sees that there is no thread
        # and starts the next one.
        with self._lock:
            self._jobs = {id: cached for id, cached in self._jobs.items() if cached.waiting}
            if not self._jobs:
                self._thread = None
            return dict(self._jobs)
