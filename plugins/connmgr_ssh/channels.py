"""Channels of an SSH connection (RFC 4254): processes, and TCP streams from the remote host.

The thread that reads from the link fills them. paramiko calls the methods with a leading underscore, named as in its
own Channel. Arriving data of both output streams goes into one queue a channel: a reader waits for both at once, and
neither fills up.
"""

from __future__ import annotations

import errno
import os
import shlex
import signal
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
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

from connmgr.errors import ShellStartFailed, TransportUnsupported
from connmgr.plugin import Channel, Deadline, Pty
from connmgr_ssh.packets import Payload, packed

# The window (RFC 4254, section 5.2) is what a peer may send before its reader takes it: memory that any channel may
# come to hold, and the most that is on its way at a time. 2 MiB, OpenSSH's own window, fill 1 Gbit/s up to a round trip
# of 17 ms, and 100 Mbit/s up to 170 ms. Hundreds of shells and terminals are open at once, and their readers are
# people: 512 KiB are enough for them, and are widened when a transfer begins (Channel.expect_bulk).
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

READ_BYTES = 160 * 1024
"""Most bytes returned at once; larger blocks of memory are costly to get (mallopt(3))."""

# Opcodes 53 (ECHO) and 72 (ONLCR), each with a number of 32 bit, and 0 for the end of the list (RFC 4254, section 8).
_RAW_MODES = bytes([53, 0, 0, 0, 0, 72, 0, 0, 0, 0, 0])
"""No ECHO and no ONLCR, so that output is what the process wrote."""

_USUAL_MODES = bytes([0])
"""An empty list: the remote host keeps its default modes."""


class ChannelOpenFailure(Exception):
    """The remote host refused to open a channel: a reason of RFC 4254, section 5.1, and its own words."""

    def __init__(self, reason: int, text: str) -> None:
        super().__init__(reason, text)
        self.reason = reason
        self.text = text


class ChannelLink(Protocol):
    """The parts of a connection that a channel uses."""

    abandoned: set[SshChannel]

    def post(
        self, message: Message, deadline: Deadline, of: SshChannel | None = None, *, last: bool = False
    ) -> None: ...
    def post_all(self, payloads: Iterable[Payload], deadline: Deadline, of: SshChannel) -> None: ...
    def post_now(self, payloads: Callable[[], Iterable[Payload]], of: SshChannel) -> bool: ...
    def post_later(self, message: Message, of: SshChannel | None = None, *, last: bool = False) -> None: ...
    def post_soon(self, message: Message, of: SshChannel) -> None: ...
    def forget(self, channel: SshChannel) -> None: ...


