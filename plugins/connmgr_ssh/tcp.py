"""TCP streams from the far side: channels of the type ``direct-tcpip`` (RFC 4254, section 7.2)."""

from __future__ import annotations

import errno
import socket
import threading

from connmgr.plugin import Deadline
from connmgr_ssh.link import Link
from connmgr_ssh.stream import STDOUT, Stream


class TcpStream(Stream):
    """A TCP stream in the form of :class:`connmgr.plugin.ByteStream`."""

    def __init__(self, link: Link, number: int) -> None:
        super().__init__(link, number)
        self._timeout: float | None = None
        self._rest: bytes | memoryview = b""

    def settimeout(self, timeout: float | None) -> None:
        """Limit reads and writes to ``timeout`` seconds; None waits for ever."""
        self._timeout = timeout

    def recv(self, size: int) -> bytes:
        """Return 1 to ``size`` bytes, or none at the end of the stream.

        :raises TimeoutError: none came in time.
        """
        if not self._rest:
            self._rest = memoryview(self._next())
        piece, self._rest = self._rest[:size], self._rest[size:]
        return bytes(piece)

    def _next(self) -> bytes:
        if not self._wait(lambda: self._arrived[STDOUT] or self._ended, self._patience()):
            raise TimeoutError("No data has come.")
        with self._lock:
            data = self._taken(STDOUT, 1)
        if not data:
            return b""
        self._consume(len(data))
        return data

    def send(self, data: bytes | memoryview) -> int:
        """Write some of ``data`` and return the number of bytes written, or raise TimeoutError."""
        return self._write(memoryview(data), Deadline(self._patience()))

    def sendall(self, data: bytes | memoryview, timeout: float | None = None) -> None:
        super().sendall(data, self._patience() if timeout is None else timeout)

    def _patience(self) -> float:
        return threading.TIMEOUT_MAX if self._timeout is None else self._timeout

    def shutdown(self, how: int) -> None:
        """End the output for ``socket.SHUT_WR``; SSH cannot end the input alone (RFC 4254, section 5.3)."""
        if how != socket.SHUT_WR:
            raise OSError(errno.EOPNOTSUPP, "only what is written can be ended")
        self.shutdown_write()
