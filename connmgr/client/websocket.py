"""The client's side of a WebSocket (RFC 6455), without extensions, over a non-blocking socket.

Importing wsproto, which the daemon uses, would take nearly as long as a command.
"""

from __future__ import annotations

import base64
import os
import socket
import struct
from collections import deque
from collections.abc import Iterator
from functools import cache

from connmgr.client.errors import ClientError, Unreachable
from connmgr.client.http import HttpSession
from connmgr.frames import MAX_FRAME_BYTES

READ_BYTES = 256 * 1024
SHORT_BYTES = 256
"""Up to this length a frame is masked as one number, which is faster than by tables."""

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
CONTROL_BYTES = 125
"""Largest control frame; a longer frame has its length in two or eight bytes."""

NORMAL, PROTOCOL_ERROR, UNSUPPORTED, INVALID_DATA, TOO_LARGE = 1000, 1002, 1003, 1007, 1009
_CODES = frozenset({*range(1000, 1004), *range(1007, 1015), *range(3000, 5000)})
"""What a closing frame may name (RFC 6455, section 7.4); the others between mean that none came."""

_FINAL, _RESERVED, _OPCODE, _MASKED = 0x80, 0x70, 0x0F, 0x80
_TWO_BYTES, _EIGHT_BYTES = 126, 127
_ACCEPT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def open_websocket(session: HttpSession, path: str) -> WebSocket:
    """Open a WebSocket at ``path`` of the daemon.

    :raises ClientError: the daemon refuses, or cannot be reached.
    """
    import hashlib

    key = base64.b64encode(os.urandom(16))
    wanted = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    headers, connected, received = session.switched(path, {**wanted, "Sec-WebSocket-Key": key.decode()})
    proof = base64.b64encode(hashlib.sha1(key + _ACCEPT).digest()).decode()  # noqa: S324 - RFC 6455 has no other
    if headers.get("sec-websocket-accept") != proof or headers.get("upgrade", "").lower() != "websocket":
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
        self._received = bytearray(received)
        self._looked_at = False
        self._message = bytearray()
        self._kind: int | None = None
        self._out: deque[memoryview] = deque()
        self.unsent = 0
        """Bytes not yet accepted by the socket."""

        self.closed: int | None = None

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._socket.fileno()

    @property
    def has_received(self) -> bool:
        """Whether there are received bytes that :meth:`receive` has not read yet."""
        return bool(self._received) and not self._looked_at

    def receive(self) -> Iterator[memoryview]:
        """Yield the messages that have come, after at most one read of the socket; pings are answered.

        :raises ClientError: the data is no WebSocket's, or a message is too long.
        :raises Unreachable: the connection ended without a closing frame.
        """
        self._looked_at = False
        try:
            read = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            read = None
        except OSError as error:
            raise _broken(error.strerror) from error
        if read:
            self._received += read
        while self.closed is None and (frame := self._next_frame()) is not None:
            yield from self._taken(*frame)
        self._looked_at = True
        if read == b"" and self.closed is None:
            raise _broken("it was closed")

    def send(self, *parts: bytes | memoryview) -> None:
        """Queue a binary message of ``parts``, and send what the socket accepts; raises as :meth:`flush`."""
        self._queue(BINARY, b"".join(parts))
        self.flush()

    def send_text(self, text: str) -> None:
        """Like :meth:`send`, with a text."""
        self._queue(TEXT, text.encode())
        self.flush()

    def flush(self) -> None:
        """Send what the socket accepts.

        :raises Unreachable: the connection broke.
        """
        while self._out:
            try:
                sent = self._socket.send(self._out[0])
            except BlockingIOError:
                return
            except OSError as error:
                # The daemon's last message, sent before it closed the connection, says more than this error.
                self._out.clear()
                self.unsent = 0
                if self.closed is None and not isinstance(error, BrokenPipeError | ConnectionResetError):
                    raise _broken(error.strerror) from error
                return
            self.unsent -= sent
            if sent < len(self._out[0]):
                self._out[0] = self._out[0][sent:]
                return
            self._out.popleft()

    def close(self, code: int = NORMAL) -> None:
        """Send a closing frame, if that is possible at once, and close the socket."""
        if self.closed is None and self._socket.fileno() >= 0:
            self._queue(CLOSE, struct.pack("!H", code))
            try:
                self.flush()
            except Unreachable:
                self._out.clear()
        self._socket.close()

    def _next_frame(self) -> tuple[int, bool, memoryview] | None:
        """Return opcode, whether it ends its message, and payload of the next frame, or None if it is incomplete."""
        held = self._received
        if len(held) < 2:
            return None
        first, length, start = held[0], held[1], 2
        if first & _RESERVED or length & _MASKED:
            self._refuse(PROTOCOL_ERROR)
        if length == _TWO_BYTES:
            start = 4
        elif length == _EIGHT_BYTES:
            start = 10
        if start > 2:
            if len(held) < start:
                return None
            length = int.from_bytes(held[2:start], "big")
        if length > MAX_FRAME_BYTES:
            self._refuse(TOO_LARGE)
        if len(held) < start + length:
            return None
        payload = bytes(memoryview(held)[start : start + length])
        del held[: start + length]
        return first & _OPCODE, bool(first & _FINAL), memoryview(payload)

    def _taken(self, opcode: int, final: bool, payload: memoryview) -> Iterator[memoryview]:
        if opcode > BINARY:
            self._control(opcode, final, payload)
            return
        if (opcode == CONTINUATION) == (self._kind is None):
            self._refuse(PROTOCOL_ERROR)
        if opcode == TEXT:
            self._refuse(UNSUPPORTED)
        if len(self._message) + len(payload) > MAX_FRAME_BYTES:
            self._refuse(TOO_LARGE)
        if final and not self._message:
            self._kind = None
            yield payload
            return
        self._kind = BINARY
        self._message += payload
        if final:
            whole, self._message, self._kind = self._message, bytearray(), None
            yield memoryview(whole)

    def _control(self, opcode: int, final: bool, payload: memoryview) -> None:
        if not final or len(payload) > CONTROL_BYTES or opcode not in (CLOSE, PING, PONG):
            self._refuse(PROTOCOL_ERROR)
        if opcode == PING:
            self._queue(PONG, bytes(payload))
            self.flush()
        elif opcode == CLOSE:
            code = int.from_bytes(payload[:2], "big") if payload else NORMAL
            if len(payload) == 1 or code not in _CODES:
                self._refuse(PROTOCOL_ERROR)
            try:
                str(payload[2:], "utf-8")
            except UnicodeDecodeError:
                self._refuse(INVALID_DATA)
            self._queue(CLOSE, bytes(payload[:2]))
            self.flush()
            self.closed = code

    def _refuse(self, code: int) -> None:
        self.close(code)
        raise ClientError("A stream with something that is not the daemon's of this version.", "unknown", 101)

    def _queue(self, opcode: int, payload: bytes) -> None:
        length, key = len(payload), os.urandom(4)
        if length <= CONTROL_BYTES:
            head = struct.pack("!BB", _FINAL | opcode, _MASKED | length)
        elif length < 1 << 16:
            head = struct.pack("!BBH", _FINAL | opcode, _MASKED | _TWO_BYTES, length)
        else:
            head = struct.pack("!BBQ", _FINAL | opcode, _MASKED | _EIGHT_BYTES, length)
        frame = memoryview(b"".join((head, key, masked(payload, key))))
        self._out.append(frame)
        self.unsent += len(frame)


def masked(payload: bytes, key: bytes) -> bytes | bytearray:
    """Return ``payload`` with byte i combined by XOR with byte i modulo 4 of ``key``."""
    length = len(payload)
    if length <= SHORT_BYTES:
        mask = (key * (length // 4 + 1))[:length]
        return (int.from_bytes(payload, "big") ^ int.from_bytes(mask, "big")).to_bytes(length, "big")
    changed = bytearray(payload)
    for place, byte in enumerate(key):
        changed[place::4] = changed[place::4].translate(_combined_with(byte))
    return changed


@cache
def _combined_with(byte: int) -> bytes:
    return bytes(other ^ byte for other in range(256))


def _broken(reason: str | None) -> Unreachable:
    return Unreachable(f"The connection to the daemon broke: {reason or 'no reason is known'}.", sent=True)
