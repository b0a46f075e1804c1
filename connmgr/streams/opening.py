"""A WebSocket on the daemon's side (RFC 6455, section 4.2), until the loop serves it."""

from __future__ import annotations

import base64
import binascii
import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Event, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from connmgr import frames
from connmgr.errors import BadFrame, UpgradeRequired
from connmgr.plugin import Deadline
from connmgr.streams.loop import Loop

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

    holder: str | None = None
    """Whose share of the streams it counts for."""

    has_ended: Callable[[], bool]
    """Returns whether that token has become invalid."""

    def __init__(self, header: Callable[[str], str | None]) -> None:
        self.connection = WSConnection(ConnectionType.SERVER)
        self.early: list[Event] = []
        self._message = bytearray()
        self._is_whole = False
        self._failure: str | None = None
        # The loop reads the first message, until a thread asks for it.
        self._reading = threading.Lock()
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
        stream.setblocking(False)

    def first_message(self) -> bytes | None:
        """Return the first message, text or binary, once it has come whole; None before, without waiting.

        :raises BadFrame: it is larger than :data:`FIRST_MESSAGE_BYTES`, or is not a WebSocket message.
        """
        with self._reading:
            if self._failure is not None:
                raise BadFrame(self._failure)
            while not self._is_whole:
                for event in self.connection.events():
                    if self._take(event):
                        self.early = list(self.connection.events())
                        break
                else:
                    if not self._receive():
                        return None
            return bytes(self._message)

    def await_message(self, loop: Loop, notify: Callable[[], None]) -> Callable[[], None]:
        """Call ``notify``, in the thread of ``loop``, when :meth:`first_message` has a result.

        Return a function that cancels that. The loop reads, so that a client that says nothing, or says it slowly,
        takes no thread.
        """
        watched: list[int] = []

        def end() -> None:
            while watched:
                loop.unwatch(watched.pop())

        def ready(_: int) -> None:
            try:
                has_come = self.first_message() is not None
            except BadFrame:
                # The next call raises it again.
                has_come = True
            if has_come:
                end()
                notify()

        def begin() -> None:
            if (descriptor := self.stream.fileno()) >= 0:
                watched.append(descriptor)
                loop.watch(descriptor, selectors.EVENT_READ, ready)

        loop.call(begin)
        return lambda: loop.call(end)

    def _take(self, event: Event) -> bool:
        """Take an event of the first message; return whether it is whole now."""
        if isinstance(event, CloseConnection):
            self._failure = f"The stream ended before its request. {event.reason or ''}".strip()
        elif isinstance(event, TextMessage | BytesMessage):
            self._message += event.data.encode() if isinstance(event.data, str) else event.data
            if len(self._message) > FIRST_MESSAGE_BYTES:
                self._failure = f"The request of a stream has at most {FIRST_MESSAGE_BYTES} bytes."
            self._is_whole = event.message_finished
        if self._failure is not None:
            raise BadFrame(self._failure)
        return self._is_whole

    def _receive(self) -> bool:
        """Receive what has come; return whether anything has, the end of the stream included."""
        try:
            data = self.stream.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self.connection.receive_data(data or None)
        return True

    def _send(self, data: bytes, deadline: Deadline) -> None:
        self.stream.settimeout(deadline.left(0.001))
        self.stream.sendall(data)
