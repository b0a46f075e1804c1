"""Threads that run tasks which may block, as many as there are tasks at once; an idle one ends after some time."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue

IDLE_SECONDS = 30.0
"""Time after which a thread ends that has had nothing to do."""

Task = Callable[[], object]
_Inbox = SimpleQueue["Task | None"]
"""Where an idle thread gets its next task, or None for its end."""


class Workers:
    """At most ``most`` threads, called by ``name`` and a number. Tasks raise nothing. Safe to use from several threads.

    Python's own pool keeps every thread that it has ever started.
    """

    def __init__(self, most: int, name: str, idle_seconds: float = IDLE_SECONDS) -> None:
        self._most, self._name, self._idle_seconds = most, name, idle_seconds
        self._numbers = itertools.count()
        # Guards all below.
        self._lock = threading.Lock()
        self._waiting: deque[Task] = deque()
        self._idle: list[_Inbox] = []
        self._threads = 0
        self._closed = False

    @property
    def threads(self) -> int:
        """The number of threads."""
        return self._threads

    def submit(self, task: Task) -> bool:
        """Have a thread run ``task``; return False, and do nothing, after :meth:`close`."""
        with self._lock:
            if self._closed:
                return False
            if self._idle:
                # The one that became idle last, so that the others may end.
                self._idle.pop().put(task)
                return True
            if self._threads >= self._most:
                self._waiting.append(task)
                return True
            self._threads += 1
        threading.Thread(target=self._run, args=(task,), name=f"{self._name}_{next(self._numbers)}").start()
        return True

    def close(self) -> None:
        """Begin no more tasks; the threads end after those that they run."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)

    def _run(self, first: Task) -> None:
        inbox: _Inbox = SimpleQueue()
        task: Task | None = first
        while task is not None:
            task()
            # A closure may hold much, and must not be kept for as long as this thread is idle.
            del task
            task = self._next(inbox)
        with self._lock:
            self._threads -= 1

    def _next(self, inbox: _Inbox) -> Task | None:
        """Return the next task for the thread with this ``inbox``, or None for its end."""
        with self._lock:
            if self._closed:
                return None
            if self._waiting:
                return self._waiting.popleft()
            self._idle.append(inbox)
        try:
            return inbox.get(timeout=self._idle_seconds)
        except Empty:
            with self._lock:
                if inbox in self._idle:
                    self._idle.remove(inbox)
                    return None
            # It was given one at the last moment.
            return inbox.get()
