"""What an open link carries: processes, and streams of bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from connmgr.errors import TransportUnsupported


class Channel(ABC):
    """One process on the far side: its three byte streams and its exit status.

    The engine calls ``recv``, ``sendall`` and ``shutdown_write`` from one thread at a time. It may call ``close`` from
    another thread at any moment: a blocked call then raises :class:`EOFError` or :class:`OSError` at once.
    """

    merged: bool = False
    """Whether stderr arrives within stdout, because the process has a terminal."""

    @abstractmethod
    def recv(self, timeout: float) -> tuple[bytes, bytes]:
        """Wait up to ``timeout`` seconds for output and return it as ``(stdout, stderr)``.

        Both are empty after the timeout. Output of either stream ends the wait, so that neither can fill up.
        :raises EOFError: both streams have ended, or the link is gone.
        """

    @abstractmethod
    def sendall(self, data: bytes, timeout: float) -> None:
        """Write all of ``data`` to the process.

        :raises TimeoutError: the far side did not take it within ``timeout`` seconds.
        :raises OSError: the process or the link is gone.
        """

    @abstractmethod
    def shutdown_write(self) -> None:
        """End the process's standard input; it reads EOF."""

    @abstractmethod
    def exit_status(self, timeout: float) -> int:
        """Wait up to ``timeout`` seconds for the process to end and return its exit status, 128 + N for signal N.

        :raises TimeoutError: it still runs.
        :raises EOFError: the link is gone and the status is not known.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the channel and, if possible, the process. Never raises; calling it again does nothing."""

    def expect_bulk(self) -> None:  # noqa: B027 - most channels have nothing to do
        """Prepare for much output that is read as fast as it comes, if that takes memory; by default do nothing.

        Of any other output the channel keeps little that is not read yet: the process waits, as for a full pipe.
        """

    def resize(self, columns: int, rows: int) -> None:
        """Set the size of the process's terminal, in characters.

        :raises connmgr.errors.TransportUnsupported: the channel cannot, as by default, or has no terminal.
        :raises OSError: the process or the link is gone.
        """
        raise TransportUnsupported("This channel has no terminal whose size could be set.")


class ByteStream(Protocol):
    """A stream of bytes in both directions: the methods used of a connected TCP socket."""

    def recv(self, size: int, /) -> bytes:
        """Return 1 to ``size`` bytes, or none at the end; raise :class:`TimeoutError` if none came in time."""

    def send(self, data: bytes | memoryview, /) -> int:
        """Write some of ``data`` and return the number of bytes written."""

    def sendall(self, data: bytes | memoryview, /) -> None:
        """Write all of ``data``."""

    def settimeout(self, seconds: float | None, /) -> None:
        """Limit reads and writes to ``seconds``; None waits for ever."""

    def shutdown(self, how: int, /) -> None:
        """End the output (``socket.SHUT_WR``); the other side reads EOF."""

    def close(self) -> None:
        """End the stream. Calling it again does nothing."""
