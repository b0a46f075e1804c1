"""The byte stream under an SSH connection: read ahead in large pieces, and watched for silence."""

from __future__ import annotations

import errno
import math
import os
import select
import socket
import time
from collections.abc import Sequence
from contextlib import suppress

from connmgr.plugin import ByteStream

BLOCK = 192 * 1024
SMALL_BLOCK = 16 * 1024
SMALL_PIECES, MANY_PIECES = 2, 1000
"""How many pieces are worth a call of their own, and how many such a call takes at most (IOV_MAX is 1024)."""
PREAMBLE = 256 * 1024
"""Bytes that a peer may send until it has said which SSH it speaks."""
LARGEST = 256 * 1024
"""Bytes of one packet, as in OpenSSH; paramiko would make room for whatever a peer announces."""
SILENCES = 3
"""How many intervals in a row a peer may be silent before it counts as gone."""

_QUICKACK = getattr(socket, "TCP_QUICKACK", None)


class Wire:
    """A socket, or something like one, as SSH reads and writes it: ahead, in large pieces, and with an eye on silence.

    ``interval`` is how many seconds a read or write waits before it raises :class:`TimeoutError`; None waits for ever.
    """

    def __init__(self, stream: ByteStream, interval: float | None) -> None:
        self._stream = stream
        self._ahead = b""
        self._position = 0
        self._size = SMALL_BLOCK
        self._closed = False  # the name that paramiko looks for
        self._since = time.monotonic()
        self.silences = 0
        """How many intervals in a row have passed without a sign of life."""

        self.interval = interval
        self.allowance: int | None = PREAMBLE
        self.socket = stream if isinstance(stream, socket.socket) else None
        # Waiting with poll() only where there is nothing to do saves a system call at each read and write.
        stream.settimeout(0.0 if self.socket else interval)
        # A server with Nagle's algorithm on, as sshd during the set-up, waits for our ACKs, which come late by default.
        self.hasty = _QUICKACK is not None

    def until_silence(self) -> float | None:
        """Return the seconds until an interval without a sign of life will have passed; None for never."""
        return self._since + self.interval - time.monotonic() if self.interval else None

    def count_silence(self) -> bool:
        """Count an interval if nothing has come in it; return whether so."""
        if self.socket and awaits(self.socket, select.POLLIN, 0):
            return False
        self.silences += 1
        self._since = time.monotonic()
        return True

    def recv(self, size: int) -> bytes:
        """Return 1 to ``size`` bytes, or none at the end of the stream, as paramiko asks for them.

        :raises TimeoutError: none came within the interval.
        :raises OSError: the peer sends more than it may.
        """
        if size > LARGEST:
            raise OSError(errno.EMSGSIZE, "the peer announced too large a packet")
        try:
            while not self.buffered:
                if self.socket and not awaits(self.socket, select.POLLIN, self.interval):
                    self.silences += 1
                    raise TimeoutError("The peer is silent.")
                self.fill()
        except EOFError:
            return b""
        return bytes(self.take(min(size, self.buffered)))

    @property
    def buffered(self) -> int:
        """The number of bytes that have been read ahead."""
        return len(self._ahead) - self._position

    def peek(self, size: int) -> bytes:
        """Return the first ``size`` bytes of those read ahead, or what there is of them."""
        return self._ahead[self._position : self._position + size]

    def take(self, size: int) -> memoryview:
        """Remove ``size`` bytes from those read ahead, and return them."""
        position = self._position
        self._position += size
        return memoryview(self._ahead)[position : self._position]

    def fill(self) -> None:
        """Read ahead what has come; nothing may have. What is no socket is waited for.

        :raises EOFError: the stream has ended.
        :raises TimeoutError: nothing came within the interval.
        """
        try:
            if self.hasty and self.socket and _QUICKACK is not None:
                self.socket.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
            piece = self._stream.recv(self._size)
        except BlockingIOError:
            return
        except TimeoutError:
            self.silences += 1
            raise
        if not piece:
            raise EOFError
        self._since, self.silences = time.monotonic(), 0
        # A large buffer costs, and a small one many calls where much is on its way.
        self._size = BLOCK if len(piece) >= SMALL_BLOCK else SMALL_BLOCK
        self._ahead, self._position = self._ahead[self._position :] + piece, 0
        if self.allowance is not None:
            self.allowance -= len(piece)
            if self.allowance < 0:
                raise OSError(errno.EMSGSIZE, "the peer talks on without naming a protocol")

    def send_all(self, pieces: Sequence[bytes]) -> None:
        """Write ``pieces``, one after the other.

        :raises OSError: the peer took nothing for ``SILENCES`` intervals, or is gone.
        """
        sent = first = 0
        if self.socket and SMALL_PIECES < len(pieces) < MANY_PIECES:
            # For a large message, joining them would cost as much as sending does.
            with suppress(BlockingIOError):
                sent = self.socket.sendmsg(pieces)
            while first < len(pieces) and sent >= len(pieces[first]):
                sent -= len(pieces[first])
                first += 1
        rest = memoryview(b"".join(pieces[first:]))[sent:]
        while rest:
            rest = rest[self.send(rest) :]

    def send(self, data: bytes | memoryview) -> int:
        """Write some of ``data`` and return how many bytes that were.

        :raises OSError: the peer took nothing for ``SILENCES`` intervals, or is gone.
        """
        silences = 0
        while silences < SILENCES:
            try:
                return self._stream.send(data)
            except BlockingIOError:
                silences += self.socket is None or not awaits(self.socket, select.POLLOUT, self.interval)
            except TimeoutError:
                silences += 1
        # Not ETIMEDOUT, which paramiko takes for a reason to go on.
        raise OSError(errno.ECONNABORTED, "the peer takes no more data")

    def settimeout(self, timeout: float | None) -> None:
        """Do nothing: paramiko would set an interval of its own, and wake ten times a second."""

    def close(self) -> None:
        """End the stream, which wakes whoever reads from it or writes to it."""
        self._closed = True
        if self.socket:
            # The descriptor stays until release(): another thread may be about to use its number.
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)
        else:
            self._stream.close()

    def release(self) -> None:
        """Give back the descriptor, once no thread uses it any more."""
        self.close()
        self._stream.close()


def awaits(of: socket.socket, event: int, timeout: float | None) -> bool:
    """Wait until one of poll's events has come, or the peer has gone; return False after ``timeout`` seconds.

    :raises OSError: the socket is closed.
    """
    poll = select.poll()
    try:
        poll.register(of, event)
    except ValueError:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None
    return bool(poll.poll(None if timeout is None else math.ceil(timeout * 1000)))
