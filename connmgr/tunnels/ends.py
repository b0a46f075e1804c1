"""The two ends of a stream through a tunnel, read and written without blocking in the loop's thread."""

from __future__ import annotations

import selectors
import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from connmgr.links.tcp_channel import TcpChannel
from connmgr.plugin import ByteStream, Channel
from connmgr.streams.loop import Loop
from connmgr.streams.process import QUEUE_BYTES, Process

READ_BYTES = 128 * 1024
BOTH_BLOCKED_SECONDS = 0.02
"""Interval at which a stream without a descriptor is checked while neither side accepts more."""

_RESET = struct.pack("ii", 1, 0)

Ready = Callable[[], None]


class End(Protocol):
    """One end of a stream. All methods are called in the loop's thread, and none blocks."""

    def begin(self, ready: Ready) -> None:
        """Call ``ready`` whenever an event of :meth:`watch` occurs."""

    def watch(self, *, readable: bool, writable: bool) -> None:
        """Choose the events to wait for."""

    def read(self) -> bytes | None:
        """Return available data, empty bytes at the end, None if there is none now.

        :raises OSError: it is broken.
        """

    def write(self, data: memoryview) -> int:
        """Write some of ``data``; return how many bytes, 0 if none is accepted now.

        :raises OSError: it is broken.
        """

    def end(self) -> None:
        """End the written stream; the other side then reads its end."""

    def close(self, *, reset: bool = False) -> None:
        """Release it; ``reset`` signals the peer that data was lost. Calling it again does nothing."""


class _Watched:
    """The descriptor of an end in the loop's selector, registered only for awaited events."""

    def __init__(self, loop: Loop, descriptor: int) -> None:
        self._loop, self._descriptor = loop, descriptor
        self._events = 0
        self._ready: Ready = lambda: None

    def begin(self, ready: Ready) -> None:
        self._ready = ready

    def want(self, events: int) -> None:
        if events == self._events:
            return
        self._events = events
        if events:
            self._loop.watch(self._descriptor, events, lambda _: self._ready())
        else:
            self._loop.unwatch(self._descriptor)


class SocketEnd:
    """A connected socket."""

    def __init__(self, loop: Loop, connected: socket.socket) -> None:
        connected.setblocking(False)
        with suppress(OSError):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self._watched = _Watched(loop, connected.fileno())
        self._closed = False

    def begin(self, ready: Ready) -> None:
        self._watched.begin(ready)

    def watch(self, *, readable: bool, writable: bool) -> None:
        events = (selectors.EVENT_READ if readable else 0) | (selectors.EVENT_WRITE if writable else 0)
        self._watched.want(events)

    def read(self) -> bytes | None:
        try:
            return self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return None

    def write(self, data: memoryview) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def end(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self, *, reset: bool = False) -> None:
        if self._closed:
            return
        self._closed = True
        self._watched.want(0)
        if reset:
            with suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._socket.close()


class NewsEnd:
    """A stream with a descriptor that signals news, see :meth:`connmgr.plugin.ByteStream.fileno`."""

    def __init__(self, loop: Loop, stream: ByteStream, descriptor: int) -> None:
        stream.settimeout(0.0)
        self._loop, self._stream = loop, stream
        self._watched = _Watched(loop, descriptor)
        self._ready: Ready = lambda: None
        self._closed = False

    def begin(self, ready: Ready) -> None:
        self._ready = ready
        self._watched.begin(ready)

    def watch(self, *, readable: bool, writable: bool) -> None:
        # Data that must not be read yet would otherwise be signalled again and again.
        self._watched.want(selectors.EVENT_READ if readable else 0)
        if writable and not readable:
            self._loop.after(BOTH_BLOCKED_SECONDS, self._look)

    def _look(self) -> None:
        if not self._closed:
            self._ready()

    def read(self) -> bytes | None:
        try:
            return self._stream.recv(READ_BYTES)
        except (BlockingIOError, TimeoutError):
            return None

    def write(self, data: memoryview) -> int:
        try:
            return self._stream.send(data)
        except (BlockingIOError, TimeoutError):
            return 0

    def end(self) -> None:
        # Another thread may be sending on the link.
        self._loop.work(self._end)

    def _end(self) -> None:
        with suppress(OSError, EOFError):
            self._stream.shutdown(socket.SHUT_WR)

    def close(self, *, reset: bool = False) -> None:
        if not self._closed:
            self._closed = True
            self._watched.want(0)
            self._loop.work(self._stream.close)


class ChannelEnd:
    """A process, or a stream without a descriptor: threads of the loop wait for it."""

    def __init__(self, loop: Loop, channel: Channel) -> None:
        self._ready: Ready = lambda: None
        self._arrived: deque[bytes] = deque()
        self._unread = self._untaken = 0
        self._over = self._failed = self._ends = False
        self._process = Process(
            loop,
            channel,
            output=self._output,
            taken=self._taken,
            ended=self._ended,
            released=lambda: None,
        )

    def begin(self, ready: Ready) -> None:
        self._ready = ready

    def watch(self, *, readable: bool, writable: bool) -> None:
        if readable and self._unread < QUEUE_BYTES:
            self._process.resume()

    def read(self) -> bytes | None:
        if self._arrived:
            data = self._arrived.popleft()
            self._unread -= len(data)
            return data
        if self._failed:
            raise ConnectionResetError("The process on the far side failed, or its link is gone.")
        return b"" if self._over else None

    def write(self, data: memoryview) -> int:
        size = min(len(data), QUEUE_BYTES - self._untaken)
        if size > 0:
            self._untaken += size
            self._process.write(bytes(data[:size]))
        return max(0, size)

    def end(self) -> None:
        self._process.end_input()

    def close(self, *, reset: bool = False) -> None:
        self._process.close()

    def _output(self, stdout: bytes, stderr: bytes) -> None:
        # Nobody reads a relay's standard error.
        if stdout:
            self._arrived.append(stdout)
            self._unread += len(stdout)
        if self._unread >= QUEUE_BYTES:
            self._process.pause()
        self._ready()

    def _taken(self, size: int) -> None:
        self._untaken -= size
        self._ready()

    def _ended(self, status: int | None) -> None:
        self._over, self._failed = True, status != 0
        self._ready()


def end_of(loop: Loop, stream: ByteStream | Channel) -> End:
    """Return an end that takes over ``stream``."""
    if isinstance(stream, socket.socket):
        return SocketEnd(loop, stream)
    if isinstance(stream, Channel):
        return ChannelEnd(loop, stream)
    fileno = getattr(stream, "fileno", None)
    if fileno is not None:
        return NewsEnd(loop, stream, fileno())
    return ChannelEnd(loop, TcpChannel(stream))
