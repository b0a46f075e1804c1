"""A process or a TCP stream of a remote host, with bytes in both directions, over a WebSocket."""

from __future__ import annotations

import json
import select
import socket
import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from connmgr.client.errors import ClientError, Unreachable, from_answer
from connmgr.client.http import HttpSession
from connmgr.client.output import FAILED_STATUS, Piece
from connmgr.client.wire import Closeable
from connmgr.contract.message import given_json
from connmgr.contract.shell import PipeRequest
from connmgr.streams import frames
from connmgr.streams.endpoints import Outbox
from connmgr.streams.websocket import (
    BINARY,
    CLOSE,
    NO_STATUS,
    NORMAL,
    PING,
    PONG,
    TEXT,
    UNSUPPORTED_DATA,
    Codec,
    ProtocolError,
    WebSocketMessage,
    is_accepted,
    read_closing,
    upgrade_request,
)

READ_BYTES = 256 * 1024


def open_websocket(session: HttpSession, path: str) -> WebSocket:
    """Open a WebSocket at ``path`` of the daemon.

    :raises ClientError: the daemon refuses, or cannot be reached.
    """
    upgrade, key = upgrade_request()
    headers, connected, received = session.switch(path, upgrade)
    if not is_accepted(headers, key):
        connected.close()
        raise ClientError("The answer opens no WebSocket: no daemon of this version sent it.", "unknown", 101)
    return WebSocket(connected, received)


class WebSocket:
    """Messages over a ``connected`` non-blocking socket; for one thread.

    ``received`` are the bytes that have come already. Call :meth:`receive` when :meth:`fileno` is readable, and
    :meth:`flush` when it is writable and there are ``unsent`` bytes. ``closed`` is the code with which the daemon
    closed the WebSocket, or None.
    """

    def __init__(self, connected: socket.socket, received: bytes = b"") -> None:
        self._socket = connected
        self._codec = Codec(is_client=True, max_bytes=frames.MAX_FRAME_BYTES, received=received)
        self._outbox = Outbox(connected.send)
        self.has_received = bool(received)
        """Whether there are received bytes that :meth:`receive` has not read yet."""

        self.closed: int | None = None

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._socket.fileno()

    @property
    def unsent(self) -> int:
        """Bytes not yet accepted by the socket."""
        return self._outbox.size

    def receive(self) -> Iterator[memoryview]:
        """Yield the messages that have come, after at most one read of the socket; pings are answered.

        :raises ClientError: the data is not a WebSocket's, or a message is too long.
        :raises Unreachable: the connection ended without a closing frame.
        """
        self.has_received = False
        try:
            read: bytes | None = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            read = None
        except OSError as error:
            raise _broken(error.strerror) from error
        if read:
            self._codec.feed(read)
        try:
            while self.closed is None and (message := self._codec.next()) is not None:
                if message.opcode == BINARY:
                    yield memoryview(message.payload)
                else:
                    self._handle(message)
        except ProtocolError as error:
            self.close(error.code)
            raise _strange(101) from error
        # After the messages: the daemon's last one, which says why, may have come with the end of the connection.
        if read == b"" and self.closed is None:
            raise _broken("it was closed")

    def _handle(self, message: WebSocketMessage) -> None:
        if message.opcode == PING:
            self._send(PONG, message.payload)
        elif message.opcode == CLOSE:
            code, _ = read_closing(message.payload)
            self.flush(self._codec.closing(code))
            self.closed = NORMAL if code == NO_STATUS else code
        elif message.opcode == TEXT:
            raise ProtocolError("A text is not a frame of a stream.", UNSUPPORTED_DATA)

    def send(self, *parts: bytes | memoryview) -> None:
        """Queue a binary message of ``parts``, and send what the socket accepts; raises as :meth:`flush`."""
        self._send(BINARY, *parts)

    def send_text(self, text: str) -> None:
        """Like :meth:`send`, with a text."""
        self._send(TEXT, text.encode())

    def flush(self, frame: bytes = b"") -> None:
        """Send what the socket accepts, of ``frame`` too, and keep the rest.

        :raises Unreachable: the connection broke.
        """
        try:
            if frame:
                self._outbox.put(frame)
            else:
                self._outbox.flush()
        except OSError as error:
            # The daemon's last message, sent before it closed the connection, says more than this error.
            self._outbox.drop()
            if self.closed is None and not isinstance(error, BrokenPipeError | ConnectionResetError):
                raise _broken(error.strerror) from error

    def close(self, code: int = NORMAL) -> None:
        """Send a closing frame, if that is possible at once, and close the socket."""
        if self.closed is None and self._socket.fileno() >= 0:
            try:
                self.flush(self._codec.closing(code))
            except Unreachable:
                self._outbox.drop()
        self._socket.close()

    def _send(self, opcode: int, *parts: bytes | memoryview) -> None:
        self.flush(self._codec.frame(opcode, *parts))


def _broken(reason: str | None) -> Unreachable:
    return Unreachable(f"The connection to the daemon broke: {reason or 'no reason is known'}.", sent=True)


class Event(NamedTuple):
    """A received frame: ``kind`` is DATA, STDERR, RESIZE or EOF of :mod:`connmgr.streams.frames`."""

    kind: int
    content: memoryview


