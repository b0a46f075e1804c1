"""The streams that are open, and the loop that serves them."""

from __future__ import annotations

import threading
from typing import Protocol

from connmgr.errors import Stopping, StreamLimit
from connmgr.streams.loop import Loop

MAX_STREAMS = 256


class Stream(Protocol):
    """What holds a client or a process."""

    def stop(self) -> None:
        """Tell all who use it that the daemon stops, and end; in the thread of the loop."""


class Streams:
    """Holds the streams until they end. Safe to use from several threads."""

    def __init__(self) -> None:
        self.loop = Loop()
        self._lock = threading.Lock()
        self._open: set[Stream] = set()
        self._stopping = False
        self._all_ended = threading.Event()

    def require_room(self) -> None:
        """Return if one more stream may be opened.

        :raises StreamLimit: as many as may be are open.
        :raises Stopping: the daemon is stopping.
        """
        with self._lock:
            if self._stopping:
                raise Stopping("The daemon is stopping.")
            if len(self._open) >= MAX_STREAMS:
                raise StreamLimit(f"{MAX_STREAMS} streams are open, and no more may be; try again later.")

    def add(self, stream: Stream) -> None:
        """Hold ``stream`` until :meth:`discard`; one that comes while the daemon stops is stopped."""
        with self._lock:
            self._open.add(stream)
            stopping = self._stopping
        if stopping:
            self.loop.call(stream.stop)

    def discard(self, stream: Stream) -> None:
        """Hold ``stream`` no longer."""
        with self._lock:
            self._open.discard(stream)
            if self._stopping and not self._open:
                self._all_ended.set()

    def stop(self, timeout: float) -> None:
        """Stop all streams, and return when their clients know, after ``timeout`` seconds at most."""
        with self._lock:
            self._stopping = True
            streams = list(self._open)
        for stream in streams:
            self.loop.call(stream.stop)
        if streams:
            self._all_ended.wait(timeout)

    def close(self, timeout: float) -> None:
        """End the thread of the loop."""
        self.loop.close(timeout)
