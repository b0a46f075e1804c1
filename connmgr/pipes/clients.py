"""The daemon's clients of streams: the upgrade to a WebSocket, its frames served by the loop, and both windows."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

from connmgr.computing import Computing, Rests
from connmgr.errors import BadFrame, ConnmgrError, InternalError, UpgradeRequired
from connmgr.plugin import Deadline
from connmgr.streams import frames
from connmgr.streams.endpoints import Endpoint, Outbox, Outcome, Receiver
from connmgr.streams.frames import MAX_FRAME_BYTES
from connmgr.streams.loop import Loop
from connmgr.streams.websocket import (
    BINARY,
    CLOSE,
    GOING_AWAY,
    INTERNAL_ERROR,
    NORMAL,
    PING,
    POLICY_VIOLATION,
    PONG,
    TEXT,
    TOO_LARGE,
    UNSUPPORTED_DATA,
    Codec,
    ProtocolError,
    WebSocketMessage,
    acceptance,
    read_closing,
    require_upgrade,
)

FIRST_MESSAGE_BYTES = 1024 * 1024
FIRST_MESSAGE_FRAMES = 256
"""Most frames of a client up to the end of its request, pings and pieces of the request included: they are read at
once, wherever they come, by the thread that serves all streams or by one of the request's."""

SEND_SECONDS = 5.0
PING_SECONDS = 20.0
SILENCE_SECONDS = 40.0
"""Seconds of silence, without even the answer to a ping, after which a client is considered gone."""

GOODBYE_SECONDS = 5.0
"""Seconds in which a client must read the last frames and answer the close."""

RECEIVE_BYTES = 256 * 1024
FRAMES_AT_ONCE = 16
SMALL_FRAME_BYTES = 1024
"""After :data:`FRAMES_AT_ONCE` frames smaller than this the loop serves others, and a token's clients rest: a frame
takes the same time whatever its length."""

FRAMES_REST = 4.0
"""Rest after small frames, as a multiple of their time: a token may use a fifth of the thread that serves all."""

MAX_PENDING_BYTES = 2 * 1024 * 1024
"""Most unread bytes of a client, beyond which it is considered gone; its window does not limit answers to pings."""


class AnsweringEndpoint(Endpoint):
    """The client of a stream, as an endpoint: it waits for an outcome, and can be told why there is none."""

    awaits_outcome = True

    def stop(self, why: ConnmgrError) -> None:
        """Tell the client at once why its stream ends, and close."""
        raise NotImplementedError


class WaitingClient(Protocol):
    """A client that waits for its stream, until the loop serves it."""

    @property
    def token(self) -> str | None:
        """The id of the client's token, with which the stream ends; None for the owner."""

    @property
    def holder(self) -> str | None:
        """Whose share of the streams it counts for."""

    @property
    def session(self) -> str | None:
        """The id of the page's session with which the stream ends; None for other clients."""

    @property
    def has_ended(self) -> Callable[[], bool]:
        """Returns whether that token has become invalid, or the page's session is over."""

    def join(self, loop: Loop, resized: Callable[[int, int], object], *, forwards_agent: bool) -> AnsweringEndpoint:
        """Return the client as an endpoint; called in the loop's thread.

        ``resized`` gets the sizes of its terminal. ``forwards_agent`` says whether its process gets an ssh-agent.
        """

    def abandon(self) -> None:
        """Release the client without an answer, instead of :meth:`join`."""


