"""The threads that serve requests: waitress's dispatcher, but each thread starts when a request first needs it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from waitress.task import ThreadedTaskDispatcher

_log = logging.getLogger(__name__)


class Threads(ThreadedTaskDispatcher):
    """Serves each task with an idle thread, or with a new one while there are fewer than ``most``.

    Otherwise, and if the system allows no more threads, tasks wait for a thread; those that find all threads taken are
    marked as ``queued``.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        # Two simultaneous tasks must not count the same idle thread.
        self._adding = threading.Lock()

    def add_task(self, task: Any) -> None:
        with self._adding:
            # A new thread counts as active until it takes a task, so there are never too few.
            idle = len(self.threads) - self.active_count
            if len(self.queue) >= idle:
                task.queued = len(self.threads) >= self._most
                if not task.queued:
                    self.set_thread_count(len(self.threads) + 1)
            with self.lock:
                self.queue.append(task)
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
