"""Descriptors that another program has passed over a Unix socket, as an endpoint of a loop that must never wait."""

from __future__ import annotations

import fcntl
import os
import select
import selectors
import socket
import stat
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import islice
from typing import NamedTuple

from connmgr.streams.endpoints import READ_BYTES, READS_AT_ONCE, DescriptorEndpoint, Outbox
from connmgr.streams.frames import DATA, MAX_SIDE
from connmgr.streams.loop import Loop

FETCH_BYTES = 192 * 1024
"""Bytes that a thread reads at once where reading may block; larger blocks of memory are costly to get (mallopt(3))."""

QUEUE_BYTES = 512 * 1024
"""Most bytes that wait for a thread that writes; so it and the other endpoint need not wait for each other."""

FILE_QUEUE_BYTES = 2 * 1024 * 1024
"""The same where it writes to a file, which takes many bytes by one call: the fewer calls, the less the threads wait
for each other."""

FULL_PIPE_BYTES, PIPE_BYTES = 64 * 1024, 256 * 1024
"""The room of a pipe on Linux, and that of one that is seen full."""


class _PipeSize(NamedTuple):
    """The numbers by which fcntl(2) tells and changes the size of a pipe."""

    get: int
    set: int


# Only Linux has them.
_PIPE_SIZE = _PipeSize(fcntl.F_GETPIPE_SZ, fcntl.F_SETPIPE_SZ) if hasattr(fcntl, "F_SETPIPE_SZ") else None

MOST_PIECES = 1000
"""Pieces that are written at once (IOV_MAX is 1024)."""

FETCHES = 4
"""Most pieces of a file that a thread reads before it passes them on."""

LOOK_SECONDS = 1.0
"""Interval at which a thread that waits to write looks whether that is still wanted."""

KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
"""The types of files that can be streams."""

NAMES = ("standard input", "standard output", "standard error")

# Documentation/admin-guide/devices.txt of Linux. Opening /dev/tty or /dev/ptmx once more leads to another terminal.
_MEMORY_MAJOR, _NULL, _FULL, _ALIAS_MAJOR = 1, 3, 7, 5


def fault_of(descriptors: Sequence[int]) -> str | None:
    """Return why ``descriptors``, standard input and output and perhaps error, cannot be streams; None if they can."""
    for descriptor, name in zip(descriptors, NAMES, strict=False):
        kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
        if kind not in KINDS:
            what = "a directory" if kind == stat.S_IFDIR else "of no kind that carries bytes"
            return f"The {name} is {what}."
        if stat.S_ISCHR(kind) and os.isatty(descriptor) and _is_own_terminal(descriptor):
            # The kernel stops a process of the background that reads from it.
            return (
                f"The {name} is the terminal from which the daemon was started. Start the daemon as a service "
                "(connmgr service install), or by setsid."
            )
    return None


def size_of(descriptor: int) -> tuple[int, int] | None:
    """Return columns and rows of a terminal; None if ``descriptor`` is not one, or reports no size."""
    try:
        columns, rows = os.get_terminal_size(descriptor)
    except OSError:
        return None
    return (min(columns, MAX_SIDE), min(rows, MAX_SIDE)) if columns and rows else None


def _is_own_terminal(descriptor: int) -> bool:
    """Whether it is this process's controlling terminal: the kernel tells its foreground to nobody else."""
    try:
        os.tcgetpgrp(descriptor)
    except OSError:
        return False
    return True


