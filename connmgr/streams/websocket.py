"""WebSockets (RFC 6455) without extensions: the frames of both sides, and the upgrade that begins them.

Nothing here reads or writes. Daemon and command line share it; tests compare it with wsproto, whose import would take
nearly as long as a command.
"""

from __future__ import annotations

import base64
import binascii
import os
import struct
from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
_OPCODES = frozenset({CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG})

NORMAL, GOING_AWAY, PROTOCOL_ERROR, UNSUPPORTED_DATA = 1000, 1001, 1002, 1003
NO_STATUS = 1005
"""Stands for a closing frame without a code; never sent."""

INVALID_DATA, POLICY_VIOLATION, TOO_LARGE, INTERNAL_ERROR = 1007, 1008, 1009, 1011
_RESERVED_CODES = frozenset({1004, NO_STATUS, 1006, 1015})
_LAST_CODE, _FIRST_OWN_CODE, _END_OF_CODES = 1014, 3000, 5000

CONTROL_BYTES = 125
"""Largest control frame; a longer frame has its length in two or eight bytes."""

REASON_BYTES = CONTROL_BYTES - 2
SHORT_BYTES = 256
"""Up to this length a frame is masked as one number, which is faster than by tables."""

KEY_BYTES = 16
_FINAL, _RESERVED, _OPCODE, _MASKED, _LENGTH = 0x80, 0x70, 0x0F, 0x80, 0x7F
_TWO_BYTES, _EIGHT_BYTES = 126, 127
_ACCEPT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class ProtocolError(Exception):
    """The other side broke the protocol; the WebSocket closes with ``code``."""

    def __init__(self, message: str, code: int = PROTOCOL_ERROR) -> None:
        super().__init__(message)
        self.code = code


class WebSocketMessage(NamedTuple):
    """A whole message, or a control frame; ``opcode`` is TEXT, BINARY, CLOSE, PING or PONG.

    A frame that does not end its message is one of the opcode CONTINUATION, whose payload comes again with the message.
    """

    opcode: int
    payload: bytes


