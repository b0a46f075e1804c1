"""A child process of the daemon as a channel."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import selectors
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from connmgr.errors import TransportUnsupported
from connmgr.plugin import Channel, Deadline, Pty

READ_BYTES = 1 << 18
PIPE_BYTES = 1 << 16
"""The default capacity of a pipe (pipe(7)); a pipe found full is enlarged."""

WIDE_PIPE_BYTES = 1 << 20
TERMINAL_READ_BYTES = 1 << 14
"""Most bytes of one read of a terminal; Linux gives 4 KiB at once."""

TERMINAL_BYTES = 1 << 16
"""Bytes that a terminal's reads are joined to."""

REAP_SECONDS = 2.0


class LocalChannel(Channel):
    """A process behind pipes or, with ``terminal``, behind its own terminal."""

    def __init__(
        self,
        argv: Sequence[str],
        terminal: Pty | None,
        environment: Mapping[str, str],
        directory: str,
        closed: Callable[[LocalChannel], None],
    ) -> None:
        self.merged = bool(terminal)
        self._on_close = closed
        self._closing = threading.Event()
        # Taken once, by the thread that closes: a second close could hit a reused descriptor number.
        self._to_close = threading.Lock()
        # Each is held while its descriptors are in use, so that close cannot invalidate them during a poll.
        self._reading, self._writing = threading.Lock(), threading.Lock()
        with contextlib.ExitStack() as on_failure:
            self._wake, self._waker = _pipe(on_failure, on_failure)
            self._process, self._stdin, self._stdout, self._stderr = (
                _start_on_terminal(argv, environment, directory, terminal)
                if terminal
                else _start_on_pipes(argv, environment, directory)
            )
            on_failure.pop_all()
        self._events: ProcessEvents | None = None
        self._open_streams = {self._stdout, self._stderr} - {-1}
        self._reader = select.poll()
        for descriptor in (*self._open_streams, self._wake):
            self._reader.register(descriptor, select.POLLIN)
        self._narrow = set() if terminal else {self._stdin, self._stdout, self._stderr}

    def fileno(self) -> int:
        with self._reading:
            if self._closing.is_set():
                raise BrokenPipeError
            if self._events is None:
                self._events = ProcessEvents(self._process.pid, self._open_streams)
            return self._events.fileno()

    def recv(self, timeout: float) -> tuple[bytes, bytes]:
        with self._reading:
            if self._closing.is_set() or not self._open_streams:
                raise EOFError
            if self.merged and timeout <= 0:
                # Its descriptor does not block, so poll() would be one more system call.
                stdout = self._read_terminal()
                if not (stdout or self._open_streams):
                    raise EOFError
                return stdout, b""
            ready = {descriptor for descriptor, _ in self._reader.poll(max(0.0, timeout) * 1000)}
            if self._wake in ready:
                raise EOFError
            read = self._read_terminal if self.merged else partial(self._read, self._stdout)
            stdout = read() if self._stdout in ready else b""
            stderr = self._read(self._stderr) if self._stderr in ready else b""
            if ready and not self._open_streams and not (stdout or stderr):
                raise EOFError
            return stdout, stderr

    def sendall(self, data: bytes, timeout: float) -> None:
        deadline = Deadline(timeout)
        rest = memoryview(data)
        with self._writing:
            while rest:
                if self._closing.is_set() or self._stdin < 0:
                    raise BrokenPipeError
                try:
                    rest = rest[os.write(self._stdin, rest) :]
                except BlockingIOError:
                    self._widen(self._stdin)
                    self._await_room(deadline)

    def send_now(self, data: bytes) -> int:
        # Only a thread that closes the channel may hold the lock.
        if not self._writing.acquire(blocking=False):
            raise BrokenPipeError
        try:
            if self._closing.is_set() or self._stdin < 0:
                raise BrokenPipeError
            return os.write(self._stdin, data)
        except BlockingIOError:
            raise TimeoutError("The process takes no more data.") from None
        finally:
            self._writing.release()

    def shutdown_write(self) -> None:
        with self._writing:
            if self._closing.is_set() or self._stdin < 0:
                return
            if self._stdin != self._stdout:
                os.close(self._stdin)
                self._stdin = -1
            else:
                # A terminal cannot be closed in one direction. In canonical mode ^D is the end of input at the start of
                # a line (POSIX.1-2017, 11.1.9).
                os.write(self._stdin, b"\x04")

    def resize(self, columns: int, rows: int) -> None:
        if not self.merged:
            raise TransportUnsupported("This process has no terminal, so its size cannot be set.")
        with self._reading:
            if self._closing.is_set():
                raise BrokenPipeError
            _set_size(self._stdout, columns, rows)

    def exit_status(self, timeout: float) -> int:
        try:
            status = self._process.wait(max(0.0, timeout))
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        if self._events is not None:
            with self._reading:
                self._events.has_ended()
        return status if status >= 0 else 128 - status

    def close(self) -> None:
        if not self._to_close.acquire(blocking=False):
            return
        self._closing.set()
        os.write(self._waker, b"x")
        with self._reading, self._writing:
            if self._events is not None:
                self._events.close()
            for descriptor in {self._stdin, self._stdout, self._stderr, self._wake, self._waker} - {-1}:
                os.close(descriptor)
        # We may not kill a process of another user (sudo); its closed streams end it.
        with contextlib.suppress(PermissionError):
            self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(REAP_SECONDS)
        self._on_close(self)

    def _read(self, descriptor: int) -> bytes:
        data = os.read(descriptor, READ_BYTES)
        if not data:
            self._is_over(descriptor)
        if len(data) >= PIPE_BYTES:
            self._widen(descriptor)
        return data

    def _read_terminal(self) -> bytes:
        """Return the terminal's output. While it is read, the kernel passes on more of what the program has written."""
        pieces: list[bytes] = []
        size = 0
        with contextlib.suppress(BlockingIOError):
            while size < TERMINAL_BYTES:
                try:
                    data = os.read(self._stdout, TERMINAL_READ_BYTES)
                except BlockingIOError:
                    raise
                except OSError:  # EIO on Linux when the last process has closed the terminal; macOS returns nothing
                    data = b""
                if not data:
                    self._is_over(self._stdout)
                    break
                pieces.append(data)
                size += len(data)
        return b"".join(pieces)

    def _is_over(self, descriptor: int) -> None:
        self._reader.unregister(descriptor)
        self._open_streams.discard(descriptor)
        if self._events is not None:
            self._events.forget(descriptor)

    def _widen(self, descriptor: int) -> None:
        """Enlarge the pipe of a busy stream, so that the processes switch less often."""
        if descriptor not in self._narrow:
            return
        self._narrow.discard(descriptor)
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            # Linux limits a user's memory in pipes (pipe(7), pipe-user-pages-soft).
            with contextlib.suppress(PermissionError):
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, WIDE_PIPE_BYTES)

    def _await_room(self, deadline: Deadline) -> None:
        writer = select.poll()
        writer.register(self._stdin, select.POLLOUT)
        writer.register(self._wake, select.POLLIN)
        events = dict(writer.poll(deadline.left() * 1000))
        if not events:
            raise TimeoutError
        # The last process has closed a terminal that is full: nobody makes room any longer, and poll() does not wait.
        if events.get(self._stdin, 0) & (select.POLLHUP | select.POLLOUT) == select.POLLHUP:
            raise BrokenPipeError