class PassedEndpoint(DescriptorEndpoint):
    """Descriptors that another program has passed: they belong to this from now on, and it shares them with others.

    Where even a ready descriptor may block, because another program is faster or because it is a file, another thread
    reads and writes. ``released`` is called in the thread of the loop when the descriptors are closed.
    """

    awaits_outcome = True

    def __init__(
        self, loop: Loop, source: int, out: int, err: int | None = None, *, released: Callable[[], object]
    ) -> None:
        self._released = released
        self._opened_input = ExitStack()
        self._writers: list[ThreadedOutbox] = []
        self._fetching = self._is_released = False
        self._held: deque[bytes] = deque()
        super().__init__(loop, source, out, err)
        self._passed = [one for one in (source, out, err) if one is not None]
        self._watches, self._take = self._reader(source)
        # The commonest of all, for which no thread is needed.
        self._is_empty = _is_device(os.fstat(source), _NULL)
        self._is_watched = False

    @property
    def is_full(self) -> bool:
        return self._out.size > self._out.room or self._err.size > self._err.room

    def pause(self) -> None:
        self._unwatch_source()
        self._reads = False

    def resume(self) -> None:
        if self._source is None or self._reads or self._closed or self._outcome is not None:
            return
        self._reads = True
        self._deliver_held()

    def end(self) -> None:
        # The other program has these descriptors too, so that their readers see no end before it ends.
        return

    def close(self, *, reset: bool = False) -> None:
        if self._closed:
            return
        super().close(reset=reset)
        for writer in self._writers:
            writer.drop()
        self._release()

    def _read_on(self) -> None:
        """Wait for input, or have it fetched."""
        if self._is_empty:
            self._loop.call(self._find_nothing)
        elif self._watches is None:
            self._fetch()
        elif not self._is_watched:
            self._is_watched = True
            self._loop.watch(self._watches, selectors.EVENT_READ, self._ready)

    def _find_nothing(self) -> None:
        if self._reads:
            self._deliver(b"")

    def _unwatch_source(self) -> None:
        if self._is_watched and self._watches is not None:
            self._is_watched = False
            self._loop.unwatch(self._watches)

    def _ready(self, _: int) -> None:
        if self._take is None:
            # Somebody else may be faster, and reading would block.
            self._unwatch_source()
            self._fetch()
            return
        for _ in range(READS_AT_ONCE):
            if not self._reads:
                return
            try:
                data = self._take()
            except BlockingIOError:
                return
            except OSError:
                # A terminal after a hang-up: as at the end.
                data = b""
            self._deliver(data)
            if len(data) < READ_BYTES:
                return

    def _deliver(self, data: bytes) -> None:
        if not data:
            self.pause()
            self._source = None
            self.receiver.ended()
        elif data := data if self.typed is None else self.typed(data):
            self.receiver.arrived(data)

    def _fetch(self) -> None:
        if not self._fetching and self._source is not None:
            self._fetching = True
            self._loop.work(partial(self._fetch_from, self._source))

    def _fetch_from(self, source: int) -> None:
        """Read once, or a few times from a file, in a thread that may block."""
        pieces: list[bytes] = []
        try:
            # Another reader of a pipe may be faster, and a terminal has more only when somebody types.
            for _ in range(FETCHES if stat.S_ISREG(os.fstat(source).st_mode) else 1):
                pieces.append(os.read(source, FETCH_BYTES))
                if not pieces[-1]:
                    break
        except OSError:
            pieces.append(b"")
        self._loop.call(partial(self._fetched, pieces))

    def _fetched(self, pieces: Sequence[bytes]) -> None:
        self._fetching = False
        if self._closed:
            self._release()
        else:
            self._held.extend(pieces)
            self._deliver_held()

    def _deliver_held(self) -> None:
        """Pass on what was fetched, and read on, as far as the receiver takes it."""
        while self._reads and self._held:
            self._deliver(self._held.popleft())
        if self._reads:
            self._read_on()

    def _release(self) -> None:
        """Close the descriptors, once no thread uses them."""
        if self._is_released or self._fetching or any(writer.is_busy for writer in self._writers):
            return
        self._is_released = True
        self._opened_input.close()
        for descriptor in self._passed:
            os.close(descriptor)
        self._released()

    def _reader(self, source: int) -> tuple[int | None, Callable[[], bytes] | None]:
        """Return what to watch, None if it is always ready, and how to read without blocking, None if that may block.

        What cannot be watched is never read here.
        """
        status = os.fstat(source)
        if stat.S_ISSOCK(status.st_mode):
            connected = self._opened_input.enter_context(socket.socket(fileno=os.dup(source)))
            return source, lambda: connected.recv(READ_BYTES, socket.MSG_DONTWAIT)
        if stat.S_ISFIFO(status.st_mode) or (stat.S_ISCHR(status.st_mode) and os.isatty(source)):
            own = self._opened_anew(source, os.O_RDONLY, self._opened_input)
            if own is None:
                return source, None
            if stat.S_ISFIFO(status.st_mode):
                return own, _pipe_reader(own)
            return own, lambda: os.read(own, READ_BYTES)
        return None, None

    def _box(self, kind: int, descriptor: int) -> Outbox:
        status = os.fstat(descriptor)
        if stat.S_ISSOCK(status.st_mode) or _is_device(status, _NULL, _FULL):
            return super()._box(kind, descriptor)
        if stat.S_ISFIFO(status.st_mode) or (stat.S_ISCHR(status.st_mode) and os.isatty(descriptor)):
            own = self._opened_anew(descriptor, os.O_WRONLY, self._opened)
            if own is not None:
                return Outbox(lambda data: os.write(own, data))
        writer = ThreadedOutbox(self._loop, descriptor, partial(self._written, kind))
        self._writers.append(writer)
        return writer

    def _written(self, kind: int) -> None:
        if self._closed:
            self._release()
            return
        box = self._err if kind != DATA and self._err is not self._out else self._out
        self._pass_on(kind, box, box.flush)

    def _await(self, kind: int, box: Outbox) -> None:
        if not isinstance(box, ThreadedOutbox):
            super()._await(kind, box)

    def _opened_anew(self, descriptor: int, access: int, opened: ExitStack) -> int | None:
        status = os.fstat(descriptor)
        if stat.S_ISCHR(status.st_mode) and os.major(status.st_rdev) == _ALIAS_MAJOR:
            return None
        return super()._opened_anew(descriptor, access, opened)


