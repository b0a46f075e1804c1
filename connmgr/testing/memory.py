"""A connection type without a machine; its programs are Python functions.

Use it for behaviour that real machines hardly show: a refused login, half a line and then silence. It has no shell; for
one, use ``local``.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from connmgr.errors import ShellStartFailed
from connmgr.plugin import BECOME_ARGV, Channel, ConnectionType, Pty, Schema, Transport

STREAM_BYTES = 1 << 16
"""Most bytes that a stream holds until they are read."""

HUNG_UP = 129
"""The exit status, as a shell reports it, of a program ended by SIGHUP (signal 1)."""

CLOSE_SECONDS = 2.0

Program = Callable[["Process"], int]
"""Runs a program to its end, and returns the exit status."""


class HungUp(BaseException):
    """Ends a program whose channel was closed. Like SystemExit it is not an :class:`Exception`; do not catch it."""


class Process:
    """A running program's argv and streams."""

    def __init__(self, channel: MemoryChannel, argv: Sequence[str]) -> None:
        self.argv = list(argv)
        self.has_terminal = channel.merged
        self._channel = channel

    def readline(self) -> bytes:
        """Wait for a line of standard input; at its end return the rest, then ``b""``."""
        return self._channel.take_line()

    def write(self, data: bytes) -> None:
        """Write to standard output; wait while it is full."""
        self._channel.put("stdout", data)

    def write_error(self, data: bytes) -> None:
        """Write to standard error; wait while it is full."""
        self._channel.put("stderr", data)

    def run(self, argv: Sequence[str]) -> int:
        """Run another program on the same streams, and return its exit status."""
        return self._channel.run(argv)


class MemoryChannel(Channel):
    """A program in a thread, which ends by itself, or at its next read or write after the channel was closed."""

    def __init__(self, run: Callable[[Process], int], argv: Sequence[str], *, terminal: bool) -> None:
        self.merged = terminal
        self._start = run
        self._changed = threading.Condition()
        self._buffers = {"stdin": bytearray(), "stdout": bytearray(), "stderr": bytearray()}
        self._input_ended = False
        self._closed = False
        self._status: int | None = None
        self._thread = threading.Thread(target=self._live, args=(argv,), name=f"in-memory {argv[0]}", daemon=True)
        self._thread.start()

    def recv(self, timeout: float) -> tuple[bytes, bytes]:
        out, err = self._buffers["stdout"], self._buffers["stderr"]
        with self._changed:
            self._changed.wait_for(lambda: out or err or self._over, max(0.0, timeout))
            if self._closed or (self._over and not (out or err)):
                raise EOFError
            output = bytes(out), bytes(err)
            out.clear()
            err.clear()
            self._changed.notify_all()
        return output

    def sendall(self, data: bytes, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        with self._changed:
            if self._input_ended:
                raise BrokenPipeError
            self._fill("stdin", data, lambda: self._over, BrokenPipeError, deadline)

    def shutdown_write(self) -> None:
        with self._changed:
            self._input_ended = True
            self._changed.notify_all()

    def exit_status(self, timeout: float) -> int:
        with self._changed:
            self._changed.wait_for(lambda: self._over, max(0.0, timeout))
            if self._status is not None:
                return self._status
            raise EOFError if self._closed else TimeoutError

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_SECONDS)

    def take_line(self) -> bytes:
        stdin = self._buffers["stdin"]
        with self._changed:
            self._changed.wait_for(lambda: b"\n" in stdin or self._input_ended or self._closed)
            if self._closed:
                raise HungUp
            line = bytes(stdin[: stdin.find(b"\n") + 1] if b"\n" in stdin else stdin)
            del stdin[: len(line)]
            self._changed.notify_all()
        return line

    def put(self, stream: str, data: bytes) -> None:
        with self._changed:
            self._fill("stdout" if self.merged else stream, data, lambda: self._closed, HungUp, None)

    def run(self, argv: Sequence[str]) -> int:
        return self._start(Process(self, argv))

    @property
    def _over(self) -> bool:
        return self._closed or self._status is not None

    def _fill(
        self,
        stream: str,
        data: bytes,
        ended: Callable[[], bool],
        refusal: type[BaseException],
        deadline: float | None,
    ) -> None:
        buffer, rest = self._buffers[stream], memoryview(data)

        def ready() -> bool:
            return ended() or len(buffer) < STREAM_BYTES

        while rest:
            remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._changed.wait_for(ready, remaining):
                raise TimeoutError
            if ended():
                raise refusal
            room = STREAM_BYTES - len(buffer)
            buffer += rest[:room]
            rest = rest[room:]
            self._changed.notify_all()

    def _live(self, argv: Sequence[str]) -> None:
        status = HUNG_UP
        try:
            status = self.run(argv)
        except HungUp:
            pass
        except Exception:  # noqa: BLE001 - a program that fails says so as Python does, and the test sees it
            status = 1
            with self._changed:
                self._buffers["stdout" if self.merged else "stderr"] += traceback.format_exc().encode()
        finally:
            with self._changed:
                self._status = status
                self._changed.notify_all()


class MemoryTransport(Transport):
    """Runs Python functions by the first word of an argv; exits with 127 for an unknown one, like a shell.

    ``started`` lists the argv of every program, including those that another program ran. The only shell script is
    ``/bin/sh -c '…; exec "$@"'``, or with :data:`connmgr.plugin.BECOME_ARGV` at its end, with which the engine and
    wrappers start a program.
    """

    def __init__(self, programs: Mapping[str, Program]) -> None:
        self.started: list[list[str]] = []
        self._programs = {"/bin/sh": _sh, **programs}
        self._channels: list[MemoryChannel] = []
        self._lock = threading.Lock()
        self._closed = False

    def open_channel(self, argv: Sequence[str], *, pty: Pty | None = None, timeout: float) -> Channel:
        with self._lock:
            if self._closed:
                raise ShellStartFailed("The connection is closed.")
            channel = MemoryChannel(self._run, argv, terminal=pty is not None)
            self._channels.append(channel)
        return channel

    def close(self) -> None:
        with self._lock:
            self._closed = True
            channels, self._channels = self._channels, []
        for channel in channels:
            channel.close()

    def _run(self, process: Process) -> int:
        self.started.append(process.argv)
        program = self._programs.get(process.argv[0], _not_found)
        return program(process)


def _sh(process: Process) -> int:
    """Imitate a script that becomes its arguments, as far as its effects are visible.

    The engine's script around a login prints ``$1`` on each stream when the login is over, and drops it.
    """
    script, argv = (process.argv[2], process.argv[4:]) if len(process.argv) > 4 else ("", [])
    if not argv or not script.endswith(('exec "$@"', BECOME_ARGV)):
        process.write_error(b"sh: there is no shell in memory\n")
        return 127
    if 'echo "$1"' in script:
        mark, *argv = argv
        if not process.has_terminal:
            process.write_error(f"{mark}.\n".encode())
        process.write(f"\n{mark}\n".encode())
    return process.run(argv)


def _not_found(process: Process) -> int:
    process.write_error(f"{process.argv[0]}: not found\n".encode())
    return 127


class InMemory(ConnectionType):
    """A connection type for a test's registry; its transports run ``programs``."""

    name = "memory"
    usage_category = "command"
    description = "Programs that are functions of a test."
    schema = Schema

    def __init__(self, programs: Mapping[str, Program]) -> None:
        self.programs = programs

    def open(self, data: Mapping[str, Any], via: Transport | None, *, timeout: float) -> Transport:
        return MemoryTransport(self.programs)
