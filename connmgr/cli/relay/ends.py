"""The local ends of a stream: a descriptor that is read, and one that is written without ever waiting for it."""

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

    It stays as it is for others who have it open: it is not made non-blocking.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.ended = False

    def read(self, most: int) -> bytes:
        """Return at most ``most`` bytes; nothing at the end, as where a peer is gone."""
        try:
            data = os.read(self.descriptor, min(most, READ_BYTES))
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        self.ended = not data
        return data


class Sink:
    """A descriptor that takes what it can at once; the rest waits here until it is writable.

    :raises OSError: from :meth:`write` and :meth:`flush`: it takes no more; BrokenPipeError where its reader is gone.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.unwritten = 0
        """Bytes that wait."""

        self._waiting: deque[memoryview] = deque()
        self._opened = contextlib.ExitStack()
        self._write = self._writer()

    def write(self, data: memoryview) -> int:
        """Take ``data``; return how many bytes were written now."""
        self._waiting.append(data)
        self.unwritten += len(data)
        return self.flush() if len(self._waiting) == 1 else 0

    def flush(self) -> int:
        """Write what the descriptor takes; return how many bytes."""
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
        """Forget what waits; return how many bytes."""
        dropped, self.unwritten = self.unwritten, 0
        self._waiting.clear()
        return dropped

    def close(self) -> None:
        """Release what this has opened for itself; the descriptor is its owner's to close."""
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
        """Return a descriptor of the same pipe or terminal that does not block, or None if there can be none.

        To set O_NONBLOCK would set it for all who have the same open file; one that is opened anew is this program's.
        """
        try:
            own = os.open(f"/dev/fd/{self.descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            return None
        self._opened.callback(os.close, own)
        # Where /dev/fd duplicates descriptors nothing was opened anew.
        return None if os.get_blocking(own) or not os.get_blocking(self.descriptor) else own

    def _little_by_little(self, data: memoryview) -> int:
        """Write what surely does not block once the descriptor is writable."""
        asked = select.poll()
        asked.register(self.descriptor, select.POLLOUT)
        if not asked.poll(0):
            raise BlockingIOError
        return os.write(self.descriptor, data[: select.PIPE_BUF])