class SshChannel:
    """One channel: its two windows, the received data, and the state of its remote end."""

    first_window = WINDOW_BYTES

    def __init__(self, link: ChannelLink, number: int) -> None:
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
        self._answers: deque[bool | ChannelOpenFailure] = deque()
        self._room_out = 0
        self._packet_out = PACKET_BYTES
        self._window = self._room_in = self.first_window
        self._unacknowledged = self._discarded = 0
        self._eof_sent = False
        self._status: int | None = None
        self._when_ended: Callable[[], object] | None = None
        """Called once, when the status is known or never will be."""

        self._readiness: Readiness | None = None
        self._first: tuple[bytes, bytes] | None = None
        """The kind and the payload of a request that is sent when the peer has opened the channel."""

    # Called by the thread that reads from the link.

    def require_open(self) -> None:
        """Return if the peer has opened the channel; before that it says nothing about it (RFC 4254, section 5.1).

        :raises paramiko.SSHException: it has not.
        """
        if self._remote < 0:
            raise SSHException("The peer speaks of a channel that is not open")

    def _set_remote_channel(self, number: int, window: int, packet: int) -> None:
        with self._lock:
            if self._remote >= 0:
                raise SSHException("The peer opens a channel twice")
            self._remote, self._room_out, self._packet_out = number, window, min(max(packet, 1), PACKET_BYTES)
            abandoned = self.closed
            first, self._first = self._first, None
        if first is not None and not abandoned:
            # Sent by the thread that reads: its opener would have to wake first.
            self.link.post_later(self._request(*first, wants_answer=True), self)
        if abandoned:
            # Its opener ran out of time; the peer has a process or a connection for it now, which only CLOSE ends.
            self.link.abandoned.discard(self)
            self.link.post_later(self._message(MSG_CHANNEL_CLOSE), self, last=True)
        self._answered(True)

    def refuse(self, reason: int, text: str) -> None:
        """Record that the remote host refuses this channel."""
        self._answered(ChannelOpenFailure(reason, text))

    def _answered(self, answer: bool | ChannelOpenFailure) -> None:
        with self._lock:
            if len(self._answers) >= MAX_UNREAD_ANSWERS:
                raise SSHException("The peer sent answers to requests that were not made")
            self._answers.append(answer)
            self._notify()

    def _feed(self, message: Message) -> None:
        self.receive(STDOUT, message.get_binary())

    def _feed_extended(self, message: Message) -> None:
        code = message.get_int()
        data = message.get_binary()
        # SSH_EXTENDED_DATA_STDERR, the only type that RFC 4254 defines (section 5.2).
        if code == 1:
            self.receive(STDERR, data)
        else:
            self.discard(len(data))

    def receive(self, which: int, data: bytes | memoryview, *, wakes: bool = True) -> None:
        """Queue data received on one of the two streams; without ``wakes`` the caller calls :meth:`note_news` soon.

        :raises paramiko.SSHException: it exceeds the window.
        """
        if not data:
            return
        with self._lock:
            self._use_room(len(data))
            if not self.closed:
                _put(self._arrived[which], data)
                if wakes:
                    self._notify()

    def discard(self, size: int) -> None:
        """Give the window back for ``size`` received bytes that nobody reads.

        :raises paramiko.SSHException: they exceed the window.
        """
        with self._lock:
            self._use_room(size)
            self._discarded += size
            grant = self._discarded
            if grant < self._window // 4 or self.closed:
                return
            self._discarded = 0
            self._room_in += grant
        self.link.post_later(self._adjustment(grant), self)

    def _use_room(self, size: int) -> None:
        self._room_in -= size
        # RFC 4254, section 5.2, allows us to ignore the excess. The stream would go on with a gap that nobody sees.
        if self._room_in < 0:
            raise SSHException("The peer sent more than the channel's window allows")

    def _taken(self, which: int, size: int) -> bytes:
        """Return the first pieces of the data received on a stream, at least ``size`` bytes if available.

        The caller holds the lock.
        """
        pieces, parts = self._arrived[which], []
        while pieces and size > 0:
            parts.append(pieces.popleft())
            size -= len(parts[-1])
        return b"".join(parts)

    def _window_adjust(self, message: Message) -> None:
        with self._lock:
            self._room_out += message.get_int()
            self._notify()

    def _handle_request(self, message: Message) -> None:
        kind = message.get_text()
        wants_answer = message.get_boolean()
        if kind == "exit-status":
            self._set_status(message.get_int())
        elif kind == "exit-signal":
            # The name of the signal without SIG (RFC 4254, section 6.10), since numbers differ between systems.
            number = getattr(signal, f"SIG{message.get_text()}", None)
            # 128 + N is what a shell reports; 255 is the status of `ssh` for an unknown signal.
            self._set_status(128 + number if isinstance(number, signal.Signals) else 255)
        elif wants_answer:
            self.link.post_later(self._message(MSG_CHANNEL_FAILURE), self)

    def _set_status(self, status: int) -> None:
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
        # Each side answers CLOSE with CLOSE, unless it has sent its own; only then is the number free for another
        # channel (RFC 4254, section 5.3).
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
        if self._when_ended is not None and (self.closed or self._status is not None):
            call, self._when_ended = self._when_ended, None
            call()
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
            # The remote host may still open the channel, which must then be closed.
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
        """Return a descriptor that is readable while there is data, or an end or a status to read."""
        with self._lock:
            if self._readiness is None:
                self._readiness = Readiness()
                # Data may have come before anybody asked for the descriptor, and nothing would set it again for that.
                self._readiness.set()
            return self._readiness.fileno()

    def _leave_readiness(self) -> None:
        with self._lock:
            readiness, self._readiness = self._readiness, None
            if readiness is not None:
                readiness.close()

    def wait_open(self, deadline: Deadline) -> None:
        """Wait until it is open; raise ChannelOpenFailure if it is refused, TimeoutError (it is closed) or EOFError."""
        answer = self._answer(deadline)
        if isinstance(answer, ChannelOpenFailure):
            raise answer

    def _answer(self, deadline: Deadline) -> bool | ChannelOpenFailure:
        if not self._wait(lambda: self._answers or self.closed, deadline.left()):
            self.close()
            raise TimeoutError("The remote host did not answer.")
        if not self._answers:
            raise EOFError
        # Answers have no numbers and come in the order of the requests (RFC 4254, section 4), as they are taken here.
        return self._answers.popleft()

    def request(self, kind: bytes, payload: bytes, deadline: Deadline) -> bool:
        """Send a request about this channel; return the remote host's consent, or raise TimeoutError or EOFError."""
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
        size = self._reserve(len(data))
        try:
            self.link.post_all(self._packets(data[:size]), deadline, self)
        except TimeoutError:
            # Nothing was sent, or the link is given up: the window would else shrink by what the peer never counts.
            with self._lock:
                self._room_out += size
            raise
        return size

    def _reserve(self, most: int) -> int:
        """Take up to ``most`` bytes of the window, a batch at most; return how many, or raise TimeoutError for none."""
        # Before sending: two writers must not both count on the same part of the window.
        with self._lock:
            if self.closed or self._eof_sent:
                raise BrokenPipeError("The channel is closed.")
            size = min(most, self._room_out, BATCH_BYTES)
            if not size:
                raise TimeoutError("The remote host takes no more data.")
            self._room_out -= size
        return size

    def _packets(self, data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
        for start in range(0, len(data), self._packet_out):
            piece = data[start : start + self._packet_out]
            yield struct.pack(">BII", MSG_CHANNEL_DATA, self._remote, len(piece)), piece

    def send_now(self, data: bytes | memoryview) -> int:
        """Write some of ``data`` without waiting; return the number of bytes, or raise TimeoutError if there is none.

        The descriptor becomes readable when the caller may try again.
        """
        data = memoryview(data)
        size = self._reserve(len(data))
        if not self.link.post_now(lambda: self._packets(data[:size]), self):
            with self._lock:
                self._room_out += size
            raise TimeoutError("The link takes no more data.")
        return size

    def sendall(self, data: bytes | memoryview, timeout: float) -> None:
        """Write all of ``data``; raise TimeoutError after ``timeout`` seconds, OSError if the channel is gone."""
        deadline = Deadline(timeout)
        rest = memoryview(data)
        while rest:
            rest = rest[self._write(rest, deadline) :]

    def shutdown_write(self) -> None:
        """Tell the remote host that no more data follow."""
        with self._lock:
            if self.closed or self._eof_sent:
                return
            self._eof_sent = True
            self._notify()
        # The remote host may have closed the channel meanwhile.
        with suppress(BrokenPipeError):
            self.link.post(self._message(MSG_CHANNEL_EOF), Deadline(BACKGROUND_SECONDS), self)

    def _consume(self, size: int) -> None:
        """Enlarge the remote host's window by ``size``, once enough has accumulated to be worth a packet."""
        # A quarter of the window: a message for each read would cost more than the read, and waiting for more would let
        # the peer stand still, because what it may send shrinks until our message has travelled.
        self._unacknowledged += size
        if self._unacknowledged < self._window // 4 or self.closed:
            return
        grant, self._unacknowledged = self._unacknowledged, 0
        self._grant(grant)

    def _widen(self, window: int) -> None:
        """Let the remote host send up to ``window`` unread bytes."""
        grant, self._window = window - self._window, window
        if grant:
            self._grant(grant)

    def _grant(self, grant: int) -> None:
        with self._lock:
            self._room_in += grant
        message = self._adjustment(grant)
        try:
            # Whoever polls the descriptor serves many channels, and must not wait for one peer.
            if self._readiness is not None:
                self.link.post_soon(message, self)
            else:
                self.link.post(message, Deadline(BACKGROUND_SECONDS), self)
        except (OSError, EOFError):
            self._end()

    def _adjustment(self, grant: int) -> Message:
        return self._message(MSG_CHANNEL_WINDOW_ADJUST, struct.pack(">I", grant))


def _put(pieces: _Pieces, data: bytes | memoryview) -> None:
    """Add ``data`` to ``pieces``, merging two small pieces in a row."""
    if len(data) >= SMALL_BYTES or not pieces or len(pieces[-1]) >= SMALL_BYTES:
        pieces.append(data)
    elif isinstance(pieces[-1], bytearray):
        pieces[-1] += data
    else:
        pieces[-1] = bytearray(pieces[-1]) + data


class Readiness:
    """A flag with a descriptor; its owner calls all methods under a lock, and none after :meth:`close`."""

    def __init__(self) -> None:
        self._readable, self._written = os.pipe()
        self._is_set = False

    def fileno(self) -> int:
        """Return the descriptor, which is readable while the flag is set."""
        return self._readable

    def set(self) -> None:
        """Set the flag."""
        if not self._is_set:
            self._is_set = True
            os.write(self._written, b"\0")

    def clear(self) -> None:
        """Clear the flag."""
        if self._is_set:
            self._is_set = False
            os.read(self._readable, 1)

    def close(self) -> None:
        """Free the descriptors."""
        os.close(self._readable)
        os.close(self._written)


class SessionChannel(SshChannel, Channel):
    """A process on the remote host."""

    first_window = NARROW_WINDOW_BYTES

    def start(self, argv: Sequence[str], *, pty: Pty | None, deadline: Deadline) -> None:
        """Run ``argv``, which the remote host's login shell parses.

        :raises ShellStartFailed: the remote host refused.
        """
        if pty:
            modes = _RAW_MODES if pty.raw else _USUAL_MODES
            terminal = packed(pty.term.encode()) + struct.pack(">IIII", pty.columns, pty.rows, 0, 0) + packed(modes)
            if not self.request(b"pty-req", terminal, deadline):
                raise ShellStartFailed("The SSH server refused a terminal; allow it (PermitTTY in sshd_config).")
            self.merged = True
        self._require_start(self.request(b"exec", _command(shlex.join(argv)), deadline))

    @staticmethod
    def _require_start(agreed: bool) -> None:
        if not agreed:
            raise ShellStartFailed("The SSH server refused to run a command on this connection.")

    def recv(self, timeout: float) -> tuple[bytes, bytes]:
        if not self._wait(self._has_news, timeout) and self._readiness is None:
            return b"", b""
        with self._lock:
            stdout, stderr = self._taken(STDOUT, READ_BYTES), self._taken(STDERR, READ_BYTES)
            if self._readiness is not None and not (any(self._arrived) or self._ended):
                self._readiness.clear()
            if not (stdout or stderr):
                if self._ended:
                    raise EOFError
                return b"", b""
        self._consume(len(stdout) + len(stderr))
        return stdout, stderr

    def _has_news(self) -> object:
        return self._arrived[STDOUT] or self._arrived[STDERR] or self._ended

    def expect_bulk(self) -> None:
        self._widen(WINDOW_BYTES)

    def resize(self, columns: int, rows: int) -> None:
        if not self.merged:
            raise TransportUnsupported("This process has no terminal, so its size cannot be set.")
        # RFC 4254, section 6.7: this request has no answer.
        size = struct.pack(">IIII", columns, rows, 0, 0)
        self.link.post_soon(self._request(b"window-change", size, wants_answer=False), self)

    def exit_status(self, timeout: float) -> int:
        if not self._wait(lambda: self._status is not None or self.closed, max(0.0, timeout)):
            raise TimeoutError("The process still runs.")
        if self._status is None:
            raise EOFError
        return self._status

    def when_ended(self, call: Callable[[], object]) -> bool:
        with self._lock:
            self._when_ended = call
            if self.closed or self._status is not None:
                self._notify()
        return True

    def _say_goodbye(self) -> None:
        # A closed channel alone lets a process without a terminal run on until it writes. sshd passes signals on since
        # 7.9, except to forced commands and subsystems.
        if self._status is None:
            self.link.post(
                self._request(b"signal", packed(b"HUP"), wants_answer=False), Deadline(BACKGROUND_SECONDS), self
            )


def _command(line: str) -> bytes:
    return packed(line.encode("utf-8", errors="surrogateescape"))


class LineChannel(SessionChannel):
    """A process that the login shell starts, or becomes, by a line of its own language; for bulk data."""

    first_window = WINDOW_BYTES

    def start_when_open(self, line: str) -> None:
        """Have the login shell run ``line`` as soon as the channel is open."""
        self._first = b"exec", _command(line)

    def start_now(self, line: str, deadline: Deadline) -> None:
        """Have the login shell run ``line`` on the open channel."""
        self.link.post(self._request(b"exec", _command(line), wants_answer=True), deadline, self)

    def await_start(self, deadline: Deadline) -> None:
        """Wait until the line runs; raise ShellStartFailed if the remote host refuses, TimeoutError or EOFError."""
        self._require_start(self._answer(deadline) is True)


class TcpStream(SshChannel):
    """A TCP stream in the form of :class:`connmgr.plugin.ByteStream`."""

    def __init__(self, link: ChannelLink, number: int) -> None:
        super().__init__(link, number)
        self._timeout: float | None = None
        self._rest: bytes | memoryview = b""
        self._lost = False

    def settimeout(self, timeout: float | None) -> None:
        """Limit reads and writes to ``timeout`` seconds; None waits for ever."""
        self._timeout = timeout

    def recv(self, size: int) -> bytes:
        """Return 1 to ``size`` bytes, or none at the end of the stream.

        :raises TimeoutError: none came in time.
        :raises ConnectionResetError: the link was lost before the end.
        """
        if not self._rest:
            data = self._next(size)
            if len(data) <= size:
                return data
            self._rest = memoryview(data)
        piece, self._rest = self._rest[:size], self._rest[size:]
        self._note_rest()
        return bytes(piece)

    def _next(self, size: int) -> bytes:
        has_come = self._wait(lambda: self._arrived[STDOUT] or self._ended, self._longest_wait())
        with self._lock:
            data = self._taken(STDOUT, size)
            if self._readiness is not None and not (self._arrived[STDOUT] or self._ended):
                self._readiness.clear()
            has_come = has_come or self._ended
        if data:
            self._consume(len(data))
        elif not has_come:
            raise TimeoutError("No data has come.")
        elif self._lost:
            raise ConnectionResetError(errno.ECONNRESET, "The link is gone.")
        return data

    def _unlink(self) -> None:
        # The remote host has not ended the stream, so the link was lost.
        self._lost = self._lost or not self._ended
        super()._unlink()

    def _note_rest(self) -> None:
        # _next() has cleared the flag, since the queue is empty. The rest is ours, so the loop must call again for it.
        with self._lock:
            if self._rest and self._readiness is not None:
                self._readiness.set()

    def send(self, data: bytes | memoryview) -> int:
        """Write some of ``data`` and return the number of bytes, or raise TimeoutError, at once if the timeout is 0."""
        if self._timeout == 0:
            return self.send_now(data)
        return self._write(memoryview(data), Deadline(self._longest_wait()))

    def sendall(self, data: bytes | memoryview, timeout: float | None = None) -> None:
        super().sendall(data, self._longest_wait() if timeout is None else timeout)

    def _longest_wait(self) -> float:
        return threading.TIMEOUT_MAX if self._timeout is None else self._timeout

    def shutdown(self, how: int) -> None:
        """End the output for ``socket.SHUT_WR``; SSH cannot end the input alone (RFC 4254, section 5.3)."""
        if how != socket.SHUT_WR:
            raise OSError(errno.EOPNOTSUPP, "SSH can end only the output of a stream")
        self.shutdown_write()
