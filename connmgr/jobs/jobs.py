"""The jobs of all connections: read, fed, killed and removed, over any link to their machine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial

from connmgr import errors
from connmgr.jobs.followed import Followed, Output
from connmgr.jobs.reach import UNREACHABLE, Reach
from connmgr.jobs.spool import Seen, Spool
from connmgr.jobs.watch import Watch
from connmgr.plugin import Deadline
from connmgr.secrets.principals import Access
from connmgr.vault import Vault
from connmgr.vault.jobs import ENDED, RUNNING, STARTING, UNDER_WAY, StoredJob
from connmgr.vault.schema import now

FRESH_SECONDS = 0.05
"""Age up to which a seen state is answered without asking the far side."""

CURRENT_SECONDS = 1.0
"""Time for which another daemon's changes of a job's row may go unnoticed."""

CALL_SECONDS = 30.0
"""Longest time of one call to a far side."""

BEGIN_WITHIN = timedelta(minutes=1)
"""Time after the request within which a missing job may still begin."""

GONE = "gone"
LOST = "lost"


class Jobs:
    """The jobs of the vault. Safe to use from several threads.

    A request holds a ``slot`` while a link is opened for it, or the far side answers.
    """

    def __init__(self, vault: Vault, reach: Reach, slot: Callable[[], AbstractContextManager[None]]) -> None:
        self._vault = vault
        self._reach = reach
        self._slot = slot
        self._lock = threading.Lock()
        self._known: dict[str, Followed] = {}
        self._watches: dict[str, Watch] = {}
        self._access: dict[str, Access] = {}

    def find(self, id: str) -> Followed:
        """Return the known state of a job, with its row at most a second old.

        :raises connmgr.errors.UnknownJob: there is no such job.
        """
        with self._lock:
            known = self._known.get(id)
        if known is not None and known.is_current(CURRENT_SECONDS):
            return known
        try:
            return self.follow(self._vault.jobs.get(id))
        except errors.UnknownJob:
            with self._lock:
                self._known.pop(id, None)
            raise

    def follow(self, stored: StoredJob) -> Followed:
        """Return the known state of a job whose current row is ``stored``."""
        with self._lock:
            followed = self._known.setdefault(stored.id, Followed(stored))
        followed.use(stored)
        return followed

    def seen(self, spool: Spool, id: str) -> Seen:
        """Return a job's current state on the far side, without notifying the waiters."""
        return next(iter(spool.look([far_name(id)], CALL_SECONDS).values()))

    def output(self, id: str, access: Access, stdout: int, stderr: int, max_bytes: int) -> Output:
        """Return a job's output from the two offsets on, at most about ``max_bytes`` of each stream.

        :raises connmgr.errors.UnknownJob: there is no such job.
        :raises connmgr.errors.SecretLocked: ``access`` may not open a secret on the way.
        :raises connmgr.errors.OutputGone: it was removed or replaced on the far side.
        :raises connmgr.errors.InvalidRequest: an offset is beyond the end.
        """
        followed = self.find(id)

        def read(spool: Spool) -> Output:
            seen, out, err, directory = spool.read(far_name(id), stdout, stderr, max_bytes, CALL_SECONDS)
            self._saw(followed, seen)
            if seen.state == GONE:
                raise errors.OutputGone("The job's output was removed on the far side.")
            return followed.publish(seen, stdout, out, stderr, err, directory)

        with followed.reading():
            known = followed.known(stdout, stderr, FRESH_SECONDS)
            if known is None or not self._reach.allows(followed.stored.connection, access):
                known = self._asked(followed, access, read, stdout, stderr)
        for name, offset in (("stdout", stdout), ("stderr", stderr)):
            # The last seen output may end before the offset.
            if known.seen is not None and not known.stale and offset > (size := getattr(known.seen, name).size):
                raise errors.InvalidRequest(f"{name}: beyond the end; {size} bytes were printed.")
        return known

    def look(self, id: str, access: Access) -> Followed:
        """Look at a job, unless that was just done or it has ended; raises as :meth:`find`, and SecretLocked."""
        followed = self.find(id)
        if followed.over:
            return followed
        with followed.reading():
            if not followed.is_fresh(FRESH_SECONDS) or not self._reach.allows(followed.stored.connection, access):
                self._asked(followed, access, lambda spool: self._looked(spool, followed))
        return followed

    def subscribe(self, id: str, access: Access, version: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` at the next news after ``version``; return a function that cancels that."""
        followed = self.find(id)
        connection = followed.stored.connection
        with self._lock:
            self._access[connection] = access
            watch = self._watches.get(connection)
            if watch is None:
                watch = self._watches[connection] = Watch(connection, partial(self._watched, connection))
        return watch.subscribe(followed, version, callback)

    def input(self, id: str, access: Access, data: bytes, *, eof: bool) -> None:
        """Send ``data`` to a job that was started with open input, and end its input with ``eof``.

        :raises connmgr.errors.StdinClosed: it takes no input, or its input has ended.
        :raises connmgr.errors.JobFinished: it has ended.
        """
        followed = self._under_way(id)
        if not followed.stored.stdin_open:
            raise errors.StdinClosed("The job was started without open input.")
        with self._slot():
            # If the answer of a call was lost, it is not repeated, because the input might arrive twice.
            self._reach.ask_once(
                followed.stored.connection, access, lambda spool: spool.input(far_name(id), data, eof, CALL_SECONDS)
            )

    def kill(self, id: str, access: Access, signal: str, grace: float) -> None:
        """Send ``signal`` to all processes of a job, and KILL to those that still run after ``grace`` seconds.

        :raises connmgr.errors.JobFinished: it has ended.
        :raises connmgr.errors.ShellBusy: it has not begun.
        """
        followed = self._under_way(id)
        with self._slot():
            seen = self._reach.ask(
                followed.stored.connection, access, lambda spool: spool.kill(far_name(id), signal, grace, CALL_SECONDS)
            )
        followed.outdate()
        if _may_begin(followed.stored, seen):
            raise errors.ShellBusy("The job has not begun yet; try again.")

    def remove(self, id: str, access: Access, *, force: bool) -> None:
        """Remove a job that has ended, and its files on the far side; with ``force`` kill a running one first.

        :raises connmgr.errors.JobRunning: it runs.
        """
        followed = self.find(id)

        def work(spool: Spool) -> None:
            seen = self.seen(spool, id)
            if not force and (seen.state == RUNNING or _may_begin(followed.stored, seen)):
                raise errors.JobRunning("The job runs: kill it first, or remove it with force.")
            if force and seen.state in (STARTING, RUNNING, LOST, GONE):
                # Processes of a lost job may still run.
                spool.kill(far_name(id), "KILL", 0, CALL_SECONDS)
            spool.remove([far_name(id)], CALL_SECONDS)

        with self._slot():
            self._reach.ask(followed.stored.connection, access, work)
        self.forget(followed.stored)

    def refresh(self, jobs: Iterable[StoredJob]) -> dict[str, StoredJob]:
        """Look at jobs over open links; return those that were seen."""
        by_connection: dict[str, dict[str, Followed]] = {}
        for job in jobs:
            by_connection.setdefault(job.connection, {})[job.id] = self.follow(job)
        seen: dict[str, StoredJob] = {}
        for connection, followed in by_connection.items():
            if self._reach.ask_at_once(connection, partial(self._look_at, followed)) is not None:
                seen |= {id: one.stored for id, one in followed.items()}
        return seen

    def forget(self, job: StoredJob) -> None:
        """Remove a job whose files on the far side are removed."""
        self._vault.jobs.remove(job.id)
        self.drop(job.id)

    def drop(self, id: str) -> None:
        """Notify the waiters that the vault no longer has the job."""
        with self._lock:
            followed = self._known.pop(id, None)
        if followed is not None:
            followed.tell_all()

    def let_go(self, idle_seconds: float) -> None:
        """Forget the known states of unused jobs."""
        with self._lock:
            self._known = {id: known for id, known in self._known.items() if known.is_used(idle_seconds)}

    def close(self, timeout: float) -> None:
        """Notify all waiters. The jobs run on."""
        with self._lock:
            watches = list(self._watches.values())
        deadline = Deadline(timeout)
        for watch in watches:
            watch.close(deadline.left())

    def _under_way(self, id: str) -> Followed:
        followed = self.find(id)
        if followed.stored.state in ENDED:
            raise errors.JobFinished("The job has ended.")
        return followed

    def _asked(
        self, followed: Followed, access: Access, work: Callable[[Spool], Output], stdout: int = 0, stderr: int = 0
    ) -> Output:
        try:
            with self._slot():
                return self._reach.ask(followed.stored.connection, access, work)
        except UNREACHABLE:
            return followed.unreachable(stdout, stderr)

    def _looked(self, spool: Spool, followed: Followed) -> Output:
        self._look_at({followed.stored.id: followed}, spool)
        return followed.last

    def _watched(self, connection: str, jobs: Mapping[str, Followed]) -> bool | None:
        try:
            return self._reach.ask(connection, self._access[connection], partial(self._look_at, jobs))
        except UNREACHABLE:
            for followed in jobs.values():
                followed.unreachable()
        except errors.ConnmgrError:
            # The waiters ask again and get the reason, which may differ from caller to caller.
            for followed in jobs.values():
                followed.tell_all()
        return None

    def _look_at(self, jobs: Mapping[str, Followed], spool: Spool) -> bool:
        """Look at jobs of one connection; return whether there were news."""
        news = False
        by_name = {far_name(id): followed for id, followed in jobs.items()}
        for name, seen in spool.look(by_name, CALL_SECONDS).items():
            followed = by_name[name]
            before = followed.last.version
            self._saw(followed, seen)
            news |= followed.publish(seen).version != before
        return news

    def _saw(self, followed: Followed, seen: Seen) -> None:
        """Record the state of a job, if it has changed."""
        stored = followed.stored
        if _may_begin(stored, seen):
            return
        state = LOST if seen.state in (GONE, STARTING) else seen.state
        if state != stored.state and stored.state in UNDER_WAY:
            self._vault.jobs.set_state(stored.id, state, seen.exit_code)
            followed.use(self._vault.jobs.get(stored.id))


def _may_begin(stored: StoredJob, seen: Seen) -> bool:
    """Whether a job that does not run yet was requested recently."""
    return seen.state in (GONE, STARTING) and stored.state == STARTING and stored.created + BEGIN_WITHIN > now()


def far_name(id: str) -> str:
    """Return the far side's name of the job ``id``."""
    return id.replace("-", "")
