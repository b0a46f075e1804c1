"""The endpoints of streams: how each is read, written, ended and held back.

A :class:`connmgr.streams.splice.Splice` joins two of them. This module has the endpoints that need only the operating
system: a socket, and the descriptors of this program. :mod:`connmgr.pipes` has processes and TCP streams of remote
hosts and the daemon's WebSockets, :mod:`connmgr.cli.standard_streams` has the command line's end of a WebSocket.
"""

from __future__ import annotations

import os
import select
import selectors
import socket
import stat
import struct
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Protocol

from connmgr.streams.frames import DATA, STDERR
from connmgr.streams.loop import Loop

READ_BYTES = 128 * 1024
READS_AT_ONCE = 4
"""Most reads of one endpoint before others get their turn."""

# l_onoff and l_linger: with a time of 0, close() discards what is unsent and sends a reset (Linux, socket(7)).
_RESET = struct.pack("ii", 1, 0)

Outcome = int | Exception
"""How an endpoint has ended: the exit status of a process, or why there is none."""

Write = Callable[[memoryview], int]


class Receiver(Protocol):
    """What an endpoint reports to. All methods are called in the thread of the loop, and may call the endpoint."""

    def arrived(self, data: bytes | memoryview, kind: int = DATA) -> None:
        """Handle data, not empty, that was read: DATA or STDERR of :mod:`connmgr.streams.frames`."""

    def taken(self, size: int) -> None:
        """Handle that ``size`` of the written bytes have been passed on."""

    def ended(self) -> None:
        """Handle that no more data will arrive, while the endpoint still takes data."""

    def over(self, outcome: Outcome) -> None:
        """Handle that the endpoint neither reads nor writes any more; not called after :meth:`Endpoint.close`."""