class Opening:
    """A request for a WebSocket, until the loop serves it.

    ``header`` returns the value of a header of the request.

    :raises UpgradeRequired: it does not ask for a WebSocket as RFC 6455 requires.
    """

    stream: socket.socket
    """The client's socket, from :meth:`accept` on."""

    token: str | None = None
    """The id of the client's token, with which the stream ends; None for the owner."""

    holder: str | None = None
    """Whose share of the streams it counts for."""

    session: str | None = None
    """The id of the page's session with which the stream ends; None for other clients."""

    rests: Rests
    """The rests of its token's clients between many small frames."""

    has_ended: Callable[[], bool]
    """Returns whether that token has become invalid, or the page's session is over."""

    used: Callable[[], object]
    """Called when the client has sent data: somebody is there."""

    def __init__(self, header: Callable[[str], str | None]) -> None:
        self.codec = Codec(is_client=False, max_bytes=FIRST_MESSAGE_BYTES)
        self._frames = 0
        self._message: bytes | None = None
        self._failure: str | None = None
        # The loop reads the first message, until a thread asks for it.
        self._reading = threading.Lock()
        self.has_ended, self.used = lambda: False, lambda: None
        self.rests = Rests(Computing(), FRAMES_REST)
        self._offered = [word.strip() for word in (header("Sec-WebSocket-Protocol") or "").split(",")]
        try:
            self._key = require_upgrade(header)
        except ValueError as error:
            raise UpgradeRequired(f"This endpoint is a WebSocket. {error}.") from None

    @property
    def ticket(self) -> str | None:
        """The ticket among the subprotocols that the client offers, or None."""
        return next(
            (word.removeprefix(frames.TICKET) for word in self._offered if word.startswith(frames.TICKET)), None
        )

    def accept(self, stream: socket.socket) -> None:
        """Answer 101 on ``stream``, which belongs to this object from now on."""
        self.stream = stream
        with suppress(OSError):
            # A Unix socket sends small pieces at once anyway.
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        chosen = frames.SUBPROTOCOL if frames.SUBPROTOCOL in self._offered else None
        stream.settimeout(Deadline(SEND_SECONDS).left(0.001))
        stream.sendall(acceptance(self._key, chosen))
        stream.setblocking(False)

    def first_message(self) -> bytes | None:
        """Return the first message, text or binary, once it has come whole; None before, without waiting.

        :raises BadFrame: it is larger than :data:`FIRST_MESSAGE_BYTES`, is not a WebSocket message, or more than
            :data:`FIRST_MESSAGE_FRAMES` frames have come.
        """
        with self._reading:
            while self._message is None and self._failure is None:
                try:
                    message = self.codec.next()
                except ProtocolError as error:
                    self._failure = (
                        f"The request of a stream has at most {FIRST_MESSAGE_BYTES} bytes."
                        if error.code == TOO_LARGE
                        else f"The stream ended before its request. {error}"
                    )
                    break
                if message is None:
                    # Nothing more has come. The request is suspended, and asks again when the socket is readable.
                    if not self._receive():
                        return None
                    continue
                self._frames += 1
                if message.opcode == CLOSE:
                    self._failure = "The stream ended before its request."
                elif message.opcode in (TEXT, BINARY):
                    self._message = message.payload
                elif self._frames >= FIRST_MESSAGE_FRAMES:
                    # Whoever sends without pause would never let go of the thread that reads.
                    self._failure = (
                        f"The request of a stream comes in at most {FIRST_MESSAGE_FRAMES} frames, pings included."
                    )
            if self._failure is not None:
                raise BadFrame(self._failure)
            return self._message

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

    def join(
        self, loop: Loop, resized: Callable[[int, int], object], *, forwards_agent: bool = False
    ) -> AnsweringEndpoint:
        """Return the client as an endpoint (:class:`WaitingClient`)."""
        return ClientEndpoint(loop, self, resized)

    def abandon(self) -> None:
        """Close its socket."""
        self.stream.close()

    def _receive(self) -> bool:
        """Receive available data; return whether there was any, or the stream has ended."""
        try:
            data = self.stream.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data:
            self.codec.feed(data)
        else:
            self._failure = "The stream ended before its request."
        return True


