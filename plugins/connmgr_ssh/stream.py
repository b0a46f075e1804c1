"""Channels of an SSH connection (RFC 4254, section 5), fed by the connection's reader thread.

paramiko calls the methods whose names begin with an underscore, by the names of its own Channel. What arrives goes into
one queue a channel, so that a reader waits for both output streams at once and neither is left to fill up.
"""

from __future__ import annotations

import queue
import signal
import struct
import threading
from typing import TYPE_CHECKING

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

from connmgr_ssh.deadline import Deadline

if TYPE_CHECKING:
    from connmgr_ssh.link import Link

WINDOW = 2 * 1024 * 1024
"""Bytes that a channel may hold unread; it bounds what a session costs, and a link's speed over long distances."""
PACKET = 32 * 1024
UNHURRIED = 30.0
"""Seconds for what is sent on no one's behalf, such as a channel's end."""

STDOUT, STDERR, END = 0, 1, 2
FINISHED = (END, b"")


class Refused(Exception):
    """The far side refused to open a channel: a reason of RFC 4254, section 5.1, and its own words."""

    def __init__(self, reason: int, text: str) -> None:
        super().__init__(reason, text)
        self.reason = reason
        self.text = text


class Stream:
    """One channel: two windows, a queue of what has come, and what became of the far end."""

    def __init__(self, link: Link, number: int) -> None:
        self.link = link
        self.number = number
        self.closed = False
        self.close_sent = False
        self._remote = -1
        self._arrived: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[bool | Refused | None] = queue.SimpleQueue()
        # Guards both windows and what has been said of the end, between the reader thread, a writer and a closer.
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._room_out = 0
        self._packet_out = PACKET
        self._room_in = WINDOW
        self._unacknowledged = 0
        self._eof_sent = False
        self._status: int | None = None
        self._settled = threading.Event()

    # Called by the reader thread.

    def _set_remote_channel(self, number: int, window: int, packet: int) -> None:
        with self._lock:
            self._remote, self._room_out, self._packet_out = number, window, min(max(packet, 1), PACKET)
            abandoned = self.closed
        if abandoned:
            self.link.abandoned.discard(self)
            self.link.post_later(self._message(MSG_CHANNEL_CLOSE), self, last=True)
        self._answers.put(True)

    def refuse(self, reason: int, text: str) -> None:
        """Take note that the far side does not open this channel."""
        self._answers.put(Refused(reason, text))

    def _feed(self, message: Message) -> None:
        self._receive(STDOUT, message.get_binary())

    def _feed_extended(self, message: Message) -> None:
        code = message.get_int()
        data = message.get_binary()
        if code == 1:
            self._receive(STDERR, data)

    def _receive(self, which: int, data: bytes) -> None:
        with self._lock:
            self._room_in -= len(data)
            overrun = self._room_in < 0
        if overrun:
            raise SSHException("The peer sent more than the channel's window allows")
        self._arrived.put((which, data))

    def _window_adjust(self, message: Message) -> None:
        with self._lock:
            self._room_out += message.get_int()
            self._room.notify_all()

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
        self._status = status
        self._settled.set()

    def _request_success(self, message: Message) -> None:
        self._answers.put(True)

    def _request_failed(self, message: Message) -> None:
        self._answers.put(False)

    def _handle_eof(self, message: Message) -> None:
        self._arrived.put(FINISHED)

    def _handle_close(self, message: Message) -> None:
        self._end()
        self.link.post_later(self._message(MSG_CHANNEL_CLOSE), self, last=True)
        self.link.forget(self)

    def _unlink(self) -> None:
        """The link is gone."""
        self._end()

    # Called by any thread.

    def _end(self) -> bool:
        """Wake everyone who waits; return whether the channel was open until now."""
        with self._lock:
            was_open = not self.closed
            self.closed = True
            self._room.notify_all()
        self._arrived.put(FINISHED)
        self._answers.put(None)
        self._settled.set()
        return was_open

    def close(self) -> None:
        """Close the channel. Never raises; calling it again does nothing."""
        if not self._end():
            return
        if self._remote < 0:
            # The far side has not answered yet. When it does, what it opened is to be closed.
            self.link.abandoned.add(self)
            return
        self.link.forget(self)
        try:
            self._say_goodbye()
            self.link.post(self._message(MSG_CHANNEL_CLOSE), Deadline(UNHURRIED), self, last=True)
        except (OSError, EOFError):
            return

    def _say_goodbye(self) -> None:
        """Send what the far side should know before the channel closes."""

    def wait_open(self, deadline: Deadline) -> None:
        """Wait until the far side has opened the channel.

        :raises Refused: it does not.
        :raises TimeoutError: it did not answer in time; the channel is closed.
        :raises EOFError: the link is gone.
        """
        answer = self._answer(deadline)
        if isinstance(answer, Refused):
            raise answer

    def _answer(self, deadline: Deadline) -> bool | Refused:
        try:
            answer = self._answers.get(timeout=deadline.left())
        except queue.Empty:
            self.close()
            raise TimeoutError("The far side did not answer.") from None
        if answer is None:
            raise EOFError
        return answer

    def request(self, kind: bytes, payload: bytes, deadline: Deadline) -> bool:
        """Ask the far side for something about this channel and return whether it agreed.

        :raises TimeoutError: it did not answer in time; the channel is closed.
        :raises EOFError: the link or the channel is gone.
        """
        self.link.post(self._request(kind, payload, wants_answer=True), deadline, self)
        return self._answer(deadline) is True

    def _request(self, kind: bytes, payload: bytes, *, wants_answer: bool) -> Message:
        return self._message(MSG_CHANNEL_REQUEST, packed(kind) + bytes([wants_answer]) + payload)

    def _message(self, code: int, payload: bytes = b"") -> Message:
        return Message(struct.pack(">BI", code, self._remote) + payload)

    def _write(self, data: memoryview, deadline: Deadline) -> int:
        """Write as much of ``data`` as one packet holds and return its size."""
        with self._room:
            self._room.wait_for(lambda: self._room_out or self.closed or self._eof_sent, deadline.left())
            if self.closed or self._eof_sent:
                raise BrokenPipeError("The channel is closed.")
            size = min(len(data), self._room_out, self._packet_out)
            if not size:
                raise TimeoutError("The far side takes no more data.")
            self._room_out -= size
        head = struct.pack(">BII", MSG_CHANNEL_DATA, self._remote, size)
        self.link.post(Message(b"".join((head, data[:size]))), deadline, self)
        return size

    def sendall(self, data: bytes, timeout: float) -> None:
        """Write all of ``data``.

        :raises TimeoutError: the far side did not take it within ``timeout`` seconds.
        :raises OSError: the channel or the link is gone.
        """
        deadline = Deadline(timeout)
        rest = memoryview(data)
        while rest:
            rest = rest[self._write(rest, deadline) :]

    def shutdown_write(self) -> None:
        """Tell the far side that nothing more will be written."""
        with self._room:
            if self.closed or self._eof_sent:
                return
            self._eof_sent = True
            self._room.notify_all()
        self.link.post(self._message(MSG_CHANNEL_EOF), Deadline(UNHURRIED), self)

    def _consume(self, size: int) -> None:
        """Let the far side send as much again as was read, in portions worth a packet."""
        self._unacknowledged += size
        if self._unacknowledged < WINDOW // 4 or self.closed:
            return
        grant, self._unacknowledged = self._unacknowledged, 0
        with self._lock:
            self._room_in += grant
        try:
            message = self._message(MSG_CHANNEL_WINDOW_ADJUST, struct.pack(">I", grant))
            self.link.post(message, Deadline(UNHURRIED), self)
        except (OSError, EOFError):
            self._arrived.put(FINISHED)


def packed(data: bytes) -> bytes:
    """Return a string as RFC 4251, section 5, encodes one."""
    return struct.pack(">I", len(data)) + data