def _pipe_reader(descriptor: int) -> Callable[[], bytes]:
    """Return the function that reads from a pipe, and once gives more room to one that was full.

    A pipe has room for 64 KiB (pipe(7)); when it is full, its writer and this process wake each other for every piece.
    One that carries little stays as it is: a user's pipes share a limit of memory.
    """
    has_grown = _PIPE_SIZE is None

    def read() -> bytes:
        nonlocal has_grown
        data = os.read(descriptor, READ_BYTES)
        if not has_grown and len(data) >= FULL_PIPE_BYTES and _PIPE_SIZE is not None:
            has_grown = True
            with suppress(OSError):
                if fcntl.fcntl(descriptor, _PIPE_SIZE.get) < PIPE_BYTES:
                    fcntl.fcntl(descriptor, _PIPE_SIZE.set, PIPE_BYTES)
        return data

    return read


class ThreadedOutbox(Outbox):
    """Data for ``descriptor``, written in other threads because writing may block; one thread at a time.

    ``written`` is called in the thread of the loop after each; :meth:`flush` then returns how much was written.
    """

    __slots__ = (
        "_descriptor",
        "_done",
        "_dropped",
        "_failure",
        "_has_reader",
        "_is_due",
        "_loop",
        "_written",
        "is_busy",
    )

    def __init__(self, loop: Loop, descriptor: int, written: Callable[[], object]) -> None:
        self._has_reader = stat.S_ISFIFO(os.fstat(descriptor).st_mode) or os.isatty(descriptor)
        super().__init__(lambda _: 0, QUEUE_BYTES if self._has_reader else FILE_QUEUE_BYTES)
        self._loop, self._descriptor, self._written = loop, descriptor, written
        self.is_busy = False
        """Whether a thread uses the descriptor."""

        self._is_due = False
        """Whether the loop begins to write after this round."""

        self._done = 0
        self._failure: OSError | None = None
        self._dropped = False

    def put(self, data: bytes | memoryview) -> int:
        self._pieces.append(memoryview(data))
        self.size += len(data)
        # All that comes in a round of the loop is one task: to pass a piece to a thread costs as much as to write it.
        if not (self._is_due or self.is_busy):
            self._is_due = True
            self._loop.call(self._write_on)
        return 0

    def flush(self) -> int:
        done, self._done = self._done, 0
        if self._failure is not None:
            raise self._failure
        return done

    def drop(self) -> int:
        self._dropped = True
        return super().drop()

    def _write_on(self) -> None:
        self._is_due = False
        if self._pieces and not (self.is_busy or self._dropped or self._failure):
            self.is_busy = True
            pieces = list(self._pieces)
            self._pieces.clear()
            self._loop.work(partial(self._write_all, pieces))

    def _write_all(self, pieces: Sequence[memoryview]) -> None:
        """Write in a thread that may block."""
        failure: OSError | None = None
        written = 0
        try:
            if self._has_reader:
                for piece in pieces:
                    written += self._write_piece(piece)
            else:
                written = self._write_together(pieces)
        except OSError as error:
            failure = error
        self._loop.call(partial(self._note, written, failure))

    def _write_together(self, pieces: Sequence[memoryview]) -> int:
        """Write to a file: to wait for the interpreter after each piece would take longer than to write it."""
        written, rest = 0, deque(pieces)
        while rest and not self._dropped:
            size = os.writev(self._descriptor, list(islice(rest, MOST_PIECES)))
            written += size
            while rest and size >= len(rest[0]):
                size -= len(rest.popleft())
            if size:
                rest[0] = rest[0][size:]
        return written

    def _write_piece(self, piece: memoryview) -> int:
        # Its reader may never come, and the thread must end with the stream.
        written, writable = 0, select.poll()
        writable.register(self._descriptor, select.POLLOUT)
        while written < len(piece) and not self._dropped:
            if writable.poll(LOOK_SECONDS * 1000):
                with suppress(BlockingIOError):
                    written += os.write(self._descriptor, piece[written : written + select.PIPE_BUF])
        return written

    def _note(self, written: int, failure: OSError | None) -> None:
        self.is_busy = False
        if not self._dropped:
            self.size -= written
            self._done += written
            self._failure = failure
            self._write_on()
        self._written()


def _is_device(status: os.stat_result, *minors: int) -> bool:
    """Whether a descriptor is of one of these devices of memory, such as ``/dev/null``, which never block."""
    if not stat.S_ISCHR(status.st_mode) or os.major(status.st_rdev) != _MEMORY_MAJOR:
        return False
    return os.minor(status.st_rdev) in minors