class Endpoint:
    """One endpoint of a stream. All methods are called in the thread of the loop, and none blocks.

    Written data is kept until it can be passed on. The writer stops reading the other endpoint while this one
    ``is_full``.
    """

    receiver: Receiver

    has_outcome = False
    """Whether it reports ``over`` by itself some time after the end of its data; the splice has to wait for that."""

    awaits_outcome = False
    """Whether its peer waits for an outcome, and not only for the end of the data."""

    @property
    def unwritten(self) -> int:
        """Bytes that were written and not yet passed on."""
        return 0

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be written until ``taken`` is reported."""
        return self.unwritten > 0

    def begin(self, receiver: Receiver) -> None:
        """Report to ``receiver`` from now on, and read."""
        self.receiver = receiver
        self.resume()

    def write(self, data: bytes | memoryview, kind: int = DATA) -> None:
        """Write ``data`` after all earlier data."""
        raise NotImplementedError

    def end(self) -> None:
        """Tell the peer, after all earlier data, that no more follow."""

    def finish(self, outcome: Outcome) -> None:
        """Handle that the other endpoint is over with ``outcome``; then end or report ``over``.

        After success the peer gets all earlier data and the end. It may still send for a while, and that data is
        dropped.
        """
        # Not closed at once: the system answers data for a closed socket with a reset (RFC 1122, 4.2.2.13), and then
        # drops what it has not yet sent. Of 3.9 MB in Linux's buffers the peer got 0.1 MB in that case.
        if outcome == 0:
            self.end()
        else:
            self.close(reset=True)
            self.receiver.over(outcome)

    def pause(self) -> None:
        """Read nothing until :meth:`resume`, so that the peer has to wait."""

    def resume(self) -> None:
        """Read again."""

    def acknowledge(self, size: int) -> None:
        """Let the peer send ``size`` bytes more, because so many were passed on by the other endpoint."""

    def close(self, *, reset: bool = False) -> None:
        """Release it at once; ``reset`` signals the peer that data was lost. Calling it again does nothing."""


class Outbox:
    """Data that ``write`` has not taken yet; ``write`` raises BlockingIOError or TimeoutError if it takes none now.

    :meth:`put` and :meth:`flush` return how many bytes were written, and raise any other error of ``write``.
    """

    __slots__ = ("_pieces", "_write", "room", "size")

    def __init__(self, write: Write, room: int = 0) -> None:
        self._write = write
        self.room = room
        """Bytes that may wait before the writer should."""

        self._pieces: deque[memoryview] = deque()
        self.size = 0
        """Bytes that wait."""

    def put(self, data: bytes | memoryview) -> int:
        """Write ``data`` after the waiting data."""
        rest = memoryview(data)
        written = 0
        if not self._pieces:
            try:
                written = self._write(rest)
            except (BlockingIOError, TimeoutError):
                written = 0
            if written == len(rest):
                return written
            rest = rest[written:]
        self._pieces.append(rest)
        self.size += len(rest)
        # A write that took only a part, such as one packet's worth, may take more.
        return written + self.flush() if written else 0

    def flush(self) -> int:
        """Write as much as is taken."""
        before = self.size
        pieces = self._pieces
        try:
            while pieces:
                first = pieces[0]
                written = self._write(first)
                self.size -= written
                if written == len(first):
                    pieces.popleft()
                else:
                    pieces[0] = first[written:]
        except (BlockingIOError, TimeoutError):
            pass
        return before - self.size

    def drop(self) -> int:
        """Drop the waiting data; return how many bytes it had."""
        dropped, self.size = self.size, 0
        self._pieces.clear()
        return dropped


class BufferedEndpoint(Endpoint):
    """An endpoint over something that reads and writes without waiting; what it does not take now is kept.

    ``recv`` and ``send`` raise BlockingIOError or TimeoutError where they would wait, and OSError or EOFError where the
    other side is lost; ``descriptor`` signals in the loop when to try again. A subclass says how its descriptor is
    watched, how the end is passed on, and how it is released.
    """

    def __init__(self, loop: Loop, descriptor: int, recv: Callable[[int], bytes], send: Write) -> None:
        self._loop, self._descriptor, self._recv = loop, descriptor, recv
        self._outbox = Outbox(send)
        self._reads = self._closed = self._ends = self._has_ended = False

    def _watch(self) -> None:
        """Watch the descriptor for what is awaited now: data while ``_reads``, room while the outbox has data."""
        raise NotImplementedError

    def _shut_down(self) -> None:
        """Tell the peer that no more data follow; not called after the release."""
        raise NotImplementedError

    def _release(self, *, reset: bool) -> None:
        """Close what is behind the endpoint, without waiting; called once."""
        raise NotImplementedError

    @property
    def unwritten(self) -> int:
        return self._outbox.size

    def write(self, data: bytes | memoryview, kind: int = DATA) -> None:
        if self._closed:
            return
        try:
            written = self._outbox.put(data)
        except (OSError, EOFError) as error:
            self._fail(error)
            return
        if self._outbox.size:
            self._watch()
        if written:
            self.receiver.taken(written)

    def end(self) -> None:
        self._ends = True
        self._end_if_written()

    def pause(self) -> None:
        self._reads = False
        self._watch()

    def resume(self) -> None:
        self._reads = not (self._closed or self._has_ended)
        self._watch()

    def close(self, *, reset: bool = False) -> None:
        if self._closed:
            return
        self._closed, self._reads = True, False
        self._loop.unwatch(self._descriptor)
        self._outbox.drop()
        self._release(reset=reset)

    def _read(self) -> None:
        for _ in range(READS_AT_ONCE):
            if not self._reads:
                return
            try:
                data = self._recv(READ_BYTES)
            except (BlockingIOError, TimeoutError):
                return
            except (OSError, EOFError) as error:
                self._fail(error)
                return
            if not data:
                self._has_ended = True
                self.pause()
                self.receiver.ended()
                return
            self.receiver.arrived(data)
            if len(data) < READ_BYTES:
                # A short read has taken all available data.
                return

    def _flush(self) -> None:
        if self._closed:
            return
        try:
            written = self._outbox.flush()
        except (OSError, EOFError) as error:
            self._fail(error)
            return
        self._watch()
        if written:
            self._end_if_written()
            self.receiver.taken(written)

    def _end_if_written(self) -> None:
        if self._ends and not self._outbox.size and not self._closed:
            self._ends = False
            self._shut_down()

    def _fail(self, error: Exception) -> None:
        self.close(reset=True)
        self.receiver.over(error)


class SocketEndpoint(BufferedEndpoint):
    """A connected socket, which belongs to this from now on."""

    resets = True
    """Whether the peer gets a reset instead of an ordinary end if the other endpoint has failed."""

    def __init__(self, loop: Loop, connected: socket.socket) -> None:
        self.at_release: list[Callable[[], object]] = []
        """What is called, once, when the socket is closed."""

        connected.setblocking(False)
        # The splice writes whole pieces, so Nagle's algorithm would only delay the last one. A Unix socket has none.
        with suppress(OSError):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().__init__(loop, connected.fileno(), connected.recv, connected.send)
        self._socket = connected
        self._events = 0

    def answer(self, data: bytes) -> bool:
        """Send ``data`` before :meth:`begin`; return whether all was accepted.

        The send buffer of a new socket is larger than any answer, so nothing is kept.
        """
        try:
            return self._socket.send(data) == len(data)
        except OSError:
            return False

    def finish(self, outcome: Outcome) -> None:
        super().finish(outcome if self.resets else 0)

    def _watch(self) -> None:
        events = (selectors.EVENT_READ if self._reads else 0) | (selectors.EVENT_WRITE if self._outbox.size else 0)
        if events == self._events or self._closed:
            return
        self._events = events
        if events:
            self._loop.watch(self._descriptor, events, self._ready)
        else:
            self._loop.unwatch(self._descriptor)

    def _ready(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush()
        if events & selectors.EVENT_READ:
            self._read()

    def _shut_down(self) -> None:
        # Fails if the peer is gone. Reading finds that out too, and reports the error.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def _release(self, *, reset: bool) -> None:
        if reset:
            with suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._socket.close()
        for call in self.at_release:
            call()


class DescriptorEndpoint(Endpoint):
    """Descriptors that other processes may share, such as this program's standard streams: one to read, two to write.

    They are neither made non-blocking, which would affect all who share them, nor closed. Each of the two outputs has
    its own queue, because one whose reader waits must not stop the other: a pipe of the daemon is not paused, and its
    window bounds both.

    ``typed`` gets all input and returns what to pass on; ``shown`` gets output before it is written. ``output_ended``
    is called when all output is written.
    """

    def __init__(self, loop: Loop, source: int | None, out: int, err: int | None = None) -> None:
        self._loop, self._source = loop, source
        self.typed: Callable[[bytes], bytes] | None = None
        self.shown: Callable[[bytes | memoryview], object] | None = None
        self.output_ended: Callable[[], object] | None = None
        self._opened = ExitStack()
        self._out = self._box(DATA, out)
        self._err = self._out if err is None else self._box(STDERR, err)
        self._descriptors = {DATA: out, STDERR: out if err is None else err}
        self._waiting: set[int] = set()
        self._reads = self._closed = self._ends = False
        self._outcome: Outcome | None = None

    @property
    def unwritten(self) -> int:
        return self._out.size + (self._err.size if self._err is not self._out else 0)

    def write(self, data: bytes | memoryview, kind: int = DATA) -> None:
        if self._closed or (self._outcome is not None and kind == DATA):
            return
        if self.shown is not None:
            self.shown(data)
        box = self._err if kind == STDERR else self._out
        self._pass_on(kind, box, lambda: box.put(data))

    def end(self) -> None:
        self._ends = True
        self._report_ends()

    def finish(self, outcome: Outcome) -> None:
        self.pause()
        self._outcome = outcome
        self._ends = self._ends or isinstance(outcome, int)
        self._report_ends()

    def pause(self) -> None:
        if self._reads and self._source is not None:
            self._loop.unwatch(self._source)
        self._reads = False

    def resume(self) -> None:
        if self._source is None or self._reads or self._closed or self._outcome is not None:
            return
        self._reads = True
        self._loop.watch(self._source, selectors.EVENT_READ, self._read)

    def close(self, *, reset: bool = False) -> None:
        if self._closed:
            return
        self.pause()
        self._closed = True
        for descriptor in self._waiting:
            self._loop.unwatch(descriptor)
        self._opened.close()

    def _read(self, _: int) -> None:
        assert self._source is not None, "it is watched"  # noqa: S101
        try:
            data = os.read(self._source, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            # EIO: this process group has lost its terminal, as after a hang-up (POSIX.1-2017, 11.1.4).
            data = b""
        if not data:
            self.pause()
            self._source = None
            self.receiver.ended()
        elif data := data if self.typed is None else self.typed(data):
            self.receiver.arrived(data)

    def _pass_on(self, kind: int, box: Outbox, write: Callable[[], int]) -> None:
        try:
            written = write()
        except OSError as error:
            # A reader of standard error that is gone does not end the stream.
            written = box.drop()
            if box is self._out:
                self._outcome, written = error, 0
        self._await(kind, box)
        self._report_ends()
        if written and not self._closed:
            self.receiver.taken(written)

    def _await(self, kind: int, box: Outbox) -> None:
        """Watch the descriptor of ``box`` as long as data waits."""
        descriptor = self._descriptors[kind]
        if box.size and descriptor not in self._waiting:
            self._waiting.add(descriptor)
            self._loop.watch(descriptor, selectors.EVENT_WRITE, lambda _: self._pass_on(kind, box, box.flush))
        elif not box.size and descriptor in self._waiting:
            self._waiting.discard(descriptor)
            self._loop.unwatch(descriptor)

    def _report_ends(self) -> None:
        """Once all output is written, report its end and the outcome, as far as they are there."""
        if self.unwritten or self._closed:
            return
        if self._ends:
            # The reader of a pipe sees its end when its last writing descriptor is closed, and one of them is our own
            # (_opened_anew).
            self._opened.close()
            if self.output_ended is not None:
                output_ended, self.output_ended = self.output_ended, None
                output_ended()
        if self._outcome is not None:
            self._conclude(self._outcome)
            self.close()
            self.receiver.over(self._outcome)

    def _conclude(self, outcome: Outcome) -> None:
        """Do what is left to do when all output is written, and ``outcome`` is why no more comes."""

    def _box(self, kind: int, descriptor: int) -> Outbox:
        """Return the queue of the output ``kind`` to ``descriptor``."""
        return Outbox(self._writer(descriptor))

    def _writer(self, descriptor: int) -> Write:
        mode = os.fstat(descriptor).st_mode
        # /dev/fd cannot open a socket again (ENXIO on Linux); MSG_DONTWAIT makes one call non-blocking.
        if stat.S_ISSOCK(mode):
            connected = self._opened.enter_context(socket.socket(fileno=os.dup(descriptor)))
            return lambda data: connected.send(data, socket.MSG_DONTWAIT)
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            own = self._opened_anew(descriptor, os.O_WRONLY, self._opened)
            return (
                (lambda data: _little_by_little(descriptor, data)) if own is None else lambda data: os.write(own, data)
            )
        return lambda data: os.write(descriptor, data)

    def _opened_anew(self, descriptor: int, access: int, opened: ExitStack) -> int | None:
        """Return a non-blocking descriptor of the same pipe or terminal, or None if there can be none.

        ``opened`` closes it.

        Setting O_NONBLOCK would affect all processes that share the open file; opening it again yields an own one.
        """
        try:
            own = os.open(f"/dev/fd/{descriptor}", access | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            return None
        opened.callback(os.close, own)
        # Where /dev/fd duplicates descriptors, the file was not opened again.
        return None if os.get_blocking(own) or not os.get_blocking(descriptor) else own


def _little_by_little(descriptor: int, data: memoryview) -> int:
    """Write a piece that cannot block once the descriptor is writable: POSIX lets a pipe take PIPE_BUF bytes then."""
    writable = select.poll()
    writable.register(descriptor, select.POLLOUT)
    if not writable.poll(0):
        raise BlockingIOError
    return os.write(descriptor, data[: select.PIPE_BUF])
