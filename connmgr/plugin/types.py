"""The kinds of connections that a plugin brings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from connmgr.fields import Schema
from connmgr.plugin.transport import Transport


@dataclass(frozen=True)
class Child:
    """A system that a type has found inside of a connection: the ``name``, ``type`` and ``data`` of one to it."""

    name: str
    type: str
    data: Mapping[str, Any]
    running: bool = True


class Described(ABC):
    """What a :class:`ConnectionType` and a :class:`Wrapper` have in common: how a connection is described."""

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

    def children(self, transport: Transport, data: Mapping[str, Any], *, timeout: float) -> Iterable[Child]:
        """Return the systems inside of a connection, as a host's containers; none by default.

        ``transport`` is the connection's own.
        :raises connmgr.errors.OperationError: they could not be listed within ``timeout`` seconds.
        """
        return ()


class ConnectionType(Described):
    """A kind of connection that has a transport of its own."""

    @abstractmethod
    def open(self, data: Mapping[str, Any], via: Transport | None, *, timeout: float) -> Transport:
        """Open a link as ``data`` says, over ``via`` where ``data`` names a connection to run over.

        ``data`` is what the schema loaded, each :class:`Secret` in plain. Whoever calls ``open`` closes the transport;
        ``via`` is closed after it, by the engine.
        :raises connmgr.errors.OperationError: it failed or took longer than ``timeout`` seconds; the most specific
            class that says why.
        """


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
        """What came since the last match, its last 8 KiB, on one line, for an error's message."""

    def expect(self, patterns: Sequence[bytes], timeout: float) -> int:
        """Wait for the first of the regular expressions and return its index.

        ``ready`` is found anywhere, others in the last 1,024 bytes of what has come: that is where a program waits for
        an answer. An expression must not be one that takes long there, whatever the far side prints.
        :raises connmgr.errors.ElevationFailed: the program ended.
        :raises connmgr.errors.ConnectTimeout: none came within ``timeout`` seconds.
        """

    def send_secret(self, secret: str) -> None:
        """Write ``secret`` and a newline; only after a prompt, when the far side has switched echo off."""


class Wrapper(Described):
    """A connection type that runs programs of another connection in another place or under another identity.

    The engine runs it over the transport of the connection that ``via`` names.
    """

    @abstractmethod
    def wrap(self, argv: Sequence[str], data: Mapping[str, Any], prompt: str, *, pty: bool) -> list[str]:
        """Return the argv that runs ``argv`` there. A secret must not be part of it.

        ``prompt`` is a random word by which a program that lets its caller choose the prompt is recognised.
        ``pty`` says whether ``argv`` gets a terminal, for programs that must be told (``docker exec -t``).
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


AnyConnectionType = ConnectionType | Wrapper
"""What a plugin brings, and ``data.type`` names."""
