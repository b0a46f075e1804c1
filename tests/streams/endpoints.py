"""Every kind of endpoint with the peer behind it, as tests of splices use them."""

from __future__ import annotations

import os
import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from connmgr.cli.standard_streams import PipeEndpoint
from connmgr.client.pipe import Pipe, WebSocket
from connmgr.links.channels import TcpChannel
from connmgr.pipes.clients import ClientEndpoint, Opening
from connmgr.pipes.remote import ProcessEndpoint, RemoteStreamEndpoint
from connmgr.streams import frames
from connmgr.streams.endpoints import DescriptorEndpoint, Endpoint, SocketEndpoint
from connmgr.streams.loop import Loop
from connmgr.streams.websocket import BINARY, CLOSE, NORMAL, PING, PONG, Codec, ProtocolError, upgrade_request
from tests.deadlines import DEADLINE_SECONDS

PIECE_BYTES = 50_000
REMOTE_WINDOW_BYTES = 100_000


class Peer(Protocol):
    """Whoever is behind an endpoint; :meth:`send` and :meth:`read` block, and two threads may use one each."""

    endpoint: Endpoint

    def send(self, data: bytes) -> None:
        """Send all of ``data``."""

    def end(self) -> None:
        """Send no more, and read on; a process or pipe is over by that, with the status 0."""

    def read(self) -> bytes:
        """Return some data, empty bytes at the end; whatever has failed counts as the end."""

    def close(self) -> None:
        """Be gone."""

    def dispose(self) -> None:
        """Free what the test holds, after the end of the loop."""


class _SocketPeer:
    """The peer of a stream socket."""

    def __init__(self) -> None:
        self.ours, self._theirs = socket.socketpair()
        self._theirs.settimeout(DEADLINE_SECONDS)

    def send(self, data: bytes) -> None:
        self._theirs.sendall(data)

    def end(self) -> None:
        self._theirs.shutdown(socket.SHUT_WR)

    def read(self) -> bytes:
        try:
            return self._theirs.recv(PIECE_BYTES)
        except ConnectionResetError:
            return b""

    def close(self) -> None:
        self._theirs.close()

    def dispose(self) -> None:
        self._theirs.close()
        self.ours.close()


class SocketPeer(_SocketPeer):
    """Behind a socket."""

    def __init__(self, loop: Loop) -> None:
        super().__init__()
        self.endpoint: Endpoint = SocketEndpoint(loop, self.ours)


class ProcessPeer(_SocketPeer):
    """Behind a channel without a descriptor, for which threads wait."""

    def __init__(self, loop: Loop) -> None:
        super().__init__()
        self.endpoint: Endpoint = ProcessEndpoint(loop, TcpChannel(self.ours))


class DescriptorsPeer:
    """Behind two pipes, as standard input and output are."""

    def __init__(self, loop: Loop) -> None:
        self._source, self._write = os.pipe()
        self._read, self._out = os.pipe()
        self._open = [self._source, self._write, self._read, self._out]
        endpoint = DescriptorEndpoint(loop, self._source, self._out)
        endpoint.output_ended = lambda: self._close(self._out)
        self.endpoint: Endpoint = endpoint

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._write, view) :]

    def end(self) -> None:
        self._close(self._write)

    def read(self) -> bytes:
        return os.read(self._read, PIECE_BYTES)

    def close(self) -> None:
        self._close(self._write)
        self._close(self._read)

    def dispose(self) -> None:
        for descriptor in list(self._open):
            self._close(descriptor)

    def _close(self, descriptor: int) -> None:
        if descriptor in self._open:
            self._open.remove(descriptor)
            os.close(descriptor)


