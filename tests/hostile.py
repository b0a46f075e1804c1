"""What a hostile or broken far side prints, and what reading it may cost."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from connmgr.plugin import Channel

SIZE = 16 << 20
CPU_SECONDS = 1.0
"""CPU time of the reading thread in which 16 MB of anything must be read."""


def fill(pattern: bytes, size: int = SIZE) -> bytes:
    """Return ``size`` bytes at most of ``pattern`` again and again."""
    return pattern * (size // len(pattern))


@contextlib.contextmanager
def quickly() -> Iterator[None]:
    """Fail if the block costs this thread more CPU time than it may, however loaded the machine is."""
    begun = time.thread_time()
    yield
    spent = time.thread_time() - begun
    assert spent < CPU_SECONDS, f"reading it took {spent:.1f} s of CPU time, in which other threads wait"


class Prints(Channel):
    """The far end of a channel: it prints ``stdout`` and ``stderr``, in pieces of that many bytes, and then ends."""

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
        """It reads nothing, and so notices nothing."""

    def exit_status(self, timeout: float) -> int:
        raise TimeoutError

    def close(self) -> None:
        self.closed = True
