"""The kinds of connections that a plugin can define."""

from __future__ import annotations

import re
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from connmgr.errors import ScopeDenied, SignerUnavailable
from connmgr.fields import Schema
from connmgr.plugin.signers import CertificateWish, SignedCertificate
from connmgr.plugin.transport import Transport


@dataclass(frozen=True)
class Child:
    """A system inside a connection: ``name``, ``type`` and ``data`` of a connection to it.

    ``data`` omits the field that names the connection it runs over, which is the one in which it was found.
    """

    name: str
    type: str
    data: Mapping[str, Any]
    running: bool = True


@dataclass(frozen=True)
class ForgottenKey:
    """A known host key: ``type SHA256:…``, its file and line, and why it could not be removed, else ``""``."""

    key: str
    place: str
    kept: str = ""


@dataclass(frozen=True)
class Dialled:
    """A host that a link leads to, and how to log in there.

    ``identities`` are the private keys that are offered: files, ``~`` for the home directory of the daemon's user.
    ``agent`` says whether an ssh-agent is asked for others.
    """

    host: str
    port: int
    user: str
    identities: tuple[str, ...] = ()
    agent: bool = False


def no_signer(wish: CertificateWish, _timeout: float) -> SignedCertificate:
    """Raise SignerUnavailable: there is no vault that has signers."""
    raise SignerUnavailable(f"The signer {wish.signer} is not available here.")


def _nobody_is_told() -> None:
    """Do nothing: nobody listens."""


@dataclass(frozen=True, repr=False)
class Asker:
    """The caller that wants a link, and the credentials that its client lends for the logins.

    They are lent for this one opening: a type must not keep them, except an agent that the link forwards.
    """

    agent: Callable[[float], socket.socket] | None = None
    """Connects to the ssh-agent of the client within a number of seconds, or raises OSError."""

    passphrases: Mapping[str, str] = field(default_factory=dict)
    """The passphrases of encrypted private keys, by ``key`` in the details of :class:`connmgr.errors.AuthFailed`."""

    may_forward: bool = True
    """Whether it may use a link that forwards an agent; see :meth:`require_forwarding`."""

    certify: Callable[[CertificateWish, float], SignedCertificate] = no_signer
    """Has a login's key signed by one of the vault's signers within a number of seconds; see :class:`SshSigner`."""

    touch: Callable[[], None] = _nobody_is_told
    """Tells whoever waits that a security key must be touched now, so that the login can go on; never waits."""

    is_own: bool = True
    """Whether the link is for the requested connection itself: a connection below it never forwards an agent."""

    def require_forwarding(self) -> None:
        """Return if it may use a link that forwards an agent.

        :raises ScopeDenied: it is a token's, which needs the scope ``ssh.agent``.
        """
        if not self.may_forward:
            raise ScopeDenied(
                "The connection forwards an ssh-agent (forwardAgent), and every program there can sign with it: the "
                "token needs the scope ssh.agent."
            )


EXPLAINER = ("ssh-config", "--explain", "%n", "%p")
"""The end of the ``ProxyCommand`` of connmgr's own hosts in ssh_config, which lead to the daemon and not past it."""

KEPT_CONFIG = "# connmgr keeps this file as its connections are. `connmgr ssh-config --remove` removes it.\n"
"""The first line of the file with these hosts that the daemon keeps, which ``~/.ssh/config`` may include."""

DEFAULT_SEND_ENV = ("LANG", "LC_*")
"""As in the ssh_config that Debian and others ship."""


