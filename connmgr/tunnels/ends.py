"""The two ends of a stream through a tunnel, read and written without waiting, in the thread of the loop."""

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
"""Where neither side takes more, a stream without a descriptor for that is looked at this often."""

_RESET = struct.pack("ii", 1, 0)

Ready = Callable[[], None]


class End(Protocol):
    """One end; all is called in the thread of the loop, and nothing waits."""

    def begin(self, ready: Ready) -> None:
        """Call ``ready`` whenever what was asked for by :meth:`watch` may be done."""

    def watch(self, *, readable: bool, writable: bool) -> None:
        """Say what is waited for from now on."""

    def read(self) -> bytes | None:
        """Return what has come, nothing at the end, None where nothing has come.

        :raises OSError: it is broken.
        """

    def write(self, data: memoryview) -> int:
        """Write some of ``data``; return how many bytes, 0 where it takes none now.

        :raises OSError: it is broken.
        """

    def end(self) -> None:
        """End what is written; the other side reads its end."""

    def close(self, *, reset: bool = False) -> None:
        """Release it; ``reset`` tells its peer that something was lost. Calling it again does nothing."""


class _Watched:
    """The descriptor of an end in the loop's selector, registered for what is waited for and not touched otherwise."""

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
    """A stream with a descriptor that tells of news, as :meth:`connmgr.plugin.ByteStream.fileno` says."""

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
        # What is not to be read now would be news for ever.
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
        # It may have to wait for whoever is sending on the link.
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
    """A process, or a stream that has to be waited for: threads of the loop do so."""

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
        # What a relay says besides is for nobody.
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
    """Return ``stream``, which the caller gives away, as an end."""
    if isinstance(stream, socket.socket):
        return SocketEnd(loop, stream)
    if isinstance(stream, Channel):
        return ChannelEnd(loop, stream)
    fileno = getattr(stream, "fileno", None)
    if fileno is not None:
        return NewsEnd(loop, stream, fileno())
    return ChannelEnd(loop, TcpChannel(stream))