class WebSocket:
    """The WebSocket that was opened as ``opening``. All methods belong to the thread of ``loop``.

    ``received`` is called with each frame, and may raise :class:`ProtocolError`; ``refused`` with a client's violation
    of the protocol; ``left`` once, when nothing more can be received or sent; ``drained`` when all is sent that had to
    wait.
    """

    def __init__(
        self,
        loop: Loop,
        opening: Opening,
        *,
        received: Callable[[bytes], None],
        refused: Callable[[ProtocolError], None],
        left: Callable[[], None],
        drained: Callable[[], None] = lambda: None,
    ) -> None:
        self._loop = loop
        self._socket = opening.stream
        self._codec = opening.codec
        self._codec.max_bytes = MAX_FRAME_BYTES
        self._received, self._refused, self._left, self._drained = received, refused, left, drained
        self._outbox = Outbox(self._socket.send)
        self._awaits_room = False
        self._holder, self._rests = opening.holder, opening.rests
        self._is_resting = False
        """Whether received frames still wait for their turn; nothing is read meanwhile."""
        self._watched = 0
        self._heard = True
        self._silences = 0
        # Whether we have sent the last frame, whether the client has, and whether the socket is closed.
        self._closing = self._client_closed = self._closed = False
        self._socket.setblocking(False)
        self._timer = loop.after(PING_SECONDS, self._tick)
        # Frames may have come with the first message. Scheduled, since one would reach the caller's handler before its
        # constructor has ended.
        loop.call(self._handle_on)

    def send(self, *parts: bytes | memoryview) -> None:
        """Send a frame, later if not at once; do nothing after :meth:`close`, or if the client has closed."""
        if not (self._closing or self._client_closed):
            self._put(self._codec.frame(BINARY, *parts))

    def say(self, texts: Iterable[str]) -> None:
        """Send text messages; otherwise as :meth:`send`."""
        if not (self._closing or self._client_closed):
            # Together, because each call to the system costs more than a message.
            self._put(b"".join(self._codec.frame(TEXT, text.encode()) for text in texts))

    @property
    def unsent(self) -> int:
        """Bytes that the system has not taken yet."""
        return self._outbox.size

    def close(self, code: int = NORMAL, reason: str = "") -> None:
        """Send the close frame after all data, and end. Calling it again does nothing."""
        if not self._closing:
            self._say_goodbye(code, reason)

    def abandon(self) -> None:
        """End at once. Calling it again does nothing."""
        if self._closed:
            return
        self._closed = self._closing = True
        self._timer.cancel()
        self._loop.unwatch(self._socket.fileno())
        self._socket.close()
        self._outbox.drop()
        self._left()

    def _say_goodbye(self, code: int, reason: str) -> None:
        """Send the last frame, and end within :data:`GOODBYE_SECONDS`, whatever the client does."""
        self._closing = True
        self._timer.cancel()
        self._timer = self._loop.after(GOODBYE_SECONDS, self.abandon)
        self._put(self._codec.closing(code, reason))

    def _watch(self) -> None:
        """Watch the socket for the events that matter now."""
        reads = 0 if self._is_resting else selectors.EVENT_READ
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
        if events & selectors.EVENT_READ and not (self._closed or self._is_resting):
            self._receive()

    def _receive(self) -> None:
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.abandon()
            return
        self._heard = True
        self._codec.feed(data)
        self._handle_on()

    def _handle_on(self) -> None:
        """Handle received frames, but only a few small ones at once: the rest are handled after a pause."""
        if wait := self._rests.before(self._holder):
            self._rest(wait)
            return
        began, small = time.thread_time(), 0
        self._is_resting = False
        try:
            while not self._closed and (message := self._codec.next()) is not None:
                self._handle(message)
                small += len(message.payload) < SMALL_FRAME_BYTES
                if small == FRAMES_AT_ONCE:
                    used = time.thread_time() - began
                    self._rest(self._rests.after(self._holder, used))
                    break
        except ProtocolError as refusal:
            if not self._closing:
                self._refused(refusal)
                self.close(refusal.code, str(refusal))
        except Exception:
            # The frame has left the codec and is not handled. If the client went on, a piece of its data would be lost.
            self.close(INTERNAL_ERROR, "A frame could not be handled; the daemon's log says more.")
            raise
        finally:
            self._watch()

    def _rest(self, seconds: float) -> None:
        """Read nothing and handle no frame for a while."""
        self._is_resting = True
        self._loop.after(seconds, self._handle_on)
        self._watch()

    def _handle(self, message: WebSocketMessage) -> None:
        if message.opcode == CLOSE:
            self._take_goodbye(*read_closing(message.payload))
        elif self._closing:
            # Frames after our close frame are ignored.
            return
        elif message.opcode == PING:
            self._put(self._codec.frame(PONG, message.payload))
        elif message.opcode == TEXT:
            raise ProtocolError("Frames are binary messages.", UNSUPPORTED_DATA)
        elif message.opcode == BINARY:
            self._received(message.payload)

    def _take_goodbye(self, code: int, reason: str) -> None:
        self._client_closed = True
        if not self._closing:
            self._say_goodbye(code, reason)
        elif not self._outbox.size:
            self.abandon()

    def _tick(self) -> None:
        # TCP notices a client that vanished only after minutes of resending, or never if there is nothing to send.
        self._silences = 0 if self._heard else self._silences + 1
        if self._silences * PING_SECONDS >= SILENCE_SECONDS:
            self.abandon()
            return
        self._heard = False
        self._put(self._codec.frame(PING))
        self._timer = self._loop.after(PING_SECONDS, self._tick)

    def _put(self, data: bytes) -> None:
        if self._closed:
            return
        self._pass_on(lambda: self._outbox.put(data))
        # Each ping wants a pong of the same size (RFC 6455, section 5.5.3), and no window counts them: a client that
        # sends pings and reads nothing would fill the memory.
        if self._outbox.size > MAX_PENDING_BYTES:
            self.abandon()

    def _flush(self) -> None:
        self._pass_on(self._outbox.flush)

    def _pass_on(self, write: Callable[[], int]) -> None:
        try:
            write()
        except OSError:
            self.abandon()
            return
        if bool(self._outbox.size) != self._awaits_room:
            self._awaits_room = not self._awaits_room
            self._watch()
            if not self._awaits_room:
                self._drained()
        if self._closing and self._client_closed and not self._outbox.size:
            self.abandon()


