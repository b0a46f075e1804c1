"""The byte stream under an SSH connection: reads ahead in large pieces, and detects silence."""

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

BLOCK_BYTES = 192 * 1024
SMALL_BLOCK_BYTES = 16 * 1024
FEWEST_PIECES, MOST_PIECES = 3, 999
"""Pieces that one sendmsg() writes (IOV_MAX is 1024); fewer or more are joined."""
PREAMBLE_BYTES = 256 * 1024
"""Bytes that a peer may send before its version line."""
MAX_PACKET_BYTES = 256 * 1024
"""Largest packet, as in OpenSSH; paramiko would allocate whatever a peer announces."""
MAX_SILENCES = 3
"""Consecutive silent intervals after which a peer counts as gone."""

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_QUICKACK = getattr(socket, "TCP_QUICKACK", None)


def now() -> float:
    """Return the seconds of a clock that runs on while this machine sleeps, if the system has such a clock."""
    return time.clock_gettime(_CLOCK)


class Wire:
    """A socket or a similar stream, which reads ahead, writes in large pieces, and detects silence.

    ``interval`` is the seconds that a read or write waits before it raises :class:`TimeoutError`; None waits for ever.
    """

    def __init__(self, stream: ByteStream, interval: float | None) -> None:
        self._stream = stream
        self._ahead = b""
        self._position = 0
        self._size = SMALL_BLOCK_BYTES
        self._closed = False  # the name that paramiko uses
        self._since = now()
        self.silences = 0
        """Consecutive intervals without a sign of life."""

        self.interval = interval
        self.allowance: int | None = PREAMBLE_BYTES
        self.socket = stream if isinstance(stream, socket.socket) else None
        # Calling poll() only if a read or write would block saves a system call each time.
        stream.settimeout(0.0 if self.socket else interval)
        # A server with Nagle's algorithm, such as sshd during the set-up, waits for our ACKs, which are delayed by
        # default.
        self.hasty = _QUICKACK is not None
        self.lags = False
        """Whether a write keeps data that the peer does not accept, instead of waiting; set by the sending thread."""

        self._behind = b""

    def until_silence(self) -> float | None:
        """Return the seconds until an interval without a sign of life has passed; None for never."""
        return self._since + self.interval - now() if self.interval else None

    @property
    def overdue(self) -> bool:
        """Whether the peer was silent for longer than an interval."""
        left = self.until_silence()
        return left is not None and (self.silences > 0 or left < 0)

    def count_silence(self) -> bool:
        """Count the interval as silent if nothing came in it; return whether it was counted."""
        if self.socket and awaits(self.socket, select.POLLIN, 0):
            return False
        self.silences += 1
        self._since = now()
        return True

    def recv(self, size: int) -> bytes:
        """Return 1 to ``size`` bytes, or none at the end of the stream; paramiko calls this.

        :raises TimeoutError: none came within the interval.
        :raises OSError: the peer exceeds :data:`PREAMBLE_BYTES`.
        """
        if size > MAX_PACKET_BYTES:
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
        """The number of bytes read ahead."""
        return len(self._ahead) - self._position

    def peek(self, size: int) -> bytes:
        """Return the first ``size`` bytes read ahead, or fewer."""
        return self._ahead[self._position : self._position + size]

    def take(self, size: int) -> memoryview:
        """Remove ``size`` bytes from those read ahead, and return them."""
        position = self._position
        self._position += size
        return memoryview(self._ahead)[position : self._position]

    def cut(self, skip: int, size: int) -> memoryview | None:
        """Remove ``skip`` bytes and the ``size`` bytes after them, and return these; None if not all are read ahead."""
        start = self._position + skip
        if start + size > len(self._ahead):
            return None
        self._position = start + size
        return memoryview(self._ahead)[start : start + size]

    def fill(self) -> None:
        """Read ahead what has arrived, perhaps nothing; wait if the stream is not a socket.

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
        self._since, self.silences = now(), 0
        # A large buffer is costly, and a small one needs many calls for much data.
        self._size = BLOCK_BYTES if len(piece) >= SMALL_BLOCK_BYTES else SMALL_BLOCK_BYTES
        self._ahead, self._position = self._ahead[self._position :] + piece, 0
        if self.allowance is not None:
            self.allowance -= len(piece)
            if self.allowance < 0:
                raise OSError(errno.EMSGSIZE, "the peer talks on without naming a protocol")

    def read_more(self) -> bool:
        """Wait for data and read it ahead; return False after an interval without a sign of life.

        :raises EOFError: the stream has ended.
        """
        try:
            if self.socket and not awaits(self.socket, select.POLLIN, self.interval) and self.count_silence():
                return False
            self.fill()
        except TimeoutError:
            return False
        return True

    @property
    def is_behind(self) -> bool:
        """Whether data is kept that the peer did not accept."""
        return bool(self._behind)

    def send_all(self, pieces: Sequence[bytes]) -> None:
        """Write ``pieces`` in their order, after the data kept from earlier writes.

        :raises OSError: the peer accepted nothing for :data:`MAX_SILENCES` intervals, or is gone.
        """
        sent = first = 0
        if self._behind and not self.lags:
            pieces, self._behind = [self._behind, *pieces], b""
        if self.socket and not self._behind and FEWEST_PIECES <= len(pieces) <= MOST_PIECES:
            # Joining a large message would cost as much as sending it.
            with suppress(BlockingIOError):
                sent = self.socket.sendmsg(pieces)
            while first < len(pieces) and sent >= len(pieces[first]):
                sent -= len(pieces[first])
                first += 1
        rest = memoryview(b"".join(pieces[first:]))[sent:]
        while rest:
            rest = rest[self.send(rest) :]

    def _offer(self, data: bytes | memoryview) -> None:
        """Write as much as the peer accepts at once, and keep the rest."""
        rest = memoryview(data)
        # A stream without send_now() is left to a thread that may wait.
        send = self._stream.send if self.socket else getattr(self._stream, "send_now", None)
        with suppress(BlockingIOError, TimeoutError):
            while rest and send is not None and not self._behind:
                rest = rest[send(rest) :]
        if rest:
            self._behind = b"".join((self._behind, rest))

    def send(self, data: bytes | memoryview) -> int:
        """Write some of ``data``, after the data kept from earlier writes, and return the number of bytes written.

        :raises OSError: the peer accepted nothing for :data:`MAX_SILENCES` intervals, or is gone.
        """
        if self.lags:
            self._offer(data)
            return len(data)
        kept, self._behind = memoryview(self._behind), b""
        while kept:
            kept = kept[self._send(kept) :]
        return self._send(data)

    def _send(self, data: bytes | memoryview) -> int:
        silences = 0
        while silences < MAX_SILENCES:
            try:
                return self._stream.send(data)
            except BlockingIOError:
                silences += self.socket is None or not awaits(self.socket, select.POLLOUT, self.interval)
            except TimeoutError:
                silences += 1
        # paramiko would continue after ETIMEDOUT.
        raise OSError(errno.ECONNABORTED, "the peer takes no more data")

    @property
    def takes_more(self) -> bool:
        """Whether a small piece can probably be written without waiting."""
        try:
            return self.socket is not None and awaits(self.socket, select.POLLOUT, 0)
        except OSError:
            return True

    def settimeout(self, timeout: float | None) -> None:
        """Do nothing: paramiko's own interval would wake the thread ten times a second."""

    def close(self) -> None:
        """End the stream, which wakes its readers and writers."""
        self._closed = True
        if self.socket:
            # The descriptor stays open until release(): another thread may be about to use its number.
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)
        else:
            self._stream.close()

    def release(self) -> None:
        """Close the descriptor, once no thread uses it."""
        self.close()
        self._stream.close()


def awaits(of: socket.socket, event: int, timeout: float | None) -> bool:
    """Wait for ``event``, one of poll's, or for the peer's end; return False after ``timeout`` seconds.

    :raises OSError: the socket is closed.
    """
    poll = select.poll()
    try:
        poll.register(of, event)
    except ValueError:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None
    return bool(poll.poll(None if timeout is None else math.ceil(timeout * 1000)))
