"""The local ends of a stream: a descriptor to read, and one to write without blocking."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
from collections import deque
from collections.abc import Callable

READ_BYTES = 128 * 1024
Write = Callable[[memoryview], int]


class Source:
    """A descriptor that is read when it is readable; ``ended`` after its end.

    It is not made non-blocking, because other processes may share it.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.ended = False

    def read(self, most: int) -> bytes:
        """Return at most ``most`` bytes; none at the end, or if the peer is gone."""
        try:
            data = os.read(self.descriptor, min(most, READ_BYTES))
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        self.ended = not data
        return data


class Sink:
    """A descriptor that is written without blocking; the rest is kept until it is writable.

    :meth:`write` and :meth:`flush` raise OSError if writing fails: BrokenPipeError if the reader is gone.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.unwritten = 0
        """Bytes kept."""

        self._waiting: deque[memoryview] = deque()
        self._opened = contextlib.ExitStack()
        self._write = self._writer()

    def write(self, data: memoryview) -> int:
        """Write ``data``, or keep it; return how many bytes were written."""
        self._waiting.append(data)
        self.unwritten += len(data)
        return self.flush() if len(self._waiting) == 1 else 0

    def flush(self) -> int:
        """Write as much as the descriptor accepts; return how many bytes."""
        written = 0
        while self._waiting:
            first = self._waiting[0]
            try:
                size = self._write(first)
            except BlockingIOError:
                break
            written += size
            if size < len(first):
                self._waiting[0] = first[size:]
                break
            self._waiting.popleft()
        self.unwritten -= written
        return written

    def drop(self) -> int:
        """Discard the bytes kept; return how many."""
        dropped, self.unwritten = self.unwritten, 0
        self._waiting.clear()
        return dropped

    def close(self) -> None:
        """Close only the descriptor that this object has opened itself."""
        self._opened.close()

    def _writer(self) -> Write:
        mode = os.fstat(self.descriptor).st_mode
        if stat.S_ISSOCK(mode):
            connected = self._opened.enter_context(socket.socket(fileno=os.dup(self.descriptor)))
            return lambda data: connected.send(data, socket.MSG_DONTWAIT)
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            own = self._opened_anew()
            return self._little_by_little if own is None else lambda data: os.write(own, data)
        return lambda data: os.write(self.descriptor, data)

    def _opened_anew(self) -> int | None:
        """Return a non-blocking descriptor of the same pipe or terminal, or None if there can be none.

        Setting O_NONBLOCK would affect all processes that share the open file; opening it again yields an own one.
        """
        try:
            own = os.open(f"/dev/fd/{self.descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            return None
        self._opened.callback(os.close, own)
        # Where /dev/fd duplicates descriptors, the file was not opened again.
        return None if os.get_blocking(own) or not os.get_blocking(self.descriptor) else own

    def _little_by_little(self, data: memoryview) -> int:
        """Write pieces that cannot block once the descriptor is writable."""
        asked = select.poll()
        asked.register(self.descriptor, select.POLLOUT)
        if not asked.poll(0):
            raise BlockingIOError
        return os.write(self.descriptor, data[: select.PIPE_BUF])
