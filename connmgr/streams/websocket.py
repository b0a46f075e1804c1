"""The daemon's end of a WebSocket: frames in and out, served by the loop."""

from __future__ import annotations

import selectors
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from wsproto.connection import ConnectionState
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError

from connmgr.frames import MAX_FRAME_BYTES
from connmgr.streams.loop import Loop
from connmgr.streams.opening import Opening, Refused

PING_SECONDS = 20.0
SILENCE_SECONDS = 40.0
"""Seconds of silence, without even the answer to a ping, after which a client is considered gone."""

GOODBYE_SECONDS = 5.0
"""Seconds in which a client must read the last frames and answer the close."""

RECEIVE_BYTES = 256 * 1024
FRAMES_AT_ONCE = 16
SMALL_FRAME_BYTES = 1024
"""After :data:`FRAMES_AT_ONCE` frames of fewer bytes others have their turn, and a token's clients rest. It is not
their length that takes the time."""

MAX_PENDING_BYTES = 2 * 1024 * 1024
"""Most unread bytes of a client, beyond which it is considered gone; its window does not limit answers to pings."""

REASON_BYTES = 120
"""Bytes of a reason in a close frame (RFC 6455, section 5.5)."""


class WebSocket:
    """The WebSocket that was opened as ``opening``. All methods belong to the thread of ``loop``.

    ``received`` is called with each frame, and may raise :class:`Refused`; ``refused`` with a client's violation of the
    protocol; ``left`` once, when nothing more can be received or sent.
    """

    def __init__(
        self,
        loop: Loop,
        opening: Opening,
        *,
        received: Callable[[bytes], None],
        refused: Callable[[Refused], None],
        left: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._socket = opening.stream
        self._connection = opening.connection
        self._received, self._refused, self._left = received, refused, left
        self._message = bytearray()
        self._outgoing: deque[memoryview] = deque()
        self.pending = 0
        """Bytes not yet accepted by the client's socket."""
        self._awaits_room = False
        self._watched = 0
        self._holder = opening.holder
        self._incoming: Iterator[object] | None = None
        """What came and is not handled yet; no more is read meanwhile."""
        self._heard = True
        self._silences = 0
        self._closed = self._closing = False
        self._socket.setblocking(False)
        self._timer = loop.after(PING_SECONDS, self._tick)
        # Scheduled, because the caller is not ready for frames yet.
        loop.call(lambda: self._begin(opening.early))

    def send(self, frame: bytes) -> None:
        """Send a frame, later if not at once; do nothing after :meth:`close`, or if the client has closed."""
        if not self._closing and self._connection.state is ConnectionState.OPEN:
            self._put(self._connection.send(BytesMessage(frame)))

    def close(self, code: CloseReason = CloseReason.NORMAL_CLOSURE, reason: str = "") -> None:
        """Send the close frame after all data, and end. Calling it again does nothing."""
        if self._closing:
            return
        self._await_goodbye()
        reason = reason.encode()[:REASON_BYTES].decode(errors="ignore")
        with suppress(LocalProtocolError):
            self._put(self._connection.send(CloseConnection(code, reason)))

    def _await_goodbye(self) -> None:
        """Send no more frames, and end within :data:`GOODBYE_SECONDS`, whatever the client does."""
        self._closing = True
        self._timer.cancel()
        self._timer = self._loop.after(GOODBYE_SECONDS, self._end)

    def _begin(self, early: Iterable[object]) -> None:
        self._incoming = iter(early)
        self._handle_on()

    def _watch(self) -> None:
        """Watch the socket for what is wanted now."""
        reads = selectors.EVENT_READ if self._incoming is None else 0
        events = reads | (selectors.EVENT_WRITE if self._awaits_room else 0)
        if self._closed or events == self._watched:
            return
        self._watched = events
        if events:
            self._loop.watch(self._socket.fileno(), events, self._ready)
        else:
            self._loop.unwatch(self._socket.fileno())

    def _ready(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush()
        if events & selectors.EVENT_READ and not self._closed and self._incoming is None:
            self._receive()

    def _receive(self) -> None:
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end()
            return
        if self._connection.state is ConnectionState.CLOSED:
            # Both sides have closed, and the client has not read everything yet.
            return
        self._heard = True
        self._connection.receive_data(data)
        self._incoming = self._connection.events()
        self._handle_on()

    def _handle_on(self) -> None:
        """Handle what came, but few small frames at once: if some are left, go on after a rest."""
        began, small, left = time.thread_time(), 0, self._incoming
        self._incoming = None
        try:
            for event in left or ():
                if self._closed:
                    return
                self._handle(event)
                small += len(getattr(event, "data", b"")) < SMALL_FRAME_BYTES
                if small == FRAMES_AT_ONCE:
                    self._incoming = left
                    rest = self._loop.rests.after(self._holder, time.thread_time() - began)
                    self._loop.after(rest, self._handle_on)
                    break
        except Refused as refusal:
            self._refused(refusal)
            self.close(refusal.code, str(refusal))
        except Exception:
            # What came with the frame would be lost unnoticed, and the client must not go on as if it had been taken.
            self.close(CloseReason.INTERNAL_ERROR, "A frame could not be handled; the daemon's log says more.")
            raise
        finally:
            self._watch()

    def _handle(self, event: object) -> None:
        if isinstance(event, Ping):
            if not self._closing:
                self._put(self._connection.send(event.response()))
        elif isinstance(event, CloseConnection):
            self._take_goodbye(event)
        elif self._closing or isinstance(event, Pong):
            # Frames after our close frame are ignored.
            return
        elif isinstance(event, TextMessage):
            raise Refused("Frames are binary messages.", CloseReason.UNSUPPORTED_DATA)
        elif isinstance(event, BytesMessage):
            self._collect(event)

    def _take_goodbye(self, event: CloseConnection) -> None:
        if self._connection.state is ConnectionState.OPEN:
            # This is how wsproto reports frames that it cannot parse.
            raise Refused(f"This is no WebSocket frame: {event.reason}.", CloseReason(event.code))
        if not self._closing:
            self._await_goodbye()
        if self._connection.state is ConnectionState.REMOTE_CLOSING:
            self._put(self._connection.send(event.response()))
        elif not self.pending:
            self._end()

    def _collect(self, event: BytesMessage) -> None:
        if len(self._message) + len(event.data) > MAX_FRAME_BYTES:
            raise Refused(f"A frame has at most {MAX_FRAME_BYTES} bytes.", CloseReason.MESSAGE_TOO_BIG)
        if event.message_finished and not self._message:
            frame = bytes(event.data)
        else:
            self._message += event.data
            if not event.message_finished:
                return
            frame = bytes(self._message)
            self._message.clear()
        self._received(frame)

    def _tick(self) -> None:
        self._silences = 0 if self._heard else self._silences + 1
        if self._silences * PING_SECONDS >= SILENCE_SECONDS:
            self._end()
            return
        self._heard = False
        self._put(self._connection.send(Ping()))
        self._timer = self._loop.after(PING_SECONDS, self._tick)

    def _put(self, data: bytes) -> None:
        if self._closed:
            return
        self._outgoing.append(memoryview(data))
        self.pending += len(data)
        if self.pending > MAX_PENDING_BYTES:
            self._end()
        elif len(self._outgoing) == 1:
            self._flush()

    def _flush(self) -> None:
        try:
            for sent in self._sendings():
                self.pending -= sent
        except BlockingIOError:
            self._await_room(True)
            return
        except OSError:
            self._end()
            return
        self._await_room(False)
        if self._connection.state is ConnectionState.CLOSED:
            self._end()

    def _await_room(self, wanted: bool) -> None:
        if wanted != self._awaits_room:
            self._awaits_room = wanted
            self._watch()

    def _sendings(self) -> Iterator[int]:
        while self._outgoing:
            sent = self._socket.send(self._outgoing[0])
            yield sent
            if sent < len(self._outgoing[0]):
                self._outgoing[0] = self._outgoing[0][sent:]
            else:
                self._outgoing.popleft()

    def _end(self) -> None:
        if self._closed:
            return
        self._closed = self._closing = True
        self._timer.cancel()
        self._loop.unwatch(self._socket.fileno())
        self._socket.close()
        self._outgoing.clear()
        self.pending = 0
        self._left()
