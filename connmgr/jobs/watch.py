"""Looks at jobs that clients wait for: one thread per connection, as long as any client waits."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from connmgr.jobs.followed import Followed

logger = logging.getLogger("connmgr.jobs")

LEAST_SECONDS, LONGEST_SECONDS = 0.01, 0.25
"""Shortest and longest interval of looks: after news or for a new waiter, and after a long time without news."""

UNREACHABLE_SECONDS = 1.0
"""Interval at which a far side that did not answer is asked again."""

Look = Callable[[Mapping[str, Followed]], bool | None]
"""Looks at jobs of one connection; returns whether there were news, None if the far side did not answer."""


class Watch:
    """The waiters for news of the jobs of one connection, and the thread that serves them."""

    def __init__(self, connection: str, look: Look) -> None:
        self._look = look
        self._name = f"jobs-{connection[:8]}"
        self._lock = threading.Lock()
        self._jobs: dict[str, Followed] = {}
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def subscribe(self, followed: Followed, version: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Like :meth:`Followed.subscribe`, and look at the job until there is news."""
        cancel = followed.subscribe(version, callback)
        with self._lock:
            if self._closing.is_set():
                return cancel
            self._jobs[followed.stored.id] = followed
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
        for followed in list(self._jobs.values()):
            followed.tell_all()
        if thread is not None:
            thread.join(timeout)

    def _run(self) -> None:
        interval = LEAST_SECONDS
        while waited := self._waited():
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

    def _waited(self) -> Mapping[str, Followed]:
        """Return the awaited jobs; if there are none, let the thread end."""
        with self._lock:
            self._jobs = {id: followed for id, followed in self._jobs.items() if followed.waiting}
            if not self._jobs:
                self._thread = None
            return dict(self._jobs)
