"""A process on the far side, served by the loop: its output to whoever takes it, its input in order."""

from __future__ import annotations

import selectors
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack

from connmgr.plugin import Channel
from connmgr.streams.loop import Loop

INPUT_SECONDS = 24 * 3600.0
"""A process that takes none of its input for this long has lost it."""

QUEUE_BYTES = 512 * 1024
"""Input that is taken before the far side takes it, so that neither waits for the other."""

POLL_SECONDS = 1.0
"""Where a channel has no descriptor, its thread looks this often whether the process is still wanted."""

STATUS_SECONDS = (0.001, 0.004, 0.016, 0.064, 0.25)
"""Pauses between looks for the exit status of a process that has ended its output and goes on."""

READS_AT_ONCE = 4
"""Reads of one process before others have their turn."""


class Process:
    """The process behind ``channel``. All methods belong to the thread of ``loop``, which calls back in it.

    ``output`` is given stdout and stderr as they come; ``taken`` the number of bytes of input that were taken, by the
    far side or into a queue; ``ended`` the exit status at last, or None where the link is gone. After :meth:`close`
    nothing is called but ``released``, once, in a thread that may wait, when the channel is closed.
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
        self._looks = 0
        self._may_read = threading.Event()
        self._descriptor = channel.fileno()
        if self._descriptor is None:
            self._may_read.set()
            threading.Thread(target=self._read_on, name="stream output", daemon=True).start()
        else:
            loop.call(self._begin)

    def write(self, data: bytes) -> None:
        """Write ``data`` to the process after what was given before; drop it where the process takes no more."""
        if not data:
            return
        self._unwritten += len(data)
        self._untaken += len(data)
        if self._broken:
            self._written(len(data), broken=True)
        else:
            self._input.append(data)
            self._take()
            self._write_on()

    def end_input(self) -> None:
        """End the standard input after what was given before."""
        self._ends_input = True
        self._write_on()

    def resize(self, columns: int, rows: int) -> None:
        """Set the size of the terminal, if the process runs and its link is there."""
        if self._over:
            return
        if self._descriptor is None:
            self._loop.work(lambda: self._resize(columns, rows))
        else:
            self._resize(columns, rows)

    def _resize(self, columns: int, rows: int) -> None:
        try:
            self._channel.resize(columns, rows)
        except (OSError, EOFError):
            # Its end is told where its output is read.
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
        """Read and write no more, and close the channel after calling ``before``. Calling it again does nothing."""
        if self._over:
            return
        self._over = True
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
        # What the channel holds already, its descriptor may not tell of.
        self._read()

    def _read(self) -> None:
        for _ in range(READS_AT_ONCE):
            if self._over or self._paused:
                return
            try:
                stdout, stderr = self._channel.recv(0)
            except (EOFError, OSError):
                self._output_is_over()
                return
            if not (stdout or stderr):
                self._look_at_end()
                return
            self._output(stdout, stderr)

    def _look_at_end(self) -> None:
        """End with the process of a terminal, which what it left behind may hold open; others end with their output."""
        try:
            status = self._channel.exit_status(0)
        except (TimeoutError, EOFError, OSError):
            return
        if self._channel.merged:
            self.close()
            self._ended(status)

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
            seconds = STATUS_SECONDS[min(self._looks, len(STATUS_SECONDS) - 1)]
            self._looks += 1
            self._loop.after(seconds, self._await_status)
            return
        except (EOFError, OSError):
            # The link is gone, and nobody knows.
            status = None
        self.close()
        self._ended(status)

    def _read_on(self) -> None:
        """Read in a thread of its own, as far as what was read is taken."""
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
            self._output(stdout, stderr)
        passed.set()

    def _write_on(self) -> None:
        if self._writing or self._over or not (self._input or self._ends_input):
            return
        self._writing = True
        pieces = list(self._input)
        self._input.clear()
        ends, self._ends_input = self._ends_input, False
        self._loop.work(lambda: self._write(pieces, ends=ends))

    def _write(self, pieces: list[bytes], *, ends: bool) -> None:
        """Write in a thread that may wait."""
        broken = False
        try:
            self._channel.sendall(b"".join(pieces), INPUT_SECONDS)
            if ends:
                self._channel.shutdown_write()
        except (OSError, EOFError):
            # The process has ended its input, or itself; its output tells more.
            broken = True
        self._loop.call(lambda: self._written(sum(map(len, pieces)), broken=broken))

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
        """Tell of the input that was taken: what was written, and what may wait here."""
        taken = min(self._untaken, QUEUE_BYTES - self._unwritten + self._untaken)
        if taken > 0:
            self._untaken -= taken
            self._taken(taken)
