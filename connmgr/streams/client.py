"""A client of a stream: frames in both directions, within both windows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NoReturn, Protocol

from wsproto.frame_protocol import CloseReason

from connmgr import frames
from connmgr.errors import BadFrame, ConnmgrError, InternalError
from connmgr.streams.loop import Loop
from connmgr.streams.opening import Opening, Refused
from connmgr.streams.websocket import WebSocket


class Handler(Protocol):
    """Handles a client's frames. All methods are called in the loop's thread."""

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
        self._handler = handler
        self._websocket = WebSocket(loop, opening, received=self._received, refused=self._refused, left=handler.leave)
        self._unsent: deque[bytes] = deque()
        self._room = frames.WINDOW_BYTES
        self._allowed = frames.WINDOW_BYTES
        self._untold = 0
        self._ended_input = False
        self._last: Callable[[], None] | None = None

    @property
    def is_full(self) -> bool:
        """Whether output waits for acknowledgements, so that no more should be sent."""
        return bool(self._unsent)

    def send(self, data: bytes, kind: int = frames.DATA) -> None:
        """Send output as far as the client's window allows, and the rest after acknowledgements."""
        lead = bytes((kind,))
        for start in range(0, len(data), frames.WINDOW_BYTES):
            self._unsent.append(lead + data[start : start + frames.WINDOW_BYTES])
        self._send_on()

    def tell(self, frame: bytes) -> None:
        """Send a frame other than data."""
        self._websocket.send(frame)

    def acknowledge(self, size: int) -> None:
        """Acknowledge ``size`` bytes of the client's input."""
        self._untold += size
        if self._untold >= frames.ACKNOWLEDGED_BYTES or self._allowed + self._untold >= frames.WINDOW_BYTES:
            self._allowed += self._untold
            self.tell(frames.acknowledgement(self._untold))
            self._untold = 0

    def finish(self, status: int) -> None:
        """Send the process's exit status after all output, and close."""
        self._last = lambda: self._finish(status)
        self._send_on()

    def _finish(self, status: int) -> None:
        self.tell(bytes((frames.EOF,)))
        self.tell(frames.exit_status(status))
        self._websocket.close()

    def fail(self, why: ConnmgrError, code: CloseReason = CloseReason.INTERNAL_ERROR) -> None:
        """Send the error that ends the stream after all output, and close; if the daemon stops, at once."""
        self._last = lambda: self._fail(why, code)
        if code is CloseReason.GOING_AWAY:
            self._unsent.clear()
        self._send_on()

    def _fail(self, why: ConnmgrError, code: CloseReason) -> None:
        self.tell(frames.error(why))
        self._websocket.close(code, why.message)

    def _send_on(self) -> None:
        while self._unsent and self._room:
            frame = self._unsent[0]
            if len(frame) - 1 <= self._room:
                self._unsent.popleft()
            else:
                self._unsent[0] = frame[:1] + frame[1 + self._room :]
                frame = frame[: 1 + self._room]
            self._room -= len(frame) - 1
            self._websocket.send(frame)
        if self._last is not None and not self._unsent:
            last, self._last = self._last, None
            last()

    def _received(self, frame: bytes) -> None:
        kind, payload = frame[:1], frame[1:]
        try:
            if kind == bytes((frames.DATA,)):
                self._take(payload)
            elif kind == bytes((frames.ACKNOWLEDGEMENT,)):
                self._acknowledged(frames.count_in(payload))
            elif kind == bytes((frames.RESIZE,)):
                self._handler.resize(*frames.size_in(payload))
            elif kind == bytes((frames.EOF,)):
                self._ended_input = True
                self._handler.end_input()
            else:
                self._refuse("A client's frames begin with 0 (data), 2 (resize), 3 (acknowledgement) or 4 (EOF).")
        except ValueError as error:
            self._refuse(str(error))

    def _refuse(self, message: str) -> NoReturn:
        raise Refused(message)

    def _take(self, data: bytes) -> None:
        if self._ended_input:
            raise ValueError("The client sent data after the end of its input.")
        self._allowed -= len(data)
        if self._allowed < 0:
            raise ValueError(f"More than {frames.WINDOW_BYTES} bytes were sent beyond what was acknowledged.")
        self._handler.receive(data)

    def _acknowledged(self, size: int) -> None:
        if size > frames.WINDOW_BYTES - self._room:
            raise ValueError("More was acknowledged than was sent.")
        self._room += size
        self._send_on()
        if not self._unsent:
            self._handler.has_room()

    def _refused(self, refusal: Refused) -> None:
        self.tell(frames.error(BadFrame(str(refusal))))


class _Nobody:
    """Handles the frames of a client whose stream has ended."""

    def receive(self, data: bytes) -> None: ...
    def end_input(self) -> None: ...
    def resize(self, columns: int, rows: int) -> None: ...
    def has_room(self) -> None: ...
    def leave(self) -> None: ...


def refuse(loop: Loop, opening: Opening, why: ConnmgrError) -> None:
    """Send a client the error that prevents its stream, and close. Safe in any thread."""
    code = CloseReason.POLICY_VIOLATION if why.status < InternalError.status else CloseReason.INTERNAL_ERROR
    loop.call(lambda: Client(loop, opening, _Nobody()).fail(why, code))
