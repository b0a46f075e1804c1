"""What the author of a connection type imports: the contracts of types, transports and channels, and field helpers.

A *connection type* opens a :class:`Transport`; a transport opens :class:`Channel` s; the engine runs a shell on a
channel. A :class:`Wrapper` has no transport of its own: it rewrites an argv and so runs over any other connection.
The engine does the rest for every type: chains, secrets, framing, timeouts, files and closing.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pluggy

from connmgr.fields import (
    Boolean,
    Integer,
    Length,
    List,
    Nested,
    Number,
    OneOf,
    Range,
    Reference,
    Schema,
    Secret,
    Text,
    ValidationError,
    validates_schema,
)

__all__ = [
    "Boolean",
    "Channel",
    "ConnectionType",
    "Dialogue",
    "Integer",
    "Length",
    "List",
    "Nested",
    "Number",
    "OneOf",
    "Range",
    "Reference",
    "Schema",
    "Secret",
    "TerminalRequired",
    "Text",
    "Transport",
    "ValidationError",
    "Wrapper",
    "hookimpl",
    "validates_schema",
]

hookimpl = pluggy.HookimplMarker("connmgr")


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


class Transport(ABC):
    """A live link to a machine, opened by a :class:`ConnectionType` and closed by the engine.

    Its methods may be called from several threads at once.
    """

    runs_locally: bool = False
    """Whether processes are children of the daemon itself, so that a later daemon can find those left behind."""

    @abstractmethod
    def open_channel(self, argv: Sequence[str], *, pty: bool = False, timeout: float) -> Channel:
        """Start ``argv`` on the far side and return its channel.

        A transport that needs one string quotes ``argv`` with :func:`shlex.join`. With ``pty`` the process has a
        terminal, its stderr arrives within stdout, and the channel is ``merged``.
        :raises connmgr.errors.TransportUnsupported: with ``pty``, from a transport that has no terminals.
        :raises connmgr.errors.OperationError: it could not be started within ``timeout`` seconds.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the link and all its channels. Never raises; calling it again does nothing."""

    def open_tcp(self, host: str, port: int, *, timeout: float) -> socket.socket:
        """Open a TCP stream from the far side to ``host:port``, returned as a socket-like object.

        :raises connmgr.errors.TransportUnsupported: the transport cannot, as by default.
        :raises connmgr.errors.OperationError: the stream could not be opened within ``timeout`` seconds.
        """
        from connmgr.errors import TransportUnsupported

        raise TransportUnsupported("This connection cannot carry TCP streams, so that nothing can go through it.")


class TerminalRequired(Exception):
    """Raised by :meth:`Wrapper.login` when the wrapping program insists on a terminal: the engine starts it on one."""


class Dialogue(Protocol):
    """The login conversation of a :class:`Wrapper`, on the channel that was just opened."""

    prompt: bytes
    """The pattern of the word that :meth:`Wrapper.wrap` was given."""

    ready: bytes
    """The pattern of what the engine prints from within: the login is over, and nothing more must be written."""

    @property
    def printed(self) -> str:
        """What came since the last match, on one line, for an error's message."""

    def expect(self, patterns: Sequence[bytes], timeout: float) -> int:
        """Wait for the first of the regular expressions and return its index.

        :raises connmgr.errors.ElevationFailed: the program ended.
        :raises connmgr.errors.ConnectTimeout: none came within ``timeout`` seconds.
        """

    def send_secret(self, secret: str) -> None:
        """Write ``secret`` and a newline; only after a prompt, when the far side has switched echo off."""


class ConnectionType(ABC):
    """A kind of connection: what describes one, and how it is opened."""

    name: ClassVar[str]
    """The value of ``data.type``."""

    usage_category: ClassVar[str] = "shell"
    """One of ``shell``, ``tunnel``, ``command`` and ``group``."""

    description: ClassVar[str]
    """One sentence for a person who chooses a type."""

    schema: ClassVar[type[Schema]]
    """The fields beside ``type``. A field ``shell``, where there is one, chooses the session's shell."""

    example: ClassVar[Mapping[str, Any]] = {}
    """Valid data, beside ``type``, for the documentation."""

    via: ClassVar[str | None] = None
    """The :class:`Reference` field that names the connection this one runs over, where the type has one."""

    def prepare(self, directory: Path) -> None:  # noqa: B027 - most types keep nothing, and need not say so
        """Take note of the daemon's data directory (0700), for a type that keeps files of its own there.

        The daemon calls it once, before the first ``open``. A type must work without it, but for what it would keep.
        """

    @abstractmethod
    def open(self, data: Mapping[str, Any], via: Transport | None, *, timeout: float) -> Transport:
        """Open a link as ``data`` says, over ``via`` where ``data`` names a connection to run over.

        ``data`` is what the schema loaded, each :class:`Secret` in plain. Whoever calls ``open`` closes the transport;
        ``via`` is closed after it, by the engine.
        :raises connmgr.errors.OperationError: it failed or took longer than ``timeout`` seconds; the most specific
            class that says why.
        """


class Wrapper(ConnectionType):
    """A connection type that runs programs of another connection in another place or under another identity."""

    @abstractmethod
    def wrap(self, argv: Sequence[str], data: Mapping[str, Any], prompt: str) -> list[str]:
        """Return the argv that runs ``argv`` there. A secret must not be part of it.

        ``prompt`` is a random word by which a program that lets its caller choose the prompt is recognised.
        """

    def needs_pty(self, data: Mapping[str, Any]) -> bool:
        """Whether the wrapping program insists on a terminal."""
        return False

    def needs_login(self, data: Mapping[str, Any]) -> bool:
        """Whether :meth:`login` is to be called after a wrapped program was started."""
        return False

    def login(self, dialogue: Dialogue, data: Mapping[str, Any]) -> None:
        """Answer the wrapping program's prompts until ``dialogue.ready`` comes.

        :raises connmgr.errors.AuthFailed: the password was refused.
        :raises TerminalRequired: it must be started on a terminal; not if :meth:`needs_pty`.
        """

    def open(self, data: Mapping[str, Any], via: Transport | None, *, timeout: float) -> Transport:
        """Not used: the engine runs a wrapper over the transport of the connection that ``via`` names."""
        raise NotImplementedError