class Handler(Protocol):
    """Handles the frames of a client. All methods are called in the loop's thread."""

    def receive(self, data: bytes) -> None:
        """Handle input; call :meth:`Client.acknowledge` when it was passed on."""

    def end_input(self) -> None:
        """Handle the end of the input."""

    def resize(self, columns: int, rows: int) -> None:
        """Handle a new size of the client's terminal."""

    def has_room(self) -> None:
        """Continue: the client has acknowledged all held output."""

    def leave(self) -> None:
        """Handle, once, that the client has left."""


class Client:
    """One client of a stream, whose WebSocket is open. Belongs to the thread of ``loop``."""

    def __init__(self, loop: Loop, opening: Opening, handler: Handler) -> None:
        self._handler, self._used = handler, opening.used
        self._websocket = WebSocket(loop, opening, received=self._received, refused=self._refused, left=handler.leave)
        self._windows = frames.Windows(eager=True)
        self._unsent: deque[tuple[int, memoryview]] = deque()
        self.unsent = 0
        """Bytes of output that wait for acknowledgements."""

        self._ended_input = self._ended_output = False
        self._last: Callable[[], None] | None = None

    @property
    def is_full(self) -> bool:
        """Whether output waits for acknowledgements, so that no more should be sent."""
        return bool(self._unsent)

    def send(self, data: bytes | memoryview, kind: int = frames.DATA) -> None:
        """Send output as far as the client's window allows, and the rest after acknowledgements."""
        if data:
            self._unsent.append((kind, memoryview(data)))
            self.unsent += len(data)
        self._send_on()

    def tell(self, frame: bytes) -> None:
        """Send a frame other than data."""
        self._websocket.send(frame)

    def acknowledge(self, size: int) -> None:
        """Acknowledge ``size`` bytes of the client's input."""
        if acknowledgement := self._windows.taken(size):
            self.tell(acknowledgement)

    def finish(self, status: int) -> None:
        """Send the process's exit status after all output, and close."""
        self._last = lambda: self._finish(status)
        self._send_on()

    def _finish(self, status: int) -> None:
        self._tell_end()
        self.tell(frames.exit_status(status))
        self._websocket.close()

    def end_output(self) -> None:
        """Tell the client, after all output, that no more follows; its status comes later."""
        self._last = self._tell_end
        self._send_on()

    def _tell_end(self) -> None:
        if not self._ended_output:
            self._ended_output = True
            self.tell(bytes((frames.EOF,)))

    def close(self) -> None:
        """Close without a status or an error. Calling it again does nothing."""
        self._websocket.close(GOING_AWAY)

    def fail(self, why: ConnmgrError, code: int = INTERNAL_ERROR) -> None:
        """Send the error that ends the stream after all output, and close; if the daemon stops, at once."""
        self._last = lambda: self._fail(why, code)
        if code == GOING_AWAY:
            self._unsent.clear()
            self.unsent = 0
        self._send_on()

    def _fail(self, why: ConnmgrError, code: int) -> None:
        self.tell(frames.error(why))
        self._websocket.close(code, why.message)

    def _send_on(self) -> None:
        while self._unsent and self._windows.room:
            kind, data = self._unsent[0]
            piece = data[: self._windows.room]
            if len(piece) == len(data):
                self._unsent.popleft()
            else:
                self._unsent[0] = kind, data[len(piece) :]
            self.unsent -= len(piece)
            self._windows.sent(len(piece))
            self._websocket.send(bytes((kind,)), piece)
        if self._last is not None and not self._unsent:
            last, self._last = self._last, None
            last()

    def _received(self, frame: bytes) -> None:
        kind, payload = frame[0] if frame else -1, frame[1:]
        try:
            if kind == frames.DATA:
                self._take(payload)
            elif kind == frames.ACKNOWLEDGEMENT:
                self._acknowledged(frames.count_in(payload))
            elif kind == frames.RESIZE:
                self._handler.resize(*frames.size_in(payload))
            elif kind == frames.EOF:
                self._ended_input = True
                self._handler.end_input()
            else:
                kinds = "0 (data), 2 (resize), 3 (acknowledgement) or 4 (EOF)"
                raise ProtocolError(f"A client's frames begin with {kinds}.", POLICY_VIOLATION)
        except ValueError as error:
            raise ProtocolError(str(error), POLICY_VIOLATION) from None

    def _take(self, data: bytes) -> None:
        if self._ended_input:
            raise ValueError("The client sent data after the end of its input.")
        self._used()
        self._windows.received(len(data))
        self._handler.receive(data)

    def _acknowledged(self, size: int) -> None:
        self._windows.acknowledged(size)
        self._send_on()
        if not self._unsent:
            self._handler.has_room()

    def _refused(self, refusal: ProtocolError) -> None:
        self.tell(frames.error(BadFrame(str(refusal))))


