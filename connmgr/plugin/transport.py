"""A live link to a machine, its channels and streams, and the deadline of an operation on them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from connmgr.errors import TransportUnsupported

LEAST_SECONDS = 0.1
"""The least time of a step that begins near its operation's deadline, so that it fails for its own reason."""


class Deadline:
    """The moment ``seconds`` from now, on the monotonic clock (``time.monotonic``)."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self, least: float = 0.0) -> float:
        """Return the seconds left, at least ``least``."""
        return max(least, self._end - time.monotonic())

    def within(self, seconds: float) -> Deadline:
        """Return the deadline ``seconds`` from now, or this one if it is earlier."""
        return Deadline(min(seconds, self.left()))

    @property
    def passed(self) -> bool:
        """Whether it is past."""
        return time.monotonic() >= self._end


@dataclass(frozen=True)
class Pty:
    """The terminal of a process: the value of TERM, and its size in characters.

    A ``raw`` terminal neither echoes nor translates from the beginning, if the remote host supports that.
    """

    term: str = "xterm"
    columns: int = 80
    rows: int = 24
    raw: bool = False


class Channel(ABC):
    """One process on the remote host: its three byte streams and its exit status.

    One thread at a time calls ``recv``, and one at a time ``sendall``, ``send_now`` and ``shutdown_write``; the two may
    overlap, and must not block each other. Another thread may call ``close`` at any moment: a blocked call then raises
    :class:`EOFError` or :class:`OSError` at once.
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

        :raises TimeoutError: the remote host did not accept it within ``timeout`` seconds.
        :raises OSError: the process or the link is gone.
        """

    def send_now(self, data: bytes) -> int:
        """Write some of ``data`` to the process without waiting, and return the number of bytes.

        The daemon writes small input this way, such as keys, and the rest by ``sendall`` in another thread.
        :raises TimeoutError: nothing was written, because that would wait, or, as by default, because the channel
            cannot tell.
        :raises OSError: the process or the link is gone.
        """
        raise TimeoutError("This channel cannot write without waiting.")

    @abstractmethod
    def shutdown_write(self) -> None:
        """End the process's standard input; it reads EOF."""

    @abstractmethod
    def exit_status(self, timeout: float) -> int:
        """Wait up to ``timeout`` seconds for the process to end and return its exit status, 128 + N for signal N.

        :raises TimeoutError: it still runs.
        :raises EOFError: the link is lost and the status unknown.
        """

    def when_ended(self, call: Callable[[], object]) -> bool:
        """Have ``call`` called once when :meth:`exit_status` no longer times out; by default return False, and do not.

        It may be called at once and in any thread, and does not wait. A later ``call`` replaces it.
        """
        return False

    @abstractmethod
    def close(self) -> None:
        """Release the channel and, if possible, the process. Never raises; calling it again does nothing."""

    def fileno(self) -> int | None:
        """Return a descriptor that is readable while there is news, until the channel is closed; None by default.

        News means that ``recv`` would return or raise at once, or that the process has ended. A channel with a
        descriptor promises that ``recv`` and ``exit_status`` with a timeout of 0, and ``resize``, never wait for the
        remote host. The descriptor need not signal data that ``open_channel`` itself has read. Without a descriptor, a
        thread of the daemon waits in ``recv``.
        """
        return None

    def expect_bulk(self) -> None:  # noqa: B027 - most channels have nothing to do
        """Prepare for much output that is read as fast as it comes, if that needs memory; by default do nothing.

        Without this call a channel keeps little unread output, and the process waits as for a full pipe.
        """

    def resize(self, columns: int, rows: int) -> None:
        """Set the size of the process's terminal, in characters.

        :raises connmgr.errors.TransportUnsupported: the channel cannot, as by default, or has no terminal.
        :raises OSError: the process or the link is gone.
        """
        raise TransportUnsupported("This channel has no terminal, so its size cannot be set.")


class ByteStream(Protocol):
    """A stream of bytes in both directions: the methods used of a connected TCP socket.

    A stream other than a socket may also have ``fileno() -> int``: a descriptor that is readable while there is news,
    until the stream is closed. News means that ``recv`` would return at once, or that ``send`` would, after it has
    accepted nothing. With a timeout of 0 both then never wait, and raise :class:`TimeoutError`; a ``recv`` without data
    clears the news of ``send``. Without a descriptor, threads of the daemon wait for the stream.
    """

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


