"""Channels of an SSH connection (RFC 4254, section 5), filled by the thread that reads from it.

paramiko calls the methods with a leading underscore, named as in its own Channel. Arriving data of both output streams
goes into one queue a channel: a reader waits for both at once, and neither fills up.
"""

from __future__ import annotations

import signal
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Protocol

from paramiko.common import (
    MSG_CHANNEL_CLOSE,
    MSG_CHANNEL_DATA,
    MSG_CHANNEL_EOF,
    MSG_CHANNEL_FAILURE,
    MSG_CHANNEL_REQUEST,
    MSG_CHANNEL_WINDOW_ADJUST,
)
from paramiko.message import Message
from paramiko.ssh_exception import SSHException

from connmgr.plugin import Deadline
from connmgr_ssh.packets import Payload
from connmgr_ssh.readiness import Readiness

WINDOW_BYTES = 2 * 1024 * 1024
"""Unread bytes of a channel for bulk data; bounds its memory, and a link's speed over long distances."""

NARROW_WINDOW_BYTES = 512 * 1024
"""Unread bytes of any other channel, whose reader may be slow."""
PACKET_BYTES = 32 * 1024
BACKGROUND_SECONDS = 30.0
"""Limit for messages that no caller waits for, such as a channel's end."""

BATCH_BYTES = 8 * PACKET_BYTES
"""Bytes of data sent at once, in several packets."""

SMALL_BYTES = 4 * 1024
"""Smaller messages are merged, because each piece has a cost in memory."""

MAX_UNREAD_ANSWERS = 8
"""Most answers that wait to be read; a peer answers each request once."""

STDOUT, STDERR = 0, 1

_Pieces = deque[bytes | bytearray | memoryview]


class Refused(Exception):
    """The far side refused to open a channel: a reason of RFC 4254, section 5.1, and its own words."""

    def __init__(self, reason: int, text: str) -> None:
        super().__init__(reason, text)
        self.reason = reason
        self.text = text


class Link(Protocol):
    """The parts of a connection that a channel uses."""

    abandoned: set[Stream]

    def post(self, message: Message, deadline: Deadline, of: Stream | None = None, *, last: bool = False) -> None: ...
    def post_all(self, payloads: Iterable[Payload], deadline: Deadline, of: Stream) -> None: ...
    def post_now(self, payloads: Callable[[], Iterable[Payload]], of: Stream) -> bool: ...
    def post_later(self, message: Message, of: Stream | None = None, *, last: bool = False) -> None: ...
    def post_soon(self, message: Message, of: Stream) -> None: ...
    def forget(self, stream: Stream) -> None: ...


