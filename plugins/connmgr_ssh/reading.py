"""Who reads from a link: its own thread, or in its place a thread that waits for something of it.

A thread that waits for an answer and reads itself is not woken by another one, which is most of what a short command
costs here. One thread at a time has the turn to read. While the link's own thread does not, it looks after it from time
to time, and takes it back once nobody has read for a while.
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

SPELL = 0.25
"""Seconds for which a thread reads before it leaves that to the link's own, and between that one's looks."""


class Reading:
    """The turn to read from ``wire``, and what whoever had it has left for the link's own thread.

    ``deliver_next`` delivers one of the packets that have been read ahead. It returns whether there was one, and the
    payload of one that is the link's own thread's business; an empty one if nobody else may read now.
    """

    def __init__(self, wire: Wire, deliver_next: Callable[[], tuple[bool, bytes | None]]) -> None:
        self._wire = wire
        self._deliver_next = deliver_next
        self._turn = threading.Lock()
        self._own = False
        self._asked_back = False
        self._spells = 0
        self._waiting: set[object] = set()
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
        # Nobody may write to a descriptor's number when it is given back.
        self._ringing = threading.Lock()

    # For the link's own thread.

    def take(self) -> None:
        """Take the turn, unless it has it; :meth:`more_comes` alone gives it away."""
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
        """Raise what ended the reading of another thread."""
        if self._failure is not None:
            raise self._failure

    def more_comes(self, *, lent: bool) -> bool:
        """Wait until there may be more to read or to do, and return False after an interval without a sign of life.

        With ``lent`` others may have the turn meanwhile. What is no socket is not waited for.
        """
        if self._wire.socket is None:
            return True
        if not lent:
            return awaits(self._wire.socket, select.POLLIN, self._wire.interval) or not self._wire.count_silence()
        self._own = False
        self._turn.release()
        spells: int | None = None
        while True:
            called = self._look(None if spells is None else SPELL)
            left = self._wire.until_silence()
            if left is not None and left <= 0:
                self._take_back()
                return not self._wire.count_silence()
            if self._turn.acquire(blocking=False):
                if spells is None or called or spells == self._spells:
                    self._own = True
                    return True
                self._turn.release()
            spells = self._spells

    def _look(self, longest: float | None) -> bool:
        """Wait for a call, the next silence or ``longest`` seconds; without those for data as well."""
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
        """Give back the descriptors, once the link's own thread ends."""
        with self._ringing:
            self._bell.close()
            self._ear.close()

    # For any thread.

    def recall(self) -> None:
        """Have the link's own thread look after what has been left."""
        with self._ringing, suppress(OSError):
            self._bell.send(b"\0")

    def wait(self, ready: Callable[[], bool], changed: threading.Condition, timeout: float) -> bool:
        """Wait until ``ready()``, of which ``changed`` is notified, for at most ``timeout`` seconds; return whether.

        It reads itself for a while, if nobody else does.
        """
        if ready():
            return True
        deadline = time.monotonic() + timeout
        me = object()
        # Before it asks for the turn: whoever has that will see that there is somebody to leave it to.
        self._waiting.add(me)
        try:
            if self._wire.socket and self._read(ready, min(timeout, SPELL)):
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return ready()
            self.recall()
            with changed:
                return changed.wait_for(ready, left)
        finally:
            self._waiting.discard(me)

    def _read(self, ready: Callable[[], bool], seconds: float) -> bool:
        if self._asked_back or not self._turn.acquire(blocking=False):
            return ready()
        done = self._refused = False
        try:
            done = not self.left and self._read_until(ready, seconds)
        except Exception as error:  # noqa: BLE001 - it ends the link, and so is its own thread's to handle
            self._failure = error
        finally:
            self._spells += 1
            self._turn.release()
            if self.left or self._refused or len(self._waiting) > 1:
                self.recall()
        return done

    def _read_until(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Return whether all is done that has come, and ``ready()``."""
        end = time.monotonic() + seconds
        looked = False
        while True:
            some = True
            while some:
                some, self._left = self._deliver_next()
                if self._left is not None:
                    # The packet of a length that none has: only the link's own thread may read now.
                    self._refused = not self._left
                    self._left = self._left or None
                    return False
            if ready():
                return True
            left = max(0.0, end - time.monotonic())
            # Who has no time at all is still told what is there.
            if (looked and not left) or not self._arrival.poll(math.ceil(left * 1000)):
                return False
            looked = True
            self._wire.fill()
