"""A live link to a machine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from connmgr.errors import TransportUnsupported
from connmgr.plugin.channel import ByteStream, Channel, Pty


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
        """Whether :meth:`learn_language` may have :meth:`open_line` start processes that it does not start now."""
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
            "This connection cannot carry TCP streams, so no other connection can go through it."
        )

    def listen_tcp(self, host: str, port: int, *, timeout: float) -> Listener:
        """Listen on ``host:port`` of the remote host; on a free port if ``port`` is 0.

        :raises connmgr.errors.TransportUnsupported: the transport cannot, as by default.
        :raises connmgr.errors.OperationError: the remote host refused, or did not answer within ``timeout`` seconds.
        """
        raise TransportUnsupported("This connection cannot listen on its remote host.")


class Listener(Protocol):
    """A TCP port of the remote host."""

    port: int

    def accept(self, timeout: float) -> ByteStream:
        """Return the next stream opened to the port; raise :class:`TimeoutError` if none came in time."""

    def close(self) -> None:
        """Stop listening; calling it again does nothing."""