@dataclass(frozen=True)
class ClientEnvironment:
    """Which variables of a client reach the programs that it runs, as with SendEnv and SetEnv of ssh_config(5).

    ``send`` are patterns of ``*`` and ``?``; one that begins with ``-`` removes earlier patterns. ``values`` are set
    whatever the client sends.
    """

    send: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)

    def then(self, more: ClientEnvironment) -> ClientEnvironment:
        """Return this one with ``more`` after it."""
        return ClientEnvironment((*self.send, *more.send), {**self.values, **more.values})

    @property
    def patterns(self) -> list[str]:
        """The patterns that remain."""
        patterns: list[str] = []
        for pattern in self.send:
            if pattern.startswith("-"):
                patterns = [pattern_so_far for pattern_so_far in patterns if not _matches(pattern[1:], pattern_so_far)]
            elif pattern not in patterns:
                patterns.append(pattern)
        return patterns

    def select(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the variables to set for a client with ``environment``."""
        patterns = self.patterns if environment else []
        sent = {
            name: value for name, value in environment.items() if any(_matches(pattern, name) for pattern in patterns)
        }
        return {**sent, **self.values}


def _matches(pattern: str, name: str) -> bool:
    expression = "".join({"*": ".*", "?": "."}.get(character, re.escape(character)) for character in pattern)
    return re.fullmatch(expression, name, re.DOTALL) is not None


class Described(ABC):
    """The common part of :class:`ConnectionType` and :class:`Wrapper`: the description of a connection."""

    name: ClassVar[str]
    """The value of ``data.type``."""

    usage_category: ClassVar[str] = "shell"
    """One of ``shell``, ``tunnel``, ``command`` and ``group``."""

    description: ClassVar[str]
    """One sentence that helps a person choose a type."""

    schema: ClassVar[type[Schema]]
    """The fields besides ``type``. An optional field ``shell`` chooses the session's shell."""

    example: ClassVar[Mapping[str, Any]] = {}
    """Valid data without ``type``, for the documentation."""

    via: ClassVar[str | None] = None
    """The :class:`Reference` field that names the connection this one runs over, if the type has one."""

    def prepare(self, directory: Path) -> None:  # noqa: B027 - most types keep nothing, and need not say so
        """Receive the daemon's data directory (0700), for a type that keeps files there.

        The daemon calls it once, before the first ``open``. Without it a type must work, but need not keep files.
        """

    def client_environment(self, data: Mapping[str, Any]) -> ClientEnvironment:
        """Return which variables of clients reach the programs there, in addition to the daemon's ``send-env``.

        A secret in ``data`` is an empty text.
        :raises connmgr.errors.OperationError: a file on which this depends, such as ssh_config, cannot be read or used.
        """
        return ClientEnvironment()

    def children(self, transport: Transport, data: Mapping[str, Any], *, timeout: float) -> Iterable[Child]:
        """Return the systems inside a connection, such as a host's containers; none by default.

        ``transport`` is the connection's own.
        :raises connmgr.errors.OperationError: they could not be listed within ``timeout`` seconds.
        """
        return ()


class ConnectionType(Described):
    """A kind of connection with its own transport."""

    @abstractmethod
    def open(self, data: Mapping[str, Any], via: Transport | None, *, timeout: float) -> Transport:
        """Open a link described by ``data``, over ``via`` if ``data`` names a connection to run over.

        ``data`` are the fields that the schema has loaded, with each :class:`Secret` in plain text. The caller closes
        the transport, then ``via``.
        :raises connmgr.errors.OperationError: it failed or took longer than ``timeout`` seconds; the most specific
            class that says why.
        """

    def open_for(self, asker: Asker, data: Mapping[str, Any], via: Transport | None, *, timeout: float) -> Transport:
        """Open a link as :meth:`open` does, with what ``asker`` lends; the daemon calls this.

        By default nothing is borrowed.
        """
        return self.open(data, via, timeout=timeout)

    def dialled(self, data: Mapping[str, Any]) -> Sequence[Dialled]:
        """Return the hosts that :meth:`open` would dial for ``data``, in its order, without dialling; none by default.

        A secret in ``data`` is an empty text.
        :raises connmgr.errors.OperationError: a file on which this depends, such as ssh_config, cannot be read or used.
        """
        return ()

    def signer(self, data: Mapping[str, Any]) -> str | None:
        """Return the name of the vault's signer that :meth:`open_for` needs for ``data``; None by default.

        Whoever shares a link must be allowed to open the secrets of its signer.
        """
        return None

    def trust_host_key(self, data: Mapping[str, Any], host: str, key: str) -> bool:
        """Accept ``key`` as the key of ``host`` from now on, and return True if ``data`` leads to that host.

        By default no data does. The details of :class:`connmgr.errors.HostKeyUnknown`, raised by ``open``, contain both
        as ``host`` and ``hostKey``, with the ``fingerprint``. ``data`` has no secrets.
        :raises connmgr.errors.HostKeyChanged: another key is known, or this one is revoked.
        :raises connmgr.errors.InvalidRequest: ``key`` is malformed.
        """
        return False

    def forget_host_keys(self, data: Mapping[str, Any], host: str | None) -> Sequence[ForgottenKey] | None:
        """Remove the known keys of ``host``, or without it of the host that ``data`` leads to, and return them.

        Return None if ``data`` leads to no such host, or to no host with keys, as by default. ``data`` has no secrets.
        """
        return None


class Toggled(Described):
    """A second base of connection types whose systems can be started and stopped, such as containers."""

    @abstractmethod
    def toggle(self, transport: Transport | None, data: Mapping[str, Any], state: bool, *, timeout: float) -> None:
        """Start the system that ``data`` leads to, or stop it if ``state`` is False; do nothing if it is in that state.

        ``transport`` belongs to the connection below, because a stopped system cannot be opened; None without one.
        Secrets in ``data`` are in plain text.
        :raises connmgr.errors.OperationError: it failed, or took longer than ``timeout`` seconds.
        """


class Logged(Described):
    """A base of connection types whose systems have a log of what their main program printed, such as containers."""

    @abstractmethod
    def log(self, data: Mapping[str, Any], *, follow: bool, lines: int | None) -> Sequence[str] | None:
        """Return the argv that prints the log on the connection below; None if it cannot be followed.

        With ``follow`` it prints what comes until it is killed, with ``lines`` only the last lines of what there is.
        """


class TerminalRequired(Exception):
    """Raised by :meth:`Wrapper.login` if the wrapping program needs a terminal; the engine restarts it on one."""


class Dialogue(Protocol):
    """The login conversation of a :class:`Wrapper`, on a newly opened channel."""

    prompt: bytes
    """The pattern of the random word given to :meth:`Wrapper.wrap`."""

    ready: bytes
    """The pattern that the engine prints after the login; from then on nothing may be written."""

    @property
    def printed(self) -> str:
        """The last 8 KiB since the last match, on one line, for an error's message."""

    def expect(self, patterns: Sequence[bytes], timeout: float) -> int:
        """Wait for the first of the regular expressions and return its index.

        ``ready`` is found anywhere, others only in the last 1,024 bytes, because a program stops there and waits for an
        answer. No expression may take long, whatever the remote host prints.
        :raises connmgr.errors.ElevationFailed: the program ended.
        :raises connmgr.errors.ConnectTimeout: none came within ``timeout`` seconds.
        """

    def send_secret(self, secret: str) -> None:
        """Write ``secret`` and a newline; only after a prompt, when the remote host has switched echo off."""


BECOME_ARGV = 'if [ "$1$2$4" = /bin/sh-csh ]; then _cm=$3; shift 4; eval "unset _cm; $_cm"; else exec "$@"; fi'
"""The end of a script for ``/bin/sh`` whose arguments are an argv: the shell becomes that.

It goes on by itself if the argv is a script for ``/bin/sh`` again, as most of the engine's are: another shell takes
its time to start.
"""


class Wrapper(Described):
    """A connection type that runs another connection's programs in another place or under another identity.

    The engine runs it over the transport of the connection that ``via`` names.
    """

    last_line: ClassVar[bytes] = b""
    """The beginning of a last line that the wrapping program adds to stderr, before a nonzero exit status and a
    newline.

    With :meth:`needs_login` the engine removes that line.
    """

    @abstractmethod
    def wrap(self, argv: Sequence[str], data: Mapping[str, Any], prompt: str, *, pty: bool) -> list[str]:
        """Return the argv that runs ``argv`` there; it must not contain a secret.

        ``prompt`` is a random word for programs that let the caller choose the prompt. ``pty`` says whether ``argv``
        gets a terminal, for programs that must be told (``docker exec -t``).
        """

    def needs_pty(self, data: Mapping[str, Any]) -> bool:
        """Whether the wrapping program needs a terminal."""
        return False

    def needs_login(self, data: Mapping[str, Any]) -> bool:
        """Whether the engine must call :meth:`login` after starting a wrapped program."""
        return False

    def login(self, dialogue: Dialogue, data: Mapping[str, Any]) -> None:
        """Answer the wrapping program's prompts until ``dialogue.ready`` comes.

        :raises connmgr.errors.AuthFailed: the password was refused.
        :raises TerminalRequired: it must be started on a terminal; not if :meth:`needs_pty`.
        """


@dataclass(frozen=True)
class Forward:
    """The address on which a tunnel listens, and the target of its connections."""

    host: str
    """The address to listen on: of the daemon's machine, of the remote host for a type that has ``listens_far``."""

    port: int
    """The TCP port to listen on; 0 for a free one."""

    to: tuple[str, int] | None
    """The target host and port, as named on the other side; None if each client asks for one by SOCKS."""

    auto_start: bool = False
    """Whether it is opened when the daemon starts."""


class Tunnel(Described):
    """A connection type that carries TCP connections through another connection, and runs nothing there.

    ``via`` names the other connection, and is required. The engine listens, dials, and keeps the link open.
    """

    usage_category: ClassVar[str] = "tunnel"

    folder: ClassVar[str | None] = None
    """The part of its path, if any, between the path of the connection it goes through and its own name."""

    listens_far: ClassVar[bool] = False
    """Whether it listens on the remote host, and leads to addresses that the daemon's machine reaches."""

    @abstractmethod
    def forward(self, data: Mapping[str, Any]) -> Forward:
        """Return the listening address and the target of the tunnel of ``data``, in which a secret is an empty text."""


AnyConnectionType = ConnectionType | Wrapper | Tunnel
"""What a plugin defines and ``data.type`` names."""
