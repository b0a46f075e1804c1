"""The thread that serves all streams: it waits for their descriptors and calls their handlers."""

from __future__ import annotations

import heapq
import itertools
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from connmgr.shares import Rests

WORKERS = 1024
"""Most threads for blocking tasks, such as writing; a stream has at most two tasks at a time."""

FRAMES_REST = 4.0
"""Small frames of a token may take a fifth of the thread's time."""

logger = logging.getLogger("connmgr.streams")

Call = Callable[[], object]
Ready = Callable[[int], None]


@dataclass(order=True)
class Timer:
    """A call at a time of ``time.monotonic``, unless it was ``cancelled``."""

    at: float
    number: int
    call: Call = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        """Do not call any more."""
        self.cancelled = True


class Loop:
    """Makes calls one at a time in its own thread, which begins with the first call and ends with :meth:`close`.

    Calls must not block. ``call``, ``after`` and ``work`` are safe in any thread; the other methods belong to the
    loop's own thread, which is called ``name``. ``rests`` has the rests of clients that send many small frames.
    """

    def __init__(self, name: str = "streams") -> None:
        self._name = name
        self.rests = Rests(FRAMES_REST)
        self._selector = selectors.DefaultSelector()
        self._ear, self._bell = socket.socketpair()
        self._ear.setblocking(False)
        self._bell.setblocking(False)
        self._selector.register(self._ear, selectors.EVENT_READ, lambda _: None)
        self._lock = threading.Lock()
        self._calls: deque[Call] = deque()
        self._timers: list[Timer] = []
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._workers = ThreadPoolExecutor(WORKERS, name)
        self._closing = False
        self._polling = False

    def call(self, call: Call) -> None:
        """Schedule ``call`` after all earlier calls; after :meth:`close` do nothing."""
        with self._lock:
            if self._closing:
                return
            self._calls.append(call)
            self._wake()

    def after(self, seconds: float, call: Call) -> Timer:
        """Schedule ``call`` in ``seconds``."""
        timer = Timer(time.monotonic() + seconds, next(self._numbers), call)
        with self._lock:
            heapq.heappush(self._timers, timer)
            self._wake()
        return timer

    def work(self, task: Call) -> None:
        """Run ``task``, which may block, in another thread; after :meth:`close` in this one."""
        try:
            self._workers.submit(_guarded, task)
        except RuntimeError:
            _guarded(task)

    def watch(self, descriptor: int, events: int, ready: Ready) -> None:
        """Call ``ready`` with the events of ``selectors`` that occur, whenever and as long as some do."""
        known = descriptor in self._selector.get_map()
        (self._selector.modify if known else self._selector.register)(descriptor, events, ready)

    def unwatch(self, descriptor: int) -> None:
        """Stop watching ``descriptor``; call this before closing it. Calling it again does nothing."""
        with suppress(KeyError):
            self._selector.unregister(descriptor)

    def close(self, timeout: float) -> None:
        """Make no more calls, and end the thread and the tasks within ``timeout`` seconds each."""
        with self._lock:
            self._closing = True
            self._ring()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)
        self._workers.shutdown(wait=False, cancel_futures=True)
        if thread is None:
            self._free()

    def _wake(self) -> None:
        """Wake the thread, so that it sees new calls; the caller holds the lock."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        elif self._polling and threading.current_thread() is not self._thread:
            self._ring()

    def _ring(self) -> None:
        # A full pipe wakes the thread anyway.
        with suppress(BlockingIOError):
            self._bell.send(b"\0")

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._closing:
                    break
                timeout = self._until_due()
                self._polling = True
            events = self._selector.select(timeout)
            with self._lock:
                self._polling = False
                due = self._due()
            for key, mask in events:
                if key.fileobj is self._ear:
                    with suppress(BlockingIOError):
                        self._ear.recv(4096)
                # An earlier call of this round may have ended the watch.
                elif self._selector.get_map().get(key.fileobj) is key:
                    _guarded(lambda key=key, mask=mask: key.data(mask))  # type: ignore[misc]
            for call in due:
                _guarded(call)
        self._free()

    def _until_due(self) -> float | None:
        if self._calls:
            return 0
        while self._timers and self._timers[0].cancelled:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0].at - time.monotonic()) if self._timers else None

    def _due(self) -> list[Call]:
        """Remove and return the calls that are due; the caller holds the lock."""
        due = list(self._calls)
        self._calls.clear()
        now = time.monotonic()
        while self._timers and self._timers[0].at <= now:
            timer = heapq.heappop(self._timers)
            if not timer.cancelled:
                due.append(lambda timer=timer: None if timer.cancelled else timer.call())  # type: ignore[misc]
        return due

    def _free(self) -> None:
        self._selector.close()
        self._ear.close()
        self._bell.close()


def _guarded(call: Call) -> None:
    try:
        call()
    except BaseException:
        # A plugin may raise any exception, which must not end other streams.
        logger.exception("A call of a stream failed.")
