"""Output of a hostile or broken remote host, and the CPU time that reading it may take."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from connmgr.plugin import Channel

SIZE = 16 << 20
CPU_SECONDS = 1.0
"""CPU time of the reading thread for any 16 MB."""


def fill(pattern: bytes, size: int = SIZE) -> bytes:
    """Repeat ``pattern`` up to ``size`` bytes."""
    return pattern * (size // len(pattern))


@contextlib.contextmanager
def quickly() -> Iterator[None]:
    """Fail if the block takes more than ``CPU_SECONDS`` of this thread; the machine's load does not count."""
    begun = time.thread_time()
    yield
    spent = time.thread_time() - begun
    assert spent < CPU_SECONDS, f"reading it took {spent:.1f} s of CPU time, in which other threads wait"


class Prints(Channel):
    """A channel whose program prints ``stdout`` and ``stderr`` in pieces of ``piece`` bytes, and then ends."""

    def __init__(
        self, stdout: bytes = b"", stderr: bytes = b"", *, piece: int = 32 << 10, merged: bool = False
    ) -> None:
        self.merged = merged
        self.sent = b""
        self.closed = False
        self.read = 0
        self._left = memoryview(stdout), memoryview(stderr)
        self._piece = piece

    def recv(self, timeout: float) -> tuple[bytes, bytes]:
        stdout, stderr = (bytes(left[: self._piece]) for left in self._left)
        if self.closed or not (stdout or stderr):
            raise EOFError
        self._left = self._left[0][self._piece :], self._left[1][self._piece :]
        self.read += len(stdout) + len(stderr)
        return stdout, stderr

    def print(self, stdout: bytes) -> None:
        """Print ``stdout`` from now on."""
        self._left = memoryview(stdout), self._left[1]

    def sendall(self, data: bytes, timeout: float) -> None:
        self.sent += data

    def shutdown_write(self) -> None:
        """Do nothing: the program reads no input."""

    def exit_status(self, timeout: float) -> int:
        raise TimeoutError

    def close(self) -> None:
        self.closed = True
