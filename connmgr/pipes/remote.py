"""Processes and TCP streams of remote hosts, served by the loop: output as it comes, input in order."""

from __future__ import annotations

import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress

from connmgr.errors import ShellLost, TransportUnsupported
from connmgr.links.channels import TcpChannel
from connmgr.plugin import ByteStream, Channel
from connmgr.streams.endpoints import READS_AT_ONCE, BufferedEndpoint, Endpoint, Receiver, SocketEndpoint
from connmgr.streams.frames import DATA, STDERR
from connmgr.streams.loop import Loop, Timer

INPUT_SECONDS = 24 * 3600.0
"""Input that a process does not read is dropped after this time."""

QUEUE_BYTES = 512 * 1024
"""Most bytes of queued input; the queue lets client and remote host work without waiting for each other."""

AT_ONCE_BYTES = 64 * 1024
"""Most bytes of input, such as keys and the pieces of rsync, that the loop's own thread writes. To encrypt as many
takes no longer than to pass them to another thread; to encrypt more would hold up other streams."""

LARGE_BYTES = 32 * 1024
"""Pieces of input that are on average as large are written one by one."""

POLL_SECONDS = 1.0
"""Interval at which the reader of a process without a descriptor checks whether it was closed."""

STATUS_SECONDS = (0.001, 0.001, 0.001, 0.002, 0.004, 0.008, 0.016, 0.064, 0.25)
"""Intervals between checks for the exit status of a process that runs on after the end of its output, where the channel
does not tell."""

QUIET_SECONDS = 1.0
"""A terminal is over if its process has ended and nothing came for this time, although other processes keep it open."""

BOTH_BLOCKED_SECONDS = 0.02
"""Interval at which a TCP stream is checked while neither side accepts more."""