class Transport(ABC):
    """A live link to a machine, opened by a :class:`ConnectionType` and closed by the engine.

    Its methods may be called from several threads at once.
    """

    runs_locally: bool = False
    """Whether processes are children of the daemon, so that a later daemon can find leftovers."""

    forwards_agent: bool = False
    """Whether remote processes reach an ssh-agent of this side. Tokens then need the scope ``ssh.agent``."""

    fresh_until: float | None = None
    """The time in seconds since 1970 from which it is to carry nothing new: what begins then gets a link of its own.

    None, as by default, for a link that does not age.
    """

    @property
    def alive(self) -> bool:
        """Whether the link works, as far as known without asking the remote host; by default True.

        A link that is not alive gets no further channels: the daemon opens the connection again.
        """
        return True

    def answers(self, timeout: float) -> bool:
        """Whether the remote host is there, by default True.

        Called only if a sign of life is overdue; the remote host has ``timeout`` seconds to answer. If it does not, the
        daemon opens the connection again before it sends a command.
        """
        return True

    @property
    def carries_streams(self) -> bool:
        """Whether :meth:`open_tcp` can open a stream; by default whether the class overrides it."""
        return type(self).open_tcp is not Transport.open_tcp

    @abstractmethod
    def open_channel(self, argv: Sequence[str], *, pty: Pty | None = None, timeout: float) -> Channel:
        """Start ``argv`` on the remote host and return its channel.

        A transport that needs one string quotes ``argv`` with :func:`shlex.join`. With ``pty`` the process has such a
        terminal, its stderr arrives within stdout, and the channel is ``merged``.
        :raises connmgr.errors.TransportUnsupported: with ``pty``, if the transport has no terminals.
        :raises connmgr.errors.OperationError: it could not be started within ``timeout`` seconds.
        """

    @property
    def can_learn_language(self) -> bool:
        """Whether :meth:`learn_language` may have processes start by a line that do not now (:meth:`open_line`)."""
        return False

    def learn_language(self, timeout: float) -> None:  # noqa: B027 - most transports have no login shell
        """Ask the remote host within ``timeout`` seconds which language its login shell reads; by default do nothing.

        Never raises.
        """

    def open_line(self, line: str, *, timeout: float) -> Channel | None:
        """Start ``line`` in the login shell itself, without another shell that would take its time to start.

        The channel is one for bulk data (:meth:`Channel.expect_bulk`).
        Return None, as by default, unless that shell is known to read the language of POSIX, to be the one that SHELL
        names, and to have ``line`` in its argv: only :meth:`open_channel` then starts what is meant.
        :raises connmgr.errors.OperationError: it could not be started within ``timeout`` seconds.
        """
        return None

    @abstractmethod
    def close(self) -> None:
        """Close the link and all its channels. Never raises; calling it again does nothing."""

    def open_tcp(self, host: str, port: int, *, timeout: float) -> ByteStream:
        """Open a TCP stream from the remote host to ``host:port``, for the caller alone.

        :raises connmgr.errors.TransportUnsupported: the transport cannot, as by default.
        :raises connmgr.errors.OperationError: the stream could not be opened within ``timeout`` seconds.
        """
        raise TransportUnsupported(
            "This connection runs programs, but no TCP stream and no other connection can lead through it: use the "
            "connection that it is in. `connmgr tunnel` and `ssh -L` forward ports of its machine."
        )

    def open_unix(self, path: str, *, timeout: float) -> ByteStream:
        """Open a stream from the remote host to its Unix socket at ``path``, for the caller alone.

        :raises connmgr.errors.TransportUnsupported: the transport cannot, as by default.
        :raises connmgr.errors.OperationError: the stream could not be opened within ``timeout`` seconds.
        """
        raise TransportUnsupported("This connection does not lead to Unix sockets, only to TCP ports.")

    def listen_unix(self, path: str, *, timeout: float) -> Listener:
        """Listen at a new Unix socket ``path`` of the remote host; the listener's port is 0.

        :raises connmgr.errors.TransportUnsupported: the transport cannot, as by default.
        :raises connmgr.errors.OperationError: the remote host refused, or did not answer within ``timeout`` seconds.
        """
        raise TransportUnsupported("This connection cannot listen at Unix sockets of its remote host.")

    def listen_tcp(self, host: str, port: int, *, timeout: float) -> Listener:
        """Listen on ``host:port`` of the remote host; on a free port if ``port`` is 0.

        :raises connmgr.errors.TransportUnsupported: the transport cannot, as by default.
        :raises connmgr.errors.OperationError: the remote host refused, or did not answer within ``timeout`` seconds.
        """
        raise TransportUnsupported(
            "This connection cannot listen on its remote host: use the connection that it is in."
        )


class Listener(Protocol):
    """A TCP port, or a Unix socket, of the remote host."""

    port: int

    def accept(self, timeout: float) -> ByteStream:
        """Return the next stream opened to the port; raise :class:`TimeoutError` if none came in time."""

    def close(self) -> None:
        """Stop listening; calling it again does nothing."""
