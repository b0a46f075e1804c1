"""The client's side of a WebSocket over a non-blocking socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from connmgr.client.errors import ClientError, Unreachable
from connmgr.client.http import HttpSession
from connmgr.streams.endpoints import Outbox
from connmgr.streams.frames import MAX_FRAME_BYTES
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
    wanted, key = upgrade_request()
    headers, connected, received = session.switched(path, wanted)
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
        self._codec = Codec(is_client=True, max_bytes=MAX_FRAME_BYTES, received=received)
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

        :raises ClientError: the data is no WebSocket's, or a message is too long.
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
            raise ClientError(
                "A stream with something that is not the daemon's of this version.", "unknown", 101
            ) from error
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
