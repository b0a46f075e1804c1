"""What an open link carries: processes, and streams of bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from connmgr.errors import TransportUnsupported


class Channel(ABC):
    """One process on the far side: its three byte streams and its exit status.

    The engine calls ``recv``, ``sendall`` and ``shutdown_write`` from one thread at a time, and may call ``close`` from
    another one at any moment: a blocked call then ends with :class:`EOFError` or :class:`OSError` at once.
    """

    merged: bool = False
    """Whether stderr arrives within stdout, because the process has a terminal."""

    @abstractmethod
    def recv(self, timeout: float) -> tuple[bytes, bytes]:
        """Wait up to ``timeout`` seconds for output and return what has come as ``(stdout, stderr)``.

        Both are empty when the time has passed. Output of either stream ends the wait, so that neither can fill up.
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
        """Release the channel and, where it can be, the process. Never raises; calling it again does nothing."""

    def resize(self, columns: int, rows: int) -> None:
        """Tell the process's terminal its size, in characters.

        :raises connmgr.errors.TransportUnsupported: the channel has no terminal, or cannot, as by default.
        :raises OSError: the process or the link is gone.
        """
        raise TransportUnsupported("This channel has no terminal whose size could be set.")


class ByteStream(Protocol):
    """A stream of bytes in both directions: the methods of a connected TCP socket that are used of one."""

    def recv(self, size: int, /) -> bytes:
        """Return 1 to ``size`` bytes, or none at the end of the stream; :class:`TimeoutError` if none came in time."""

    def send(self, data: bytes | memoryview, /) -> int:
        """Write some of ``data`` and return how many bytes that were."""

    def sendall(self, data: bytes | memoryview, /) -> None:
        """Write all of ``data``."""

    def settimeout(self, seconds: float | None, /) -> None:
        """Let reads and writes wait for at most ``seconds``; None for ever."""

    def shutdown(self, how: int, /) -> None:
        """End what is written (``socket.SHUT_WR``); the other side reads EOF."""

    def close(self) -> None:
        """End the stream. Calling it again does nothing."""
