"""The hooks that a plugin may implement, and what they take and return beside connection types and signers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import pluggy

from connmgr.fields import Schema
from connmgr.plugin.signers import SshSigner
from connmgr.plugin.transport import Deadline
from connmgr.plugin.types import AnyConnectionType


class Caller(Protocol):
    """The sender of a request, identified by its token."""

    id: str
    """Eight hexadecimal digits, as in the log and the audit log."""

    name: str
    """The client's name for itself, which is not verified."""

    @property
    def token(self) -> str | None:
        """The id of its token; None for the owner."""


@dataclass(frozen=True)
class Subjects:
    """What a request is about: connections and categories by uuid, paths on the remote host, and a shell."""

    connections: frozenset[str] = frozenset()
    """The connections that the request names, also within data, and all connections below them."""

    categories: frozenset[str] = frozenset()
    paths: tuple[str | bytes, ...] = ()
    session: str | None = None
    """The name of the shell, if it has one."""


@dataclass(frozen=True)
class FactProgram:
    """A program in the language of ``sh`` that prints facts about the machine on which it runs.

    It runs in ``/bin/sh -c`` as the connection's user, and needs only what POSIX has. Each line of its output is
    ``NAME=VALUE``, and makes the fact ``prefix.NAME``; a value of digits alone is a number. It is ended when it prints
    more than 1 MiB, or when the request's ``timeout`` is over.
    """

    prefix: str
    """The first word of its facts: a small letter, then small letters, digits, ``_`` and ``-``."""

    script: str


class SecretSource(ABC):
    """Fetches secrets from elsewhere at the moment when a link needs them: ``{"from": {"source": NAME, …}}`` in data.

    The daemon calls :meth:`fetch` in the thread that opens the link, from several threads at once for different
    secrets. It keeps nothing of the result but in that link's login.
    """

    name: ClassVar[str]
    """What ``source`` says: letters, digits, hyphens."""

    description: ClassVar[str]
    """A sentence."""

    schema: ClassVar[type[Schema]]
    """The members beside ``source``. Secrets of its own, such as a token for a server, are sealed like others."""

    example: ClassVar[Mapping[str, Any]] = {}
    """Members that the schema accepts."""

    @abstractmethod
    def fetch(self, data: Mapping[str, Any], deadline: Deadline) -> str:
        """Return the secret that loaded ``data`` name, before ``deadline``; its own secrets are in plain text.

        :raises connmgr.errors.SecretUnavailable: it could not be fetched. The message says why, for a person, and has
            nothing that could be a secret; ``for_tokens`` has nothing of the daemon's machine either.
        """


hookspec = pluggy.HookspecMarker("connmgr")


@hookspec
def connmgr_connection_types() -> Sequence[AnyConnectionType]:
    """Return the connection types that this plugin offers."""
    raise NotImplementedError


@hookspec
def connmgr_ssh_signers() -> Sequence[SshSigner]:
    """Return the kinds of signers of SSH certificates that this plugin offers."""
    raise NotImplementedError


@hookspec
def connmgr_fact_programs() -> Sequence[FactProgram]:
    """Return the programs by which this plugin gathers further facts about machines."""
    raise NotImplementedError


@hookspec
def connmgr_secret_sources() -> Sequence[SecretSource]:
    """Return the sources from which this plugin fetches secrets that the vault does not keep."""
    raise NotImplementedError


@hookspec
def connmgr_authorise(caller: Caller, action: str, subjects: Subjects) -> None:
    """Refuse a request by raising :class:`connmgr.errors.PolicyDenied`."""


@hookspec
def connmgr_audit(entry: Mapping[str, Any]) -> None:
    """Take note of an entry of the audit log, after it was written."""


@hookspec
def connmgr_run_ended(run: Mapping[str, Any]) -> None:
    """Take note of the end of a run: its id, name, state, counts, and the schedule that started it."""


@hookspec
def connmgr_approval_requested(approval: Mapping[str, Any]) -> None:
    """Take note of an approval that a token asks for, as ``/approval/query`` shows it: somebody has to decide."""