class _RemoteStream:
    """A TCP stream of a remote host, with a window and a descriptor that signals news, and both directions' data."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.news = os.pipe()
        self.arriving, self.taken = bytearray(), bytearray()
        self.has_ended = self.is_lost = self.was_shut = self.was_closed = False
        self._signalled = False

    def settimeout(self, seconds: float | None, /) -> None:
        assert seconds == 0, "an endpoint never waits"

    def recv(self, size: int, /) -> bytes:
        with self.changed:
            data = bytes(self.arriving[:size])
            del self.arriving[:size]
            if not self.arriving and not self.has_ended and self._signalled:
                self._signalled = False
                os.read(self.news[0], 1)
            self.changed.notify_all()
            if data:
                return data
            if self.is_lost:
                raise ConnectionResetError("The link is gone.")
            if self.has_ended:
                return b""
            raise TimeoutError

    def send(self, data: bytes | memoryview, /) -> int:
        with self.changed:
            if self.was_closed or self.is_lost:
                raise BrokenPipeError
            size = min(len(data), REMOTE_WINDOW_BYTES - len(self.taken))
            if not size:
                raise TimeoutError
            self.taken += data[:size]
            self.changed.notify_all()
            return size

    def sendall(self, data: bytes | memoryview, /) -> None:
        raise AssertionError("an endpoint never waits")

    def shutdown(self, how: int, /) -> None:
        with self.changed:
            self.was_shut = True
            self.changed.notify_all()

    def close(self) -> None:
        with self.changed:
            self.was_closed = True
            self.changed.notify_all()

    def signal(self) -> None:
        """Make the descriptor readable; the caller holds the lock."""
        if not self._signalled:
            self._signalled = True
            os.write(self.news[1], b"\0")
        self.changed.notify_all()

    def wait(self, until: Callable[[], object]) -> None:
        """Wait for a change; the caller holds the lock."""
        assert self.changed.wait_for(until, DEADLINE_SECONDS)


class RemotePeer:
    """Behind a TCP stream of a remote host."""

    def __init__(self, loop: Loop) -> None:
        self._stream = _RemoteStream()
        self.endpoint: Endpoint = RemoteStreamEndpoint(loop, self._stream, self._stream.news[0])

    def send(self, data: bytes) -> None:
        stream = self._stream
        with stream.changed:
            for start in range(0, len(data), PIECE_BYTES):
                stream.wait(lambda: len(stream.arriving) < REMOTE_WINDOW_BYTES or stream.was_closed)
                if stream.was_closed:
                    raise ConnectionResetError
                stream.arriving += data[start : start + PIECE_BYTES]
                stream.signal()

    def end(self) -> None:
        with self._stream.changed:
            self._stream.has_ended = True
            self._stream.signal()

    def read(self) -> bytes:
        stream = self._stream
        with stream.changed:
            stream.wait(lambda: stream.taken or stream.was_shut or stream.was_closed)
            data = bytes(stream.taken[:PIECE_BYTES])
            del stream.taken[:PIECE_BYTES]
            stream.signal()
            return data

    def close(self) -> None:
        with self._stream.changed:
            self._stream.is_lost = self._stream.has_ended = True
            self._stream.signal()

    def dispose(self) -> None:
        for descriptor in self._stream.news:
            os.close(descriptor)


class _WebSocketPeer:
    """Behind a WebSocket, with both windows; it acknowledges what is read."""

    def __init__(self, ours: socket.socket, connected: socket.socket, *, is_client: bool) -> None:
        self._ours, self._socket = ours, connected
        self._codec = Codec(is_client=is_client, max_bytes=frames.MAX_FRAME_BYTES)
        self._windows = frames.Windows(eager=True)
        self._changed = threading.Condition()
        self._came: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._is_over = False
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            with self._changed:
                assert self._changed.wait_for(lambda: self._windows.room or self._is_over, DEADLINE_SECONDS)
                if self._is_over:
                    raise ConnectionResetError
                piece = view[: self._windows.room]
                view = view[len(piece) :]
                self._windows.sent(len(piece))
                self._frame(bytes((frames.DATA,)), piece)

    def end(self) -> None:
        with self._changed:
            self._frame(bytes((frames.EOF,)))

    def read(self) -> bytes:
        data = self._came.get(timeout=DEADLINE_SECONDS)
        with self._changed:
            if data and not self._is_over and (acknowledgement := self._windows.taken(len(data))):
                self._frame(acknowledgement)
        return data

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def dispose(self) -> None:
        self.close()
        self._thread.join(DEADLINE_SECONDS)
        self._ours.close()

    def _frame(self, *parts: bytes | memoryview, opcode: int = BINARY) -> None:
        with suppress(BrokenPipeError):
            self._socket.sendall(self._codec.frame(opcode, *parts))

    def _receive(self) -> None:
        with suppress(OSError, ProtocolError):
            while data := self._socket.recv(1 << 16):
                self._codec.feed(data)
                while (message := self._codec.next()) is not None:
                    with self._changed:
                        self._handle(message.opcode, message.payload)
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._came.put(b"")
        self._socket.close()

    def _handle(self, opcode: int, payload: bytes) -> None:
        if opcode == CLOSE:
            self._frame(payload, opcode=CLOSE)
            self._is_over = True
            # The other side closes the socket next.
            self._socket.shutdown(socket.SHUT_WR)
            self._changed.notify_all()
        elif opcode == PING:
            self._frame(payload, opcode=PONG)
        elif payload[0] in (frames.DATA, frames.STDERR):
            self._windows.received(len(payload) - 1)
            self._came.put(payload[1:])
        elif payload[0] == frames.ACKNOWLEDGEMENT:
            self._windows.acknowledged(frames.count_in(payload[1:]))
            self._changed.notify_all()
        elif payload[0] == frames.EOF:
            self._came.put(b"")


class ClientPeer(_WebSocketPeer):
    """A client of the daemon."""

    def __init__(self, loop: Loop) -> None:
        ours, theirs = socket.socketpair()
        wanted, _ = upgrade_request()
        opening = Opening({**wanted, "Host": "localhost"}.get)
        opening.accept(ours)
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += theirs.recv(1)
        self.endpoint: Endpoint = ClientEndpoint(loop, opening, lambda *_: None)
        super().__init__(ours, theirs, is_client=True)


class PipePeer(_WebSocketPeer):
    """The daemon behind a pipe of the command line."""

    def __init__(self, loop: Loop) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self.endpoint: Endpoint = PipeEndpoint(loop, Pipe(WebSocket(ours)))
        super().__init__(ours, theirs, is_client=False)

    def end(self) -> None:
        super().end()
        # An end that is not real closes the pipe at once, perhaps before the status can be sent.
        with self._changed, suppress(OSError):
            self._frame(frames.exit_status(0))
            self._frame(struct.pack("!H", NORMAL), opcode=CLOSE)


KINDS: dict[str, Callable[[Loop], Peer]] = {
    "socket": SocketPeer,
    "descriptors": DescriptorsPeer,
    "remote stream": RemotePeer,
    "process": ProcessPeer,
    "client": ClientPeer,
    "pipe": PipePeer,
}

OVER_BY_END = frozenset({"process", "pipe"})
"""Kinds that are over, with a status, when their peer sends no more."""


@contextmanager
def running_loop() -> Iterator[Loop]:
    """Yield a loop with a thread of its own."""
    loop = Loop("test")
    try:
        yield loop
    finally:
        loop.close(DEADLINE_SECONDS)