class RemoteProcess:
    """The process behind ``channel``. All methods and callbacks belong to the thread of ``loop``.

    ``output`` gets stdout and stderr as they come; ``taken`` the number of bytes of input that the remote host or a
    queue has accepted; ``ended`` finally the exit status, or None if the link is lost. After :meth:`close` only
    ``released`` is called, once, in a thread that may block, when the channel is closed.
    """

    def __init__(
        self,
        loop: Loop,
        channel: Channel,
        *,
        output: Callable[[bytes, bytes], None],
        taken: Callable[[int], None],
        ended: Callable[[int | None], None],
        released: Callable[[], object],
    ) -> None:
        self._loop = loop
        self._channel = channel
        self._output, self._taken, self._ended, self._released = output, taken, ended, released
        self._input: deque[bytes] = deque()
        self._unwritten = self._untaken = 0
        self._ends_input = False
        self._writing = self._broken = False
        self._paused = self._over = False
        self.status: int | None = None
        """The exit status, None until the process has ended or if it is unknown."""

        self._received = self._looks = 0
        self._quiet_timer: Timer | None = None
        self._size: tuple[int, int] | None = None
        """The size to set by :meth:`_resize_later`."""
        self._may_read = threading.Event()
        self._descriptor = channel.fileno()
        if self._descriptor is None:
            self._may_read.set()
            threading.Thread(target=self._read_on, name="stream output", daemon=True).start()
        else:
            loop.call(self._begin)

    def write(self, data: bytes) -> None:
        """Write ``data`` to the process after all earlier input; drop it if the process reads no more."""
        if not data:
            return
        self._unwritten += len(data)
        self._untaken += len(data)
        if self._broken:
            self._written(len(data), broken=True)
            return
        try:
            sent = self._write_at_once(data)
        except (OSError, EOFError):
            self._written(len(data), broken=True)
            return
        self._unwritten -= sent
        if sent < len(data):
            self._input.append(data[sent:])
        self._take()
        self._write_on()

    def _write_at_once(self, data: bytes) -> int:
        """Write some of ``data`` in this thread, and return how much: none where that waits, or for earlier input."""
        if self._over or self._writing or self._input or self._ends_input or len(data) > AT_ONCE_BYTES:
            return 0
        try:
            return self._channel.send_now(data)
        except TimeoutError:
            return 0

    def end_input(self) -> None:
        """End the standard input after all earlier input."""
        self._ends_input = True
        self._write_on()

    def resize(self, columns: int, rows: int) -> None:
        """Set the size of the terminal, if the process runs, its link works, and it has a terminal."""
        if self._over:
            return
        if self._descriptor is not None:
            self._resize(columns, rows)
            return
        is_waiting = self._size is not None
        self._size = columns, rows
        if not is_waiting:
            self._loop.work(self._resize_later)

    def _resize_later(self) -> None:
        """Set the newest size, in a thread that may block: sizes must not pile up before a link that is stuck."""
        size, self._size = self._size, None
        if size is not None:
            self._resize(*size)

    def _resize(self, columns: int, rows: int) -> None:
        try:
            self._channel.resize(columns, rows)
        except (OSError, EOFError):
            # The reader of the output reports the end.
            return
        except TransportUnsupported:
            # As with SSH, a size without a terminal has no effect (RFC 4254, section 6.7).
            return

    def pause(self) -> None:
        """Read no output until :meth:`resume`: the process waits when its pipe is full."""
        if not self._paused:
            self._paused = True
            self._may_read.clear()
            if self._descriptor is not None:
                self._loop.unwatch(self._descriptor)

    def resume(self) -> None:
        """Read output again."""
        if self._paused and not self._over:
            self._paused = False
            self._may_read.set()
            if self._descriptor is not None:
                self._begin()

    def close(self, before: Callable[[], object] = lambda: None) -> None:
        """Read and write no more, call ``before``, and close the channel. Calling it again does nothing."""
        if self._over:
            return
        self._over = True
        if self._quiet_timer is not None:
            self._quiet_timer.cancel()
        self._may_read.set()
        self._input.clear()
        if self._descriptor is not None:
            self._loop.unwatch(self._descriptor)
        self._loop.work(lambda: self._release(before))

    def _release(self, before: Callable[[], object]) -> None:
        with ExitStack() as ending:
            ending.callback(self._released)
            ending.callback(self._channel.close)
            before()

    def _begin(self) -> None:
        if self._over or self._paused or self._descriptor is None:
            return
        self._loop.watch(self._descriptor, selectors.EVENT_READ, lambda _: self._read())
        # A wrapped channel may already have output in memory (ResumedChannel), which no descriptor signals.
        self._read()

    def _read(self) -> None:
        for count in range(READS_AT_ONCE):
            if self._over or self._paused:
                return
            try:
                stdout, stderr = self._channel.recv(0)
            except (EOFError, OSError):
                self._output_is_over()
                return
            if not (stdout or stderr):
                # Readable and still no output: it may be the end of the process. After output the descriptor was
                # readable for that; for an end it stays readable, and this is called again.
                if not count:
                    self._look_at_end()
                return
            self._receive(stdout, stderr)

    def _receive(self, stdout: bytes, stderr: bytes) -> None:
        self._received += len(stdout) + len(stderr)
        self._output(stdout, stderr)

    def _look_at_end(self) -> None:
        """Check for the end of a terminal's process; its children may keep the terminal open after it."""
        try:
            status = self._channel.exit_status(0)
        except (TimeoutError, EOFError, OSError):
            return
        # The status may overtake output: sshd sends it when the process ends. So a terminal is over only when it has
        # been quiet for a while. Without a terminal the end of the output tells.
        if self._channel.merged and self._quiet_timer is None:
            self._await_quiet(status)

    def _await_quiet(self, status: int) -> None:
        received = self._received

        def look() -> None:
            if self._paused or self._received != received:
                self._await_quiet(status)
            elif not self._over:
                # Set before close(): its thread calls ``released``, which reads the status for the audit log.
                self.status = status
                self.close()
                self._ended(status)

        self._quiet_timer = self._loop.after(QUIET_SECONDS, look)

    def _output_is_over(self) -> None:
        if self._descriptor is not None:
            self._loop.unwatch(self._descriptor)
        self._await_status()

    def _await_status(self) -> None:
        if self._over:
            return
        status: int | None = None
        try:
            status = self._channel.exit_status(0)
        except TimeoutError:
            if self._channel.when_ended(lambda: self._loop.call(self._await_status)):
                return
            seconds = STATUS_SECONDS[min(self._looks, len(STATUS_SECONDS) - 1)]
            self._looks += 1
            self._loop.after(seconds, self._await_status)
            return
        except (EOFError, OSError):
            # The link is lost, so nobody knows the status.
            status = None
        self.status = status
        self.close()
        self._ended(status)

    def _read_on(self) -> None:
        """Read in a separate thread, as long as earlier output is taken."""
        while not self._over:
            if not self._may_read.wait(POLL_SECONDS):
                continue
            try:
                stdout, stderr = self._channel.recv(POLL_SECONDS)
            except (EOFError, OSError):
                self._loop.call(self._output_is_over)
                return
            if stdout or stderr:
                passed = threading.Event()
                self._loop.call(lambda out=stdout, err=stderr, passed=passed: self._pass_on(out, err, passed))  # type: ignore[misc]
                while not (passed.wait(POLL_SECONDS) or self._over):
                    pass
            elif self._channel.merged:
                self._loop.call(self._look_at_end)

    def _pass_on(self, stdout: bytes, stderr: bytes, passed: threading.Event) -> None:
        if not self._over:
            self._receive(stdout, stderr)
        passed.set()

    def _write_on(self) -> None:
        if self._writing or self._over or not (self._input or self._ends_input):
            return
        self._writing = True
        # All that waits, in one task: while it is written, the next pieces gather, so a slow link gets large writes and
        # a process has at most one writing thread.
        pieces = list(self._input)
        self._input.clear()
        ends, self._ends_input = self._ends_input, False
        self._loop.work(lambda: self._write(pieces, ends=ends))

    def _write(self, pieces: list[bytes], *, ends: bool) -> None:
        """Write in a thread that may block."""
        broken, size = False, sum(map(len, pieces))
        try:
            # Joining large pieces would copy all of them once more; small ones would cost a packet each.
            for data in pieces if size >= len(pieces) * LARGE_BYTES else [b"".join(pieces)]:
                self._channel.sendall(data, INPUT_SECONDS)
            if ends:
                self._channel.shutdown_write()
        except (OSError, EOFError):
            # The process has closed its input, or has ended; the end of its output will show which.
            broken = True
        self._loop.call(lambda: self._written(size, broken=broken))

    def _written(self, size: int, *, broken: bool) -> None:
        self._writing = False
        self._broken = self._broken or broken
        if self._over:
            return
        if self._broken:
            size = self._unwritten
            self._input.clear()
        self._unwritten -= size
        self._take()
        self._write_on()

    def _take(self) -> None:
        """Report accepted input: bytes that were written, and those that fit into the queue."""
        taken = min(self._untaken, QUEUE_BYTES - self._unwritten + self._untaken)
        if taken > 0:
            self._untaken -= taken
            self._taken(taken)