class Codec:
    """Parses the frames that come, and builds those that go, for a client or a server.

    A message has at most ``max_bytes``. After a closing frame, and after an error, whatever comes is dropped.
    """

    def __init__(self, *, is_client: bool, max_bytes: int, received: bytes = b"") -> None:
        self.max_bytes = max_bytes
        self.has_ended = False
        """Whether the other side has closed, or broken the protocol."""

        self._is_client = is_client
        self._received = bytearray(received)
        self._fragments = bytearray()
        self._kind: int | None = None

    def feed(self, data: bytes) -> None:
        """Add ``data`` to the received bytes."""
        if not self.has_ended:
            self._received += data

    def next(self) -> WebSocketMessage | None:
        """Return what the next frame that has come whole is, or None.

        :raises ProtocolError: the other side broke the protocol.
        """
        try:
            # One frame a call, so that callers see how many there are: a message may have any number of empty ones.
            frame = None if self.has_ended else self._next_frame()
            return None if frame is None else self._join(*frame)
        except ProtocolError:
            self._end()
            raise

    def frame(self, opcode: int, *parts: bytes | memoryview) -> bytes:
        """Return the one frame of a message or control frame that consists of ``parts``."""
        length = sum(map(len, parts))
        mask = _MASKED if self._is_client else 0
        if length <= CONTROL_BYTES:
            head = struct.pack("!BB", _FINAL | opcode, mask | length)
        elif length < 1 << 16:
            head = struct.pack("!BBH", _FINAL | opcode, mask | _TWO_BYTES, length)
        else:
            head = struct.pack("!BBQ", _FINAL | opcode, mask | _EIGHT_BYTES, length)
        if not self._is_client:
            return b"".join((head, *parts))
        # A new key for each frame that the peer cannot predict (RFC 6455, section 5.3).
        key = os.urandom(4)
        return b"".join((head, key, masked(b"".join(parts), key)))

    def closing(self, code: int = NORMAL, reason: str = "") -> bytes:
        """Return the frame that closes, with as much of ``reason`` as a control frame takes."""
        if code == NO_STATUS:
            return self.frame(CLOSE)
        text = reason.encode()[:REASON_BYTES].decode(errors="ignore")
        return self.frame(CLOSE, struct.pack("!H", code), text.encode())

    def _next_frame(self) -> tuple[int, bool, bytes] | None:
        """Return opcode, whether it ends its message, and payload of the next frame, or None if it is incomplete."""
        received = self._received
        if len(received) < 2:
            return None
        opcode, is_final = received[0] & _OPCODE, bool(received[0] & _FINAL)
        measured = self._measure(opcode, is_final=is_final)
        if measured is None:
            return None
        start, length = measured
        key = b""
        if not self._is_client:
            # The key comes after the length, which may have two or eight bytes more (RFC 6455, section 5.2).
            key, start = bytes(received[start : start + 4]), start + 4
        if len(received) < start + length:
            return None
        # A slice of a bytearray would be a copy, to be copied once more.
        payload = bytes(memoryview(received)[start : start + length])
        del received[: start + length]
        return opcode, is_final, bytes(masked(payload, key)) if key else payload

    def _measure(self, opcode: int, *, is_final: bool) -> tuple[int, int] | None:
        """Return where key or payload of the next frame begin, and the payload's length; None if that has not come.

        A frame that is not allowed is refused by its first bytes, so that nothing of it need be kept.
        """
        received = self._received
        length, start = received[1] & _LENGTH, 2
        if received[0] & _RESERVED or opcode not in _OPCODES:
            raise ProtocolError("The frame has a reserved bit or opcode.")
        if bool(received[1] & _MASKED) == self._is_client:
            raise ProtocolError("A client's frames are masked, a server's are not.")
        if opcode >= CLOSE and (length > CONTROL_BYTES or not is_final):
            raise ProtocolError(f"A control frame is one frame of at most {CONTROL_BYTES} bytes.")
        if length > CONTROL_BYTES:
            start = 4 if length == _TWO_BYTES else 10
            if len(received) < start:
                return None
            least = CONTROL_BYTES + 1 if length == _TWO_BYTES else 1 << 16
            length = int.from_bytes(received[2:start], "big")
            # RFC 6455, section 5.2: the shortest form, and the highest bit is 0.
            if length < least or length >> 63:
                raise ProtocolError("The frame's length is not in its shortest form.")
        if opcode < CLOSE:
            if (opcode == CONTINUATION) == (self._kind is None):
                raise ProtocolError("The frame neither begins a message nor continues one.")
            # By the announced length, before the bytes come; fragments of one message count together.
            if len(self._fragments) + length > self.max_bytes:
                raise ProtocolError(f"A frame has at most {self.max_bytes} bytes.", TOO_LARGE)
        return start, length

    def _join(self, opcode: int, is_final: bool, payload: bytes) -> WebSocketMessage:
        """Return the message that a frame completes, or the frame itself if further ones continue it."""
        if opcode >= CLOSE:
            if opcode == CLOSE:
                read_closing(payload)
                self._end()
            return WebSocketMessage(opcode, payload)
        kind = opcode or self._kind
        assert kind is not None, "a continuation without a message was refused"  # noqa: S101
        if not is_final:
            self._kind = kind
            self._fragments += payload
            return WebSocketMessage(CONTINUATION, payload)
        if self._fragments:
            payload = bytes(self._fragments + payload)
            self._fragments.clear()
        self._kind = None
        if kind == TEXT:
            _read_text(payload)
        return WebSocketMessage(kind, payload)

    def _end(self) -> None:
        self.has_ended = True
        self._received.clear()
        self._fragments.clear()


