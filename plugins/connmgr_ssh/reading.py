"""Decides which thread reads from a link: its own, or one that waits for an answer.

A thread that reads its own answer needs no other to wake it, which is most of the cost of a short command. One thread
at a time has the turn to read. The link's own thread checks on another reader periodically, and takes the turn back
when nobody has read for a while.
"""

from __future__ import annotations

import math
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from connmgr_ssh.wire import Wire, awaits

TURN_SECONDS = 0.25
"""Longest time of a thread's turn, and the interval of the link's own thread's checks."""


class Reading:
    """The turn to read from ``wire``, and what other threads left for the link's own thread.

    ``deliver_ahead`` delivers the packets that were read ahead. It returns the payload of the first that the link's own
    thread must handle, an empty one if only that thread may read now, and None if there is none.
    """

    def __init__(self, wire: Wire, deliver_ahead: Callable[[], bytes | None]) -> None:
        self._wire = wire
        self._deliver_ahead = deliver_ahead
        self._turn = threading.Lock()
        self._own = False
        self._asked_back = False
        self._spells = 0
        self._waiting: set[object] = set()
        self.sleeping: set[object] = set()
        """The waiting threads that do not read, and must be woken."""

        self._left: bytes | None = None
        self._refused = False
        self._failure: Exception | None = None
        self._bell, self._ear = socket.socketpair()
        self._arrival, self._call, self._both = select.poll(), select.poll(), select.poll()
        for poll in (self._call, self._both):
            poll.register(self._ear, select.POLLIN)
        if wire.socket:
            for poll in (self._arrival, self._both):
                poll.register(wire.socket, select.POLLIN)
        self._bell.setblocking(False)
        # Guards against writing to a descriptor number that was reused.
        self._ringing = threading.Lock()

    # Called by the link's own thread.

    def take(self) -> None:
        """Take the turn, unless this thread has it; only :meth:`more_comes` gives it away."""
        if not self._own:
            self._turn.acquire()
            self._own = True

    @property
    def left(self) -> bool:
        """Whether another thread has left something."""
        return self._left is not None or self._failure is not None

    def left_over(self) -> bytes | None:
        """Return, once, the packet that another thread has left."""
        left, self._left = self._left, None
        return left

    def raise_failure(self) -> None:
        """Raise the failure of another thread's reading."""
        if self._failure is not None:
            raise self._failure

    def more_comes(self, *, lent: bool) -> bool:
        """Wait until there may be more to read or to do; return False after an interval without a sign of life.

        ``lent`` lets other threads have the turn meanwhile. A stream without a socket is not waited for.
        """
        if self._wire.socket is None:
            return True
        if not lent:
            return awaits(self._wire.socket, select.POLLIN, self._wire.interval) or not self._wire.count_silence()
        self._own = False
        spells, leaves = self._spells, False
        self._turn.release()
        while True:
            called = self._look(TURN_SECONDS if leaves else None)
            left = self._wire.until_silence()
            if left is not None and left <= 0:
                self._take_back()
                return not self._wire.count_silence()
            if self._turn.acquire(blocking=False):
                # A thread that has read or written meanwhile reads what comes, unless it waits for this one to do so.
                if called or self._waiting or spells == self._spells:
                    self._own = True
                    return True
                self._turn.release()
            spells, leaves = self._spells, True

    def _look(self, longest: float | None) -> bool:
        """Wait for a call, the next silence or ``longest`` seconds; without ``longest`` for data too."""
        poll = self._both if longest is None else self._call
        times = [seconds for seconds in (longest, self._wire.until_silence()) if seconds is not None]
        events = poll.poll(math.ceil(max(0.0, min(times)) * 1000) if times else None)
        if not any(descriptor == self._ear.fileno() for descriptor, _ in events):
            return False
        self._ear.recv(64)
        return True

    def _take_back(self) -> None:
        self._asked_back = True
        self.take()
        self._asked_back = False

    def close(self) -> None:
        """Close the descriptors, once the link's own thread ends."""
        with self._ringing:
            self._bell.close()
            self._ear.close()

    # Called by any thread.

    def attend(self, to: object) -> None:
        """Have the link's own thread read whenever no other does, for one who waits elsewhere, until :meth:`leave`."""
        self._waiting.add(to)
        self.sleeping.add(to)
        self.recall()

    def leave(self, to: object) -> None:
        """End what :meth:`attend` has begun."""
        self._waiting.discard(to)
        self.sleeping.discard(to)

    def recall(self) -> None:
        """Make the link's own thread handle what was left."""
        with self._ringing, suppress(OSError):
            self._bell.send(b"\0")

    def announce(self) -> None:
        """Take note that the calling thread has asked the far side for something, and is about to wait for it."""
        self._spells += 1

    def wait(self, ready: Callable[[], object], changed: threading.Condition, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until ``ready()``; return whether it is. The thread reads itself for a while.

        Whoever changes what ``ready`` looks at holds the lock of ``changed``, and notifies that if threads sleep.
        """
        if ready():
            return True
        if timeout <= 0:
            if self._wire.socket:
                self._read(ready, 0.0)
            return bool(ready())
        deadline = time.monotonic() + timeout
        me = object()
        # Registered before asking for the turn, so that its holder sees to whom to leave it.
        self._waiting.add(me)
        try:
            if self._wire.socket and self._read(ready, min(timeout, TURN_SECONDS)):
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return bool(ready())
            # Before the call: whoever has the turn when that comes to nothing calls again for those that sleep.
            self.sleeping.add(me)
            self.recall()
            with changed:
                return bool(changed.wait_for(ready, left))
        finally:
            self._waiting.discard(me)
            self.sleeping.discard(me)

    def _read(self, ready: Callable[[], object], seconds: float) -> bool:
        if self._asked_back or not self._turn.acquire(blocking=False):
            return bool(ready())
        done = self._refused = False
        try:
            done = not self.left and self._read_until(ready, seconds)
        except Exception as error:  # noqa: BLE001 - it ends the link, and so is its own thread's to handle
            self._failure = error
        finally:
            self._spells += 1
            self._turn.release()
            if self.left or self._refused or self.sleeping:
                self.recall()
        return done

    def _read_until(self, ready: Callable[[], object], seconds: float) -> bool:
        """Return whether all that arrived is handled, and ``ready()``."""
        end = time.monotonic() + seconds
        looked = False
        while True:
            left_over = self._deliver_ahead()
            if left_over is not None:
                # The packet has an impossible length: only the link's own thread may read now.
                self._refused, self._left = not left_over, left_over or None
                return False
            if ready():
                return True
            left = max(0.0, end - time.monotonic())
            # With no time left, still look once for what has arrived.
            if (looked and not left) or not self._arrival.poll(math.ceil(left * 1000)):
                return False
            looked = True
            self._wire.fill()