class ProcessEndpoint(Endpoint):
    """The process behind ``channel``; it is over with its exit status, or with :class:`ShellLost`.

    ``hang_up`` is called in a thread that may block, before the channel of a process that still runs is closed, and
    ``released`` there when it is closed. ``without_stderr`` drops standard error.
    """

    has_outcome = True

    def __init__(
        self,
        loop: Loop,
        channel: Channel,
        *,
        hang_up: Callable[[], object] = lambda: None,
        released: Callable[[], object] = lambda: None,
        without_stderr: bool = False,
    ) -> None:
        self._hang_up, self._without_stderr = hang_up, without_stderr
        self._untaken = 0
        self._process = RemoteProcess(
            loop, channel, output=self._output, taken=self._taken, ended=self._ended, released=released
        )

    @property
    def unwritten(self) -> int:
        return self._untaken

    @property
    def status(self) -> int | None:
        """The exit status of the process, None until it has ended or if it is unknown."""
        return self._process.status

    def begin(self, receiver: Receiver) -> None:
        # The process is read from the loop's next round on.
        self.receiver = receiver

    def write(self, data: bytes | memoryview, kind: int = DATA) -> None:
        self._untaken += len(data)
        self._process.write(bytes(data))

    def end(self) -> None:
        self._process.end_input()

    def pause(self) -> None:
        self._process.pause()

    def resume(self) -> None:
        self._process.resume()

    def resize(self, columns: int, rows: int) -> None:
        """Set the size of its terminal."""
        self._process.resize(columns, rows)

    def close(self, *, reset: bool = False) -> None:
        self._process.close(self._hang_up)

    def _output(self, stdout: bytes, stderr: bytes) -> None:
        if stdout:
            self.receiver.arrived(stdout)
        if stderr and not self._without_stderr:
            self.receiver.arrived(stderr, STDERR)

    def _taken(self, size: int) -> None:
        self._untaken -= size
        self.receiver.taken(size)

    def _ended(self, status: int | None) -> None:
        lost = ShellLost("The link broke; it is unknown how the process ended.")
        self.receiver.over(lost if status is None else status)


class RemoteStreamEndpoint(BufferedEndpoint):
    """A TCP stream with a descriptor that signals news (:class:`connmgr.plugin.ByteStream`)."""

    def __init__(self, loop: Loop, stream: ByteStream, descriptor: int) -> None:
        stream.settimeout(0.0)
        super().__init__(loop, descriptor, stream.recv, stream.send)
        self._stream = stream
        self._watched = self._looks = False

    def _watch(self) -> None:
        if self._reads != self._watched and not self._closed:
            self._watched = self._reads
            if self._reads:
                self._loop.watch(self._descriptor, selectors.EVENT_READ, self._ready)
            else:
                # Data that must not be read yet would be signalled again and again.
                self._loop.unwatch(self._descriptor)
        # The only descriptor tells of data and of room alike (ByteStream). While it cannot be watched, because data
        # must wait, room is looked for by a timer.
        if self._outbox.size and not self._reads and not self._looks:
            self._looks = True
            self._loop.after(BOTH_BLOCKED_SECONDS, self._look)

    def _look(self) -> None:
        self._looks = False
        self._flush()

    def _ready(self, _: int) -> None:
        # In this order, because a read without data clears the news that writing may go on.
        self._read()
        if self._outbox.size:
            self._flush()

    def _shut_down(self) -> None:
        # In a thread that may block: another one may be sending on the link.
        self._loop.work(self._send_end)

    def _send_end(self) -> None:
        with suppress(OSError, EOFError):
            self._stream.shutdown(socket.SHUT_WR)

    def _release(self, *, reset: bool) -> None:
        self._loop.work(self._stream.close)


def endpoint_of(loop: Loop, stream: ByteStream | Channel) -> Endpoint:
    """Return an endpoint that takes over ``stream``; the standard error of a relaying program is dropped."""
    if isinstance(stream, socket.socket):
        return SocketEndpoint(loop, stream)
    if isinstance(stream, Channel):
        return ProcessEndpoint(loop, stream, without_stderr=True)
    fileno = getattr(stream, "fileno", None)
    if fileno is not None:
        return RemoteStreamEndpoint(loop, stream, fileno())
    # Threads of the loop wait for a stream without a descriptor.
    return ProcessEndpoint(loop, TcpChannel(stream))
