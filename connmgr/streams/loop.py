"""The loop of a thread that moves bytes: it waits for descriptors, and calls the watcher of each that is ready.

Tasks that may block run in :class:`Workers`: threads, as many as there are tasks at once.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import selectors
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
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
        """Have a thread run ``task``; return False, and do nothing, after :meth:`close`.

        :raises RuntimeError: none of the threads runs, and the system has no thread left.
        """
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
        try:
            threading.Thread(target=self._run, args=(task,), name=f"{self._name}_{next(self._numbers)}").start()
        except RuntimeError:
            # The system has no thread left: one that runs does it later.
            with self._lock:
                self._threads -= 1
                if not self._threads:
                    raise
                if self._idle:
                    self._idle.pop().put(task)
                else:
                    self._waiting.append(task)
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

    def _next(self, inbox: _Inbox) -> Task | None:
        """Return the next task for the thread with this ``inbox``, or None for its end."""
        with self._lock:
            if self._closed:
                self._threads -= 1
                return None
            if self._waiting:
                return self._waiting.popleft()
            self._idle.append(inbox)
        try:
            task = inbox.get(timeout=self._idle_seconds)
        except Empty:
            with self._lock:
                if inbox in self._idle:
                    self._idle.remove(inbox)
                    # Under the same lock: a task that came in between would wait for a thread that ends.
                    self._threads -= 1
                    return None
            # It was given one at the last moment.
            task = inbox.get()
        if task is None:
            with self._lock:
                self._threads -= 1
        return task


WORKERS = 1024
"""Most threads for blocking tasks, such as writing; a stream has at most two tasks at a time."""

WAKE_BYTES = 4096

Call = Callable[[], object]
Ready = Callable[[int], object]


class Timer:
    """A call at the time ``at`` of ``time.monotonic``, unless it was ``cancelled``."""

    __slots__ = ("_call", "_number", "at", "cancelled")

    def __init__(self, at: float, number: int, call: Call) -> None:
        self.at = at
        self.cancelled = False
        self._number, self._call = number, call

    def __lt__(self, other: Timer) -> bool:
        return (self.at, self._number) < (other.at, other._number)

    def __call__(self) -> None:
        if not self.cancelled:
            self._call()

    def cancel(self) -> None:
        """Prevent the call."""
        self.cancelled = True


class _Watch:
    """Who is called when a descriptor is ready."""

    __slots__ = ("is_on", "ready")

    def __init__(self, ready: Ready) -> None:
        self.ready, self.is_on = ready, True


class Loop:
    """Makes calls one at a time in one thread; calls must not block.

    A loop in the background (the daemon's) has a thread of its own, called ``name``, which begins with the first call
    and ends with :meth:`close`; what a call raises is logged, because it must not end other streams. A loop in the
    ``foreground`` (the command line's) makes its calls within :meth:`run`, which raises what they raise. At most
    ``workers`` threads run what may block.

    ``call``, ``after`` and ``work`` are safe in any thread; the other methods belong to the loop's own thread.
    """

    def __init__(self, name: str = "streams", *, foreground: bool = False, workers: int = WORKERS) -> None:
        self._name, self._most_workers = name, workers
        # epoll takes no regular file, which standard input may be; poll() says that one is always ready.
        self._selector = selectors.PollSelector() if foreground else selectors.DefaultSelector()
        self._ear, self._bell = socket.socketpair()
        self._ear.setblocking(False)
        self._bell.setblocking(False)
        self._watches: dict[int, _Watch] = {}
        self._selector.register(self._ear, selectors.EVENT_READ, _Watch(self._wake_up))
        self._calls: deque[Call] = deque()
        self._timers: list[Timer] = []
        self._numbers = itertools.count()
        self._signals: Mapping[signal.Signals, Call] = {}
        self._foreground = foreground
        self._thread: threading.Thread | None = threading.current_thread() if foreground else None
        # Guards the beginning and the end of the thread.
        self._lock = threading.Lock()
        self._workers: Workers | None = None
        self._closing = False
        self._polling = False

    def call(self, call: Call) -> None:
        """Schedule ``call`` after all earlier calls; after :meth:`close` do nothing."""
        if self._closing:
            return
        self._calls.append(call)
        if self._thread is None:
            self._start()
        # The loop sets _polling and then looks at the calls a last time; this thread appends its call and then looks at
        # _polling. Whichever comes second sees the other, so a call never waits for the next event.
        elif self._polling and threading.current_thread() is not self._thread:
            self._ring()

    def after(self, seconds: float, call: Call) -> Timer:
        """Schedule ``call`` in ``seconds``."""
        timer = Timer(time.monotonic() + seconds, next(self._numbers), call)
        if threading.current_thread() is self._thread:
            heapq.heappush(self._timers, timer)
        else:
            self.call(lambda: heapq.heappush(self._timers, timer))
        return timer

    def work(self, task: Call) -> None:
        """Run ``task``, which may block, in another thread; after :meth:`close` in this one."""
        guarded = partial(_guarded, task)
        workers = self._pool()
        if workers is None or not workers.submit(guarded):
            guarded()

    def watch(self, descriptor: int, events: int, ready: Ready) -> None:
        """Call ``ready`` with the events of ``selectors`` that occur, whenever and as long as some do."""
        watch = self._watches.get(descriptor)
        if watch is None:
            watch = self._watches[descriptor] = _Watch(ready)
            self._selector.register(descriptor, events, watch)
        else:
            watch.ready = ready
            self._selector.modify(descriptor, events, watch)

    def unwatch(self, descriptor: int) -> None:
        """Stop watching ``descriptor``; call this before closing it. Calling it again does nothing."""
        watch = self._watches.pop(descriptor, None)
        if watch is not None:
            watch.is_on = False
            with suppress(KeyError):
                self._selector.unregister(descriptor)

    def run(self, until: Callable[[], bool]) -> None:
        """Make calls in this thread until ``until()`` is true, which is checked after each round."""
        while not until():
            self._round()

    @contextlib.contextmanager
    def signals(self, calls: Mapping[signal.Signals, Call]) -> Iterator[None]:
        """Within the block make these calls, in the loop, after their signals, which then interrupt nothing."""
        before = {number: signal.signal(number, _leave_to_the_loop) for number in calls}
        # Python writes the numbers of signals to the loop's own bell, whose rings are zero.
        woken = signal.set_wakeup_fd(self._bell.fileno(), warn_on_full_buffer=False)
        self._signals = calls
        try:
            yield
        finally:
            self._signals = {}
            signal.set_wakeup_fd(woken)
            for number, handler in before.items():
                signal.signal(number, handler)

    def close(self, timeout: float = 0.0) -> None:
        """Make no more calls, and end the thread and the tasks within ``timeout`` seconds each."""
        with self._lock:
            self._closing = True
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._ring()
            thread.join(timeout)
        if self._workers is not None:
            self._workers.close()
        # A thread of its own frees them at its end, which may come after the timeout: until then it polls them.
        if thread is None or self._foreground:
            self._free()

    def _start(self) -> None:
        with self._lock:
            # Two threads may make the first call at once.
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def _pool(self) -> Workers | None:
        """Return the threads for blocking tasks, None after :meth:`close`."""
        with self._lock:
            if self._workers is None and not self._closing:
                self._workers = Workers(self._most_workers, self._name)
            return self._workers

    def _ring(self) -> None:
        # If the socket is full, the thread wakes anyway; if it is closed, the thread has ended.
        with suppress(BlockingIOError, OSError):
            self._bell.send(b"\0")

    def _run(self) -> None:
        while not self._closing:
            self._round()
        self._free()

    def _round(self) -> None:
        """Wait for an event, a call or a time, and make all calls that are due."""
        self._polling = True
        # After _polling is set, never before: see call().
        timeout = 0 if self._calls or self._closing else self._until_due()
        events = self._selector.select(timeout)
        self._polling = False
        for key, mask in events:
            watch: _Watch = key.data
            # An earlier call of this round may have ended the watch.
            if watch.is_on:
                try:
                    watch.ready(mask)
                except BaseException:  # noqa: BLE001 - a plugin may raise anything
                    self._failed()
        # Only the calls that are there now: one that schedules itself again would keep events and timers waiting.
        for _ in range(len(self._calls)):
            self._make(self._calls.popleft())
        if self._timers:
            now = time.monotonic()
            while self._timers and self._timers[0].at <= now:
                self._make(heapq.heappop(self._timers))

    def _make(self, call: Call) -> None:
        try:
            call()
        except BaseException:  # noqa: BLE001 - a plugin may raise anything
            self._failed()

    def _failed(self) -> None:
        """Raise the current exception in the foreground; in the background log it: it must not end other streams."""
        if self._foreground:
            raise
        _log()

    def _until_due(self) -> float | None:
        while self._timers and self._timers[0].cancelled:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0].at - time.monotonic()) if self._timers else None

    def _wake_up(self, _: int) -> None:
        # A set, because signals that came several times before they were handled count once, as in POSIX.
        with suppress(BlockingIOError):
            for number in set(self._ear.recv(WAKE_BYTES)):
                if number in self._signals:
                    self._signals[signal.Signals(number)]()

    def _free(self) -> None:
        self._selector.close()
        self._ear.close()
        self._bell.close()


def _guarded(task: Call) -> None:
    try:
        task()
    except BaseException:  # noqa: BLE001 - a plugin may raise anything
        _log()


def _log() -> None:
    import logging

    logging.getLogger("connmgr.streams").exception("A call of a stream failed.")


def _leave_to_the_loop(number: int, _: object) -> None:
    """Do nothing: the loop reads the number from the descriptor that Python wrote it to."""