class Stream:
    """One channel: two windows, the data received, and the state of the far end."""

    first_window = WINDOW_BYTES

    def __init__(self, link: Link, number: int) -> None:
        self.link = link
        self.number = number
        self.closed = False
        self.close_sent = False
        self._remote = -1
        # Guards all below against the link's reader, a writer and a closer.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._arrived: tuple[_Pieces, _Pieces] = (deque(), deque())
        self._ended = False
        self._answers: deque[bool | Refused] = deque()
        self._room_out = 0
        self._packet_out = PACKET_BYTES
        self._window = self._room_in = self.first_window
        self._unacknowledged = 0
        self._eof_sent = False
        self._status: int | None = None
        self._readiness: Readiness | None = None

    # Called by the thread that reads from the link.

    def _set_remote_channel(self, number: int, window: int, packet: int) -> None:
        with self._lock:
            self._remote, self._room_out, self._packet_out = number, window, min(max(packet, 1), PACKET_BYTES)
            abandoned = self.closed
        if abandoned:
            self.link.abandoned.discard(self)
            self.link.post_later(self._message(MSG_CHANNEL_CLOSE), self, last=True)
        self._answered(True)

    def refuse(self, reason: int, text: str) -> None:
        """Record that the far side refuses this channel."""
        self._answered(Refused(reason, text))

    def _answered(self, answer: bool | Refused) -> None:
        with self._lock:
            if len(self._answers) >= MAX_UNREAD_ANSWERS:
                raise SSHException("The peer answers what was not asked")
            self._answers.append(answer)
            self._notify()

    def _feed(self, message: Message) -> None:
        self.receive(STDOUT, message.get_binary())

    def _feed_extended(self, message: Message) -> None:
        code = message.get_int()
        data = message.get_binary()
        if code == 1:
            self.receive(STDERR, data)

    def receive(self, which: int, data: bytes | memoryview) -> None:
        """Queue data received on one of the two streams.

        :raises paramiko.SSHException: it exceeds the window.
        """
        if not data:
            return
        with self._lock:
            self._room_in -= len(data)
            if self._room_in < 0:
                raise SSHException("The peer sent more than the channel's window allows")
            if not self.closed:
                _put(self._arrived[which], data)
                self._notify()

    def _taken(self, which: int, size: int) -> bytes:
        """Return the first pieces of the data received on a stream, at least ``size`` bytes if available.

        The caller holds the lock.
        """
        pieces, taken = self._arrived[which], []
        while pieces and size > 0:
            taken.append(pieces.popleft())
            size -= len(taken[-1])
        return b"".join(taken)

    def _window_adjust(self, message: Message) -> None:
        with self._lock:
            self._room_out += message.get_int()
            self._notify()

    def _handle_request(self, message: Message) -> None:
        kind = message.get_text()
        wants_answer = message.get_boolean()
        if kind == "exit-status":
            self._settle(message.get_int())
        elif kind == "exit-signal":
            number = getattr(signal, f"SIG{message.get_text()}", None)
            self._settle(128 + number if isinstance(number, signal.Signals) else 255)
        elif wants_answer:
            self.link.post_later(self._message(MSG_CHANNEL_FAILURE), self)

    def _settle(self, status: int) -> None:
        with self._lock:
            self._status = status
            self._notify()

    def _request_success(self, message: Message) -> None:
        self._answered(True)

    def _request_failed(self, message: Message) -> None:
        self._answered(False)

    def _handle_eof(self, message: Message) -> None:
        with self._lock:
            self._ended = True
            self._notify()

    def _handle_close(self, message: Message) -> None:
        self._end()
        self.link.post_later(self._message(MSG_CHANNEL_CLOSE), self, last=True)
        self.link.forget(self)

    def _unlink(self) -> None:
        """End the channel: the link is gone."""
        self._end()

    # Called by any thread.

    def note_news(self) -> None:
        """Wake the threads that wait for the descriptor."""
        with self._lock:
            self._notify()

    def _end(self) -> bool:
        """Wake all waiting threads; return whether the channel was open."""
        with self._lock:
            was_open = not self.closed
            self.closed = self._ended = True
            self._notify()
        return was_open

    def _notify(self) -> None:
        """Wake the threads that wait for a change; the caller holds the lock."""
        if self._readiness is not None:
            self._readiness.set()
        # notify_all() costs more than all other work for a piece of data, even if no thread waits.
        if self._waiting:
            self._changed.notify_all()

    def _wait(self, ready: Callable[[], object], timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until ``ready()``; return whether it is."""
        if timeout <= 0 or ready():
            return bool(ready())
        with self._changed:
            self._waiting += 1
            try:
                return bool(self._changed.wait_for(ready, timeout))
            finally:
                self._waiting -= 1

    def close(self) -> None:
        """Close the channel and drop its unread data. Never raises; calling it again does nothing."""
        was_open = self._end()
        for pieces in self._arrived:
            pieces.clear()
        self._leave_readiness()
        if not was_open:
            return
        if self._remote < 0:
            # The far side may still open the channel, which must then be closed.
            self.link.abandoned.add(self)
            return
        self.link.forget(self)
        try:
            self._say_goodbye()
            self.link.post(self._message(MSG_CHANNEL_CLOSE), Deadline(BACKGROUND_SECONDS), self, last=True)
        except (OSError, EOFError):
            return

    def _say_goodbye(self) -> None:
        """Send the channel's last messages before it closes."""

    def fileno(self) -> int:
        """Return a descriptor that is readable while there is news."""
        with self._lock:
            if self._readiness is None:
                self._readiness = Readiness()
                # There may be news already.
                self._readiness.set()
            return self._readiness.fileno()

    def _leave_readiness(self) -> None:
        with self._lock:
            readiness, self._readiness = self._readiness, None
            if readiness is not None:
                readiness.close()

    def wait_open(self, deadline: Deadline) -> None:
        """Wait until the channel is open; raise :class:`Refused`, TimeoutError (it is closed) or EOFError."""
        answer = self._answer(deadline)
        if isinstance(answer, Refused):
            raise answer

    def _answer(self, deadline: Deadline) -> bool | Refused:
        if not self._wait(lambda: self._answers or self.closed, deadline.left()):
            self.close()
            raise TimeoutError("The far side did not answer.")
        if not self._answers:
            raise EOFError
        return self._answers.popleft()

    def request(self, kind: bytes, payload: bytes, deadline: Deadline) -> bool:
        """Send a request about this channel; return the far side's consent, or raise TimeoutError or EOFError."""
        self.link.post(self._request(kind, payload, wants_answer=True), deadline, self)
        return self._answer(deadline) is True

    def _request(self, kind: bytes, payload: bytes, *, wants_answer: bool) -> Message:
        return self._message(MSG_CHANNEL_REQUEST, packed(kind) + bytes([wants_answer]) + payload)

    def _message(self, code: int, payload: bytes = b"") -> Message:
        return Message(struct.pack(">BI", code, self._remote) + payload)

    def _write(self, data: memoryview, deadline: Deadline) -> int:
        """Write as much of ``data`` as the window allows, a batch at most, and return its size."""
        if not self._room_out:
            self._wait(lambda: self._room_out or self.closed or self._eof_sent, deadline.left())
        with self._lock:
            if self.closed or self._eof_sent:
                raise BrokenPipeError("The channel is closed.")
            size = min(len(data), self._room_out, BATCH_BYTES)
            if not size:
                raise TimeoutError("The far side takes no more data.")
            self._room_out -= size
        try:
            self.link.post_all(self._packets(data[:size]), deadline, self)
        except TimeoutError:
            with self._lock:
                self._room_out += size
            raise
        return size

    def _packets(self, data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
        for start in range(0, len(data), self._packet_out):
            piece = data[start : start + self._packet_out]
            yield struct.pack(">BII", MSG_CHANNEL_DATA, self._remote, len(piece)), piece

    def sendall(self, data: bytes | memoryview, timeout: float) -> None:
        """Write all of ``data``; raise TimeoutError after ``timeout`` seconds, OSError if the channel is gone."""
        deadline = Deadline(timeout)
        rest = memoryview(data)
        while rest:
            rest = rest[self._write(rest, deadline) :]

    def shutdown_write(self) -> None:
        """Tell the far side that no more data follow."""
        with self._lock:
            if self.closed or self._eof_sent:
                return
            self._eof_sent = True
            self._notify()
        # The far side may have closed the channel meanwhile.
        with suppress(BrokenPipeError):
            self.link.post(self._message(MSG_CHANNEL_EOF), Deadline(BACKGROUND_SECONDS), self)

    def _consume(self, size: int) -> None:
        """Enlarge the far side's window by ``size``, once enough has accumulated to be worth a packet."""
        self._unacknowledged += size
        if self._unacknowledged < self._window // 4 or self.closed:
            return
        grant, self._unacknowledged = self._unacknowledged, 0
        self._grant(grant)

    def _widen(self, window: int) -> None:
        """Let the far side send up to ``window`` unread bytes."""
        grant, self._window = window - self._window, window
        self._grant(grant)

    def _grant(self, grant: int) -> None:
        with self._lock:
            self._room_in += grant
        message = self._message(MSG_CHANNEL_WINDOW_ADJUST, struct.pack(">I", grant))
        try:
            if self._readiness is not None:
                self.link.post_soon(message, self)
            else:
                self.link.post(message, Deadline(BACKGROUND_SECONDS), self)
        except (OSError, EOFError):
            self._end()


def _put(pieces: _Pieces, data: bytes | memoryview) -> None:
    """Add ``data`` to ``pieces``, merging two small pieces in a row."""
    if len(data) >= SMALL_BYTES or not pieces or len(pieces[-1]) >= SMALL_BYTES:
        pieces.append(data)
    elif isinstance(pieces[-1], bytearray):
        pieces[-1] += data
    else:
        pieces[-1] = bytearray(pieces[-1]) + data


def packed(data: bytes) -> bytes:
    """Return a string in the encoding of RFC 4251, section 5."""
    return struct.pack(">I", len(data)) + data