def _set_size(descriptor: int, columns: int, rows: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    """Return the two ends of a new pipe, each closed by its stack."""
    ends = os.pipe()
    for stack, end in zip((reader, writer), ends, strict=True):
        stack.callback(os.close, end)
    return ends


def _start_on_pipes(
    argv: Sequence[str], environment: Mapping[str, str], directory: str
) -> tuple[subprocess.Popen[bytes], int, int, int]:
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        theirs_in, stdin = _pipe(theirs, ours)
        stdout, theirs_out = _pipe(ours, theirs)
        stderr, theirs_err = _pipe(ours, theirs)
        # Only our end: O_NONBLOCK belongs to the open file, and the two ends of a pipe are two (pipe(2)).
        os.set_blocking(stdin, False)
        process = subprocess.Popen(  # noqa: S603 - running what it is told is what this type is for
            argv,
            stdin=theirs_in,
            stdout=theirs_out,
            stderr=theirs_err,
            env=environment,
            cwd=directory,
            start_new_session=True,
        )
        ours.pop_all()
    return process, stdin, stdout, stderr


def _start_on_terminal(
    argv: Sequence[str], environment: Mapping[str, str], directory: str, terminal: Pty
) -> tuple[subprocess.Popen[bytes], int, int, int]:
    master, slave = pty.openpty()
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        ours.callback(os.close, master)
        theirs.callback(os.close, slave)
        os.set_blocking(master, False)
        _set_size(master, terminal.columns, terminal.rows)
        # A session leader that opens a terminal makes it its controlling one (tty_ioctl(4)); no code runs after fork.
        # Until then stdin keeps the terminal open: reading a terminal that nobody has open fails.
        process = subprocess.Popen(  # noqa: S603
            ["/bin/sh", "-c", 'exec "$@" <"$0" >"$0" 2>&1', os.ttyname(slave), *argv],
            stdin=slave,
            env={**environment, "TERM": terminal.term},
            cwd=directory,
            start_new_session=True,
        )
        ours.pop_all()
    return process, master, master, -1


class ProcessEvents:
    """Readable while one of ``streams`` is, or when the child process ``pid`` has ended and was not waited for yet.

    Where the system lacks pidfd_open(2), only the streams count.
    """

    def __init__(self, pid: int, streams: Iterable[int]) -> None:
        self._selector = selectors.DefaultSelector()
        for descriptor in streams:
            self._selector.register(descriptor, selectors.EVENT_READ)
        self._process = -1
        if hasattr(os, "pidfd_open"):
            # The process may have been waited for already.
            with suppress(ProcessLookupError):
                self._process = os.pidfd_open(pid)
                self._selector.register(self._process, selectors.EVENT_READ)

    def fileno(self) -> int:
        """Return the descriptor (epoll(7), kqueue(2))."""
        return self._selector.fileno()

    def forget(self, stream: int) -> None:
        """Stop watching a stream that is at its end."""
        self._selector.unregister(stream)

    def has_ended(self) -> None:
        """Stop watching the process."""
        if self._process >= 0:
            self._selector.unregister(self._process)
            os.close(self._process)
            self._process = -1

    def close(self) -> None:
        """Free all descriptors but the streams' own."""
        self.has_ended()
        self._selector.close()
