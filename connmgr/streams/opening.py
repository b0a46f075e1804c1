"""A WebSocket on the daemon's side (RFC 6455, section 4.2), until the loop serves it."""

from __future__ import annotations

import base64
import binascii
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Event, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from connmgr import frames
from connmgr.errors import BadFrame, UpgradeRequired
from connmgr.plugin import Deadline

FIRST_MESSAGE_BYTES = 1024 * 1024
RECEIVE_BYTES = 64 * 1024
SEND_SECONDS = 5.0
KEY_BYTES = 16
_HEADERS = ("Host", "Upgrade", "Connection", "Sec-WebSocket-Key", "Sec-WebSocket-Version", "Sec-WebSocket-Protocol")


class Refused(Exception):
    """A client broke the rules; its WebSocket closes with ``code``."""

    def __init__(self, message: str, code: CloseReason = CloseReason.POLICY_VIOLATION) -> None:
        super().__init__(message)
        self.code = code


class Opening:
    """A request for a WebSocket; ``early`` are events that came before the loop serves it.

    ``header`` returns the value of a header of the request.

    :raises UpgradeRequired: it does not ask for a WebSocket as RFC 6455 requires.
    """

    stream: socket.socket
    """The client's socket, from :meth:`accept` on."""

    token: str | None = None
    """The id of the client's token, with which the stream ends; None for the owner."""

    has_ended: Callable[[], bool]
    """Returns whether that token has become invalid."""

    def __init__(self, header: Callable[[str], str | None]) -> None:
        self.connection = WSConnection(ConnectionType.SERVER)
        self.early: list[Event] = []
        self.has_ended = lambda: False
        self._offered = [word.strip() for word in (header("Sec-WebSocket-Protocol") or "").split(",")]
        given = [(name.encode(), value.encode("latin-1")) for name in _HEADERS if (value := header(name)) is not None]
        try:
            self.connection.initiate_upgrade_connection(given, "/")
            key = base64.b64decode(header("Sec-WebSocket-Key") or "", validate=True)
        except (RemoteProtocolError, LocalProtocolError) as error:
            raise UpgradeRequired(f"This endpoint is a WebSocket. {error}.") from None
        except (binascii.Error, ValueError):
            key = b""
        if len(key) != KEY_BYTES:
            raise UpgradeRequired(
                f"This endpoint is a WebSocket. Sec-WebSocket-Key is not {KEY_BYTES} bytes in base64."
            )

    @property
    def ticket(self) -> str | None:
        """The ticket among the subprotocols that the client offers, or None."""
        return next(
            (word.removeprefix(frames.TICKET) for word in self._offered if word.startswith(frames.TICKET)), None
        )

    def accept(self, stream: socket.socket) -> None:
        """Answer 101 on ``stream``, which belongs to this from now on."""
        self.stream = stream
        with suppress(OSError):
            # A Unix socket sends small pieces at once anyway.
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        chosen = frames.SUBPROTOCOL if frames.SUBPROTOCOL in self._offered else None
        list(self.connection.events())
        self._send(self.connection.send(AcceptConnection(subprotocol=chosen)), Deadline(SEND_SECONDS))

    def first_message(self, timeout: float) -> bytes:
        """Return the first message, text or binary, which must come within ``timeout`` seconds.

        :raises BadFrame: none came, it is larger than :data:`FIRST_MESSAGE_BYTES`, or is no WebSocket message.
        """
        deadline, message = Deadline(timeout), bytearray()
        for event in self._events(deadline):
            if isinstance(event, CloseConnection):
                raise BadFrame(f"The stream ended before its request. {event.reason or ''}".strip())
            if isinstance(event, TextMessage | BytesMessage):
                message += event.data.encode() if isinstance(event.data, str) else event.data
                if len(message) > FIRST_MESSAGE_BYTES:
                    raise BadFrame(f"The request of a stream has at most {FIRST_MESSAGE_BYTES} bytes.")
                if event.message_finished:
                    break
        self.early = list(self.connection.events())
        return bytes(message)

    def _events(self, deadline: Deadline) -> Iterator[Event]:
        while True:
            yield from self.connection.events()
            late = BadFrame(f"The request of the stream did not come within {deadline.seconds:g} s.")
            # A client that sends without a pause, such as pings, would never time out.
            if deadline.passed:
                raise late
            self.stream.settimeout(deadline.left(0.001))
            try:
                data = self.stream.recv(RECEIVE_BYTES)
            except TimeoutError:
                raise late from None
            except OSError:
                data = b""
            self.connection.receive_data(data or None)

    def _send(self, data: bytes, deadline: Deadline) -> None:
        self.stream.settimeout(deadline.left(0.001))
        self.stream.sendall(data)
