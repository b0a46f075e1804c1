"""The threads that serve requests: waitress's dispatcher, but each thread starts when a request first needs it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from waitress.task import ThreadedTaskDispatcher

from connmgr.shares import Shares

_log = logging.getLogger(__name__)


class Threads(ThreadedTaskDispatcher):
    """Serves each task with an idle thread, or with a new one while there are fewer than ``most``.

    Otherwise, and if the system allows no more threads, tasks wait for a thread; those that find all threads taken are
    marked as ``queued``. So are those whose ``holder`` has its share of the threads: they wait for one of these.
    """

    def __init__(self, most: int, shares: Shares) -> None:
        super().__init__()
        self._most, self._shares = most, shares
        # Two simultaneous tasks must not count the same idle thread.
        self._adding = threading.Lock()
        self._held_back: deque[tuple[str | None, Any]] = deque()

    def crowded(self, holder: str | None) -> bool:
        """Whether tasks wait for a thread that serves ``holder``: the owner's makes room for no token's share."""
        if self.queue and len(self.queue) > len(self.threads) - self.active_count:
            return True
        return bool(self._held_back) and holder is not None

    def add_task(self, task: Any) -> None:
        holder = task.holder
        with self._adding:
            if self._shares.take(holder):
                self._queue(holder, task)
            else:
                task.queued = True
                self._held_back.append((holder, task))

    def shutdown(self, cancel_pending: bool = True, timeout: int = 5) -> bool:
        with self._adding:
            held_back, self._held_back = self._held_back, deque()
        if cancel_pending:
            for _, task in held_back:
                task.cancel()
        return bool(super().shutdown(cancel_pending, timeout))

    def end(self, holder: str | None) -> None:
        """Note that a task of ``holder`` is over, and let the first one that was held back take its place."""
        with self._adding:
            self._shares.give_back(holder)
            for place, (waiting, task) in enumerate(self._held_back):
                if self._shares.take(waiting):
                    del self._held_back[place]
                    self._queue(waiting, task)
                    task.queued = True
                    return

    def _queue(self, holder: str | None, task: Any) -> None:
        """Queue a task that counts for ``holder``; the caller holds the lock."""
        # A new thread counts as active until it takes a task, so there are never too few.
        idle = len(self.threads) - self.active_count
        if len(self.queue) >= idle:
            task.queued = len(self.threads) >= self._most
            if not task.queued:
                self.set_thread_count(len(self.threads) + 1)
        with self.lock:
            self.queue.append(_Counted(self, holder, task))  # type: ignore[arg-type]
            self.queue_cv.notify()

    def start_new_thread(self, target: Callable[[int], object], thread_no: int) -> None:
        try:
            super().start_new_thread(target, thread_no)
        except RuntimeError:
            _log.error(
                "The system allows no further thread: requests wait for the %d there are.", len(self.threads) - 1
            )
            self.threads.discard(thread_no)
            # The caller adds one, because it counts the thread as started.
            self.active_count -= 1


class _Counted:
    """A task that counts for ``holder`` until it is over."""

    def __init__(self, threads: Threads, holder: str | None, task: Any) -> None:
        self._threads, self._holder, self._task = threads, holder, task

    def service(self) -> None:
        try:
            self._task.service()
        finally:
            self._threads.end(self._holder)

    def cancel(self) -> None:
        self._task.cancel()