class Pipe(Closeable):
    """A process or stream on the remote host, which ends when this is closed. For one thread.

    To use it alone: write by :meth:`send`, end the input by :meth:`end_input`, iterate for the output. In a loop with
    other descriptors: wait for :meth:`fileno`; when it is readable, call :meth:`events`, and :meth:`acknowledge` for
    the bytes that were processed; when it is writable and there are ``unsent`` bytes, call :meth:`flush`; write at most
    ``room`` bytes by :meth:`write`. ``exit_status`` is None until the end.
    """

    exit_status: int | None = None

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._windows = frames.Windows(eager=False)
        self._backlog: deque[Event] = deque()

    def close(self) -> None:
        """Close it, and end the process on the remote host."""
        self._websocket.close()

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._websocket.fileno()

    @property
    def unsent(self) -> int:
        """Bytes not yet accepted by the socket."""
        return self._websocket.unsent

    @property
    def has_received(self) -> bool:
        """Whether there are events that need no wait for the descriptor."""
        return self._websocket.has_received

    @property
    def room(self) -> int:
        """Bytes of input that may be written now."""
        return self._windows.room

    def flush(self) -> None:
        """Send what the socket accepts; raise :class:`Unreachable` if the connection broke."""
        self._websocket.flush()

    def write(self, data: bytes | memoryview) -> None:
        """Send input of at most ``room`` bytes."""
        self._windows.sent(len(data))
        self._websocket.send(bytes((frames.DATA,)), data)

    def end_input(self) -> None:
        """Tell the remote host that there is no more input."""
        self._websocket.send(bytes((frames.EOF,)))

    def resize(self, columns: int, rows: int) -> None:
        """Set the size of its terminal, in characters."""
        self._websocket.send(frames.resize(columns, rows))

    def acknowledge(self, size: int) -> None:
        """Report ``size`` bytes of output as processed, so that as many more may come."""
        acknowledgement = self._windows.taken(size)
        if acknowledgement is not None and self.exit_status is None:
            self._websocket.send(acknowledgement)

    def events(self) -> Iterator[Event]:
        """Yield received events; at the end set ``exit_status``.

        :raises ClientError: it could not be started, or was ended by the daemon.
        :raises Unreachable: the connection broke before its end.
        """
        while self._backlog:
            yield self._backlog.popleft()
        for message in self._websocket.receive():
            if event := self._read(message):
                yield event
        if self._websocket.closed is not None and self.exit_status is None:
            raise Unreachable("The daemon closed the stream before its end; the exit status is unknown.", sent=True)

    def _read(self, message: memoryview) -> Event | None:
        kind, content = (message[0], message[1:]) if message else (-1, message)
        if self.exit_status is not None:
            raise _strange()
        if kind == frames.ERROR:
            raise from_answer(FAILED_STATUS, bytes(content))
        try:
            if kind in (frames.DATA, frames.STDERR):
                self._windows.received(len(content))
            elif kind == frames.ACKNOWLEDGEMENT:
                self._windows.acknowledged(frames.count_in(bytes(content)))
            elif kind == frames.EXIT_STATUS:
                self.exit_status = frames.status_in(bytes(content))
            elif kind not in (frames.RESIZE, frames.EOF):
                raise _strange()
        except ValueError as error:
            raise _strange() from error
        return None if kind in (frames.ACKNOWLEDGEMENT, frames.EXIT_STATUS) else Event(kind, content)

    def send(self, data: bytes, timeout: float | None = None) -> None:
        """Write all of ``data``; up to 256 KiB of output that comes meanwhile is kept for the iteration.

        :raises TimeoutError: the remote host did not accept it within ``timeout`` seconds.
        """
        left, end = memoryview(data), None if timeout is None else time.monotonic() + timeout
        while left or self.unsent:
            if left and self.room:
                size = min(self.room, len(left))
                self.write(left[:size])
                left = left[size:]
            else:
                # Output must be read meanwhile, or both sides would wait for each other with full windows. What is kept
                # is bounded by the window: nothing is acknowledged before somebody iterates.
                self._wait(end)
                self._backlog.extend(list(self.events()))
                if self.exit_status is not None:
                    return

    def __iter__(self) -> Iterator[Piece]:
        """Yield output as it comes, to the end.

        :raises ClientError: the process could not be started, or the daemon ended it.
        """
        while self.exit_status is None or self._backlog:
            if not self._backlog:
                self._wait(None)
            for kind, content in self.events():
                self.acknowledge(len(content) if kind in (frames.DATA, frames.STDERR) else 0)
                if kind == frames.DATA:
                    yield Piece(bytes(content), b"")
                elif kind == frames.STDERR:
                    yield Piece(b"", bytes(content))

    def _wait(self, end: float | None) -> None:
        if self.has_received:
            return
        waiting = select.poll()
        waiting.register(self.fileno(), select.POLLIN | (select.POLLOUT if self.unsent else 0))
        left = None if end is None else max(0.0, end - time.monotonic()) * 1000
        ready = waiting.poll(left)
        if not ready:
            raise TimeoutError("the remote host did not take its input in time")
        if ready[0][1] & select.POLLOUT:
            self.flush()


def open_pipe(session: HttpSession, request: PipeRequest) -> Pipe:
    """Open the pipe that ``request`` describes."""
    websocket = open_websocket(session, "/shell/pipe")
    websocket.send_text(json.dumps(given_json(request)))
    return Pipe(websocket)


def _strange(status: int = FAILED_STATUS) -> ClientError:
    return ClientError("A stream with something that is not the daemon's of this version.", "unknown", status)