class ClientEndpoint(AnsweringEndpoint):
    """The client of ``opening``; it is over when it has left. ``resized`` gets the sizes of its terminal."""

    def __init__(self, loop: Loop, opening: Opening, resized: Callable[[int, int], object]) -> None:
        self._resized = resized
        self._written = 0
        self._client = Client(loop, opening, self)

    @property
    def unwritten(self) -> int:
        return self._client.unsent

    def begin(self, receiver: Receiver) -> None:
        # Never paused, because the window bounds its data (streams/frames.py: Windows says why).
        self.receiver = receiver

    def write(self, data: bytes | memoryview, kind: int = frames.DATA) -> None:
        self._written += len(data)
        self._client.send(data, kind)
        self._report()

    def acknowledge(self, size: int) -> None:
        self._client.acknowledge(size)

    def end(self) -> None:
        self._client.end_output()

    def finish(self, outcome: Outcome) -> None:
        if isinstance(outcome, int):
            self._client.finish(outcome)
        else:
            self._client.fail(outcome if isinstance(outcome, ConnmgrError) else InternalError("The stream broke."))

    def stop(self, why: ConnmgrError) -> None:
        self._client.fail(why, GOING_AWAY)

    def close(self, *, reset: bool = False) -> None:
        self._client.close()

    # As the handler of the client's frames.

    def receive(self, data: bytes) -> None:
        if data:
            self.receiver.arrived(data)

    def end_input(self) -> None:
        self.receiver.ended()

    def resize(self, columns: int, rows: int) -> None:
        self._resized(columns, rows)

    def has_room(self) -> None:
        self._report()

    def _report(self) -> None:
        sent, self._written = self._written - self._client.unsent, self._client.unsent
        if sent:
            self.receiver.taken(sent)

    def leave(self) -> None:
        self.receiver.over(ConnectionResetError("The client has left."))


class _NullHandler:
    """Handles the frames of a client whose stream has ended."""

    def receive(self, data: bytes) -> None: ...
    def end_input(self) -> None: ...
    def resize(self, columns: int, rows: int) -> None: ...
    def has_room(self) -> None: ...
    def leave(self) -> None: ...


def refuse(loop: Loop, opening: Opening, why: ConnmgrError) -> None:
    """Send a client the error that prevents its stream, and close. Safe in any thread."""
    code = POLICY_VIOLATION if why.status < InternalError.status else INTERNAL_ERROR
    loop.call(lambda: Client(loop, opening, _NullHandler()).fail(why, code))
