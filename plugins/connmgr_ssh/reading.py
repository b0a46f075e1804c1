"""Decides which thread reads from a link: its own, or one that waits for an answer.

A thread that reads its own answer need not be woken by another thread; waking is most of the cost of a short command.
One thread at a time has the turn to read. The link's own thread checks periodically whether another thread reads, and
takes the turn back if none has for a while.
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
"""Longest turn of another thread, and the interval at which the link's own thread checks."""


class Reading:
    """The turn to read from ``wire``, and the packet or failure that another thread left for the link's own thread.

    ``deliver_ahead`` delivers the packets that were read ahead. It returns the payload of the first packet that the
    link's own thread must handle, an empty payload if only that thread may read now, None if all were delivered.
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
        """Whether another thread has left a packet or a failure."""
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

        ``lent`` gives the turn to other threads meanwhile. For a stream without a socket it returns at once.
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
                # Other threads were active meanwhile: they go on reading, unless one waits for this thread to read.
                if called or self._waiting or spells == self._spells:
                    self._own = True
                    return True
                self._turn.release()
            spells, leaves = self._spells, True

    def _look(self, longest: float | None) -> bool:
        """Wait for :meth:`recall`, the next silence or ``longest`` seconds, or, if that is None, for data.

        Return whether another thread called.
        """
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
        """Make the link's own thread read whenever no other does, until :meth:`leave`; for callers that poll."""
        self._waiting.add(to)
        self.sleeping.add(to)
        self.recall()

    def leave(self, to: object) -> None:
        """Undo :meth:`attend`."""
        self._waiting.discard(to)
        self.sleeping.discard(to)

    def recall(self) -> None:
        """Wake the link's own thread, which handles what other threads left."""
        with self._ringing, suppress(OSError):
            self._bell.send(b"\0")

    def announce(self) -> None:
        """Note that the calling thread has sent a request and is about to wait for the answer."""
        self._spells += 1

    def wait(self, ready: Callable[[], object], changed: threading.Condition, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until ``ready()``; return whether it is. First, the calling thread reads.

        A thread that changes the result of ``ready`` holds the lock of ``changed``, and notifies it if threads sleep.
        """
        if ready():
            return True
        if timeout <= 0:
            if self._wire.socket:
                self._read(ready, 0.0)
            return bool(ready())
        deadline = time.monotonic() + timeout
        me = object()
        # Registered before trying to take the turn, so that the thread that has it knows that this one waits.
        self._waiting.add(me)
        try:
            if self._wire.socket and self._read(ready, min(timeout, TURN_SECONDS)):
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return bool(ready())
            # Before recall(): a thread that ends its turn recalls the link's own thread if others sleep.
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
        """Read for up to ``seconds``; return whether ``ready()`` holds and all that arrived is handled."""
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
            # With no time left, still check once for data that has arrived.
            if (looked and not left) or not self._arrival.poll(math.ceil(left * 1000)):
                return False
            looked = True
            self._wire.fill()
