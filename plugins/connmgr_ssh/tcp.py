"""TCP streams from the far side: channels of the type ``direct-tcpip`` (RFC 4254, section 7.2)."""

from __future__ import annotations

import errno
import socket
import threading

from connmgr.plugin import Deadline
from connmgr_ssh.stream import BATCH_BYTES, STDOUT, Link, Stream


class TcpStream(Stream):
    """A TCP stream in the form of :class:`connmgr.plugin.ByteStream`."""

    def __init__(self, link: Link, number: int) -> None:
        super().__init__(link, number)
        self._timeout: float | None = None
        self._rest: bytes | memoryview = b""
        self._lost = False

    def settimeout(self, timeout: float | None) -> None:
        """Limit reads and writes to ``timeout`` seconds; None waits for ever."""
        self._timeout = timeout

    def recv(self, size: int) -> bytes:
        """Return 1 to ``size`` bytes, or none at the end of the stream.

        :raises TimeoutError: none came in time.
        :raises ConnectionResetError: the link was lost before the end.
        """
        if not self._rest:
            data = self._next(size)
            if len(data) <= size:
                return data
            self._rest = memoryview(data)
        piece, self._rest = self._rest[:size], self._rest[size:]
        self._note_rest()
        return bytes(piece)

    def _next(self, size: int) -> bytes:
        came = self._wait(lambda: self._arrived[STDOUT] or self._ended, self._longest_wait())
        with self._lock:
            data = self._taken(STDOUT, size)
            if self._readiness is not None and not (self._arrived[STDOUT] or self._ended):
                self._readiness.clear()
            came = came or self._ended
        if data:
            self._consume(len(data))
        elif not came:
            raise TimeoutError("No data has come.")
        elif self._lost:
            raise ConnectionResetError(errno.ECONNRESET, "The link is gone.")
        return data

    def _unlink(self) -> None:
        # The far side has not ended the stream, so the link was lost.
        self._lost = self._lost or not self._ended
        super()._unlink()

    def _note_rest(self) -> None:
        with self._lock:
            if self._rest and self._readiness is not None:
                self._readiness.set()

    def send(self, data: bytes | memoryview) -> int:
        """Write some of ``data`` and return the number of bytes, or raise TimeoutError, at once if the timeout is 0."""
        if self._timeout == 0:
            return self.send_now(data)
        return self._write(memoryview(data), Deadline(self._longest_wait()))

    def send_now(self, data: bytes | memoryview) -> int:
        """Write some of ``data`` without waiting; return the number of bytes, or raise TimeoutError if there is none.

        The descriptor becomes readable when the caller may try again.
        """
        data = memoryview(data)
        with self._lock:
            if self.closed or self._eof_sent:
                raise BrokenPipeError("The channel is closed.")
            size = min(len(data), self._room_out, BATCH_BYTES)
            if not size:
                raise TimeoutError("The far side takes no more data.")
            self._room_out -= size
        if not self.link.post_now(lambda: self._packets(data[:size]), self):
            with self._lock:
                self._room_out += size
            raise TimeoutError("The link takes no more data.")
        return size

    def sendall(self, data: bytes | memoryview, timeout: float | None = None) -> None:
        super().sendall(data, self._longest_wait() if timeout is None else timeout)

    def _longest_wait(self) -> float:
        return threading.TIMEOUT_MAX if self._timeout is None else self._timeout

    def shutdown(self, how: int) -> None:
        """End the output for ``socket.SHUT_WR``; SSH cannot end the input alone (RFC 4254, section 5.3)."""
        if how != socket.SHUT_WR:
            raise OSError(errno.EOPNOTSUPP, "only what is written can be ended")
        self.shutdown_write()