def read_closing(payload: bytes) -> tuple[int, str]:
    """Return code and reason of a closing frame; :data:`NO_STATUS` if it has none.

    :raises ProtocolError: it is malformed, or its code must not be sent.
    """
    if not payload:
        return NO_STATUS, ""
    if len(payload) == 1:
        raise ProtocolError("A closing frame has half a code.")
    code = int.from_bytes(payload[:2], "big")
    is_standard = NORMAL <= code <= _LAST_CODE and code not in _RESERVED_CODES
    if not (is_standard or _FIRST_OWN_CODE <= code < _END_OF_CODES):
        raise ProtocolError(f"A closing frame has the code {code}, which is not for sending.")
    return code, _read_text(payload[2:])


def _read_text(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        raise ProtocolError("A text is not UTF-8.", INVALID_DATA) from None


def masked(payload: bytes, key: bytes) -> bytes | bytearray:
    """Return ``payload`` with byte i combined by XOR with byte i modulo 4 of ``key``."""
    length = len(payload)
    if length <= SHORT_BYTES:
        mask = (key * (length // 4 + 1))[:length]
        return (int.from_bytes(payload, "big") ^ int.from_bytes(mask, "big")).to_bytes(length, "big")
    # Every fourth byte has the same key byte: four translations in C instead of an operation of Python for each byte.
    changed = bytearray(payload)
    for place, byte in enumerate(key):
        changed[place::4] = changed[place::4].translate(_combined_with(byte))
    return changed


@cache
def _combined_with(byte: int) -> bytes:
    return bytes(other ^ byte for other in range(256))


# The upgrade (RFC 6455, section 4).


def upgrade_request() -> tuple[dict[str, str], bytes]:
    """Return the headers of a client's request for a WebSocket, and the key in them for :func:`is_accepted`."""
    key = base64.b64encode(os.urandom(KEY_BYTES))
    headers = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    return {**headers, "Sec-WebSocket-Key": key.decode()}, key


def is_accepted(headers: Mapping[str, str], key: bytes) -> bool:
    """Whether ``headers``, by lower-case names, answer the request with ``key`` with a WebSocket."""
    return headers.get("upgrade", "").lower() == "websocket" and headers.get("sec-websocket-accept") == _proof(key)


def require_upgrade(header: Callable[[str], str | None]) -> bytes:
    """Return the key of a request for a WebSocket; ``header`` returns the value of a header of the request.

    :raises ValueError: it does not ask for a WebSocket; the message says what is missing.
    """

    def words(name: str) -> list[str]:
        return [word.strip().lower() for word in (header(name) or "").split(",")]

    # RFC 6455, section 4.2.1: what a client must send, in its order.
    if not (header("Host") or "").strip():
        raise ValueError("The header Host is missing")
    if "upgrade" not in words("Connection"):
        raise ValueError("The header Connection lacks the word Upgrade")
    if "websocket" not in words("Upgrade"):
        raise ValueError("The header Upgrade lacks the word websocket")
    if (header("Sec-WebSocket-Version") or "").strip() != "13":
        raise ValueError("Sec-WebSocket-Version is not 13")
    key = (header("Sec-WebSocket-Key") or "").strip()
    try:
        length = len(base64.b64decode(key, validate=True))
    except (binascii.Error, ValueError):
        length = 0
    if length != KEY_BYTES:
        raise ValueError(f"Sec-WebSocket-Key is not {KEY_BYTES} bytes in base64")
    return key.encode()


def acceptance(key: bytes, subprotocol: str | None = None) -> bytes:
    """Return the answer that accepts a request for a WebSocket."""
    lines = ["HTTP/1.1 101 Switching Protocols", "Upgrade: WebSocket", "Connection: Upgrade"]
    lines.append(f"Sec-WebSocket-Accept: {_proof(key)}")
    if subprotocol is not None:
        lines.append(f"Sec-WebSocket-Protocol: {subprotocol}")
    return "\r\n".join([*lines, "", ""]).encode()


def _proof(key: bytes) -> str:
    # Loaded only where a WebSocket begins.
    import hashlib

    return base64.b64encode(hashlib.sha1(key + _ACCEPT).digest()).decode()  # noqa: S324 - RFC 6455 has no other
