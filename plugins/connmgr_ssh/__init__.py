"""The connection type ``ssh``: machines reached over SSH, directly, through ProxyJump or another connection.

Each step of opening a link has its module: ``config`` resolves the host as ``ssh`` would, ``transport`` connects,
``packets`` encrypts messages, ``link`` exchanges keys, ``hostkeys`` checks the host's key, ``login`` logs in with
``keys`` or an ``agent``, or with a key that one of the ``signers`` or ``signing_servers`` certifies for this login
(``certificates``);
``channels`` carry processes and TCP streams. ``sending`` keeps the order of messages;
``forwarding`` has the ports of the remote host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from connmgr.errors import AuthFailed, InvalidRequest
from connmgr.plugin import (
    Asker,
    Boolean,
    ClientEnvironment,
    ConnectionType,
    Deadline,
    Dialled,
    ForgottenKey,
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
    SshSigner,
    Text,
    Transport,
    ValidationError,
    hookimpl,
    validates_schema,
)
from connmgr_ssh.config import DEFAULT_PORT, CurrentFiles, destination_of, jumps
from connmgr_ssh.hostkeys import ACCEPT_NEW, STRICT, HostKeyVerifier, Pin
from connmgr_ssh.keepalives import KeepAlives
from connmgr_ssh.known_hosts import AcceptedKeys, HostKey, means_itself
from connmgr_ssh.places import LoginPlaces
from connmgr_ssh.reading import SharedReader
from connmgr_ssh.signers import OwnAuthority, SigningCommand
from connmgr_ssh.signing_servers import StepCa, VaultSecretsEngine

FILE_SECONDS = 10.0
"""Longest time to wait for another thread that writes known_hosts files."""


def _single_word(value: str) -> None:
    if value.startswith("-") or not value.isprintable() or any(character.isspace() for character in value):
        raise ValidationError("Must be one printable word that does not begin with a dash.")


def _host(value: str) -> None:
    _single_word(value)
    # With brackets and a port it would name another host in known_hosts files.
    if not means_itself(value) or "[" in value or "]" in value:
        raise ValidationError("Must be a name or an address: without * ? , [ ], and without ! # @ | at its start.")


def _absolute_file(value: str) -> None:
    if not value.startswith(("/", "~/")):
        raise ValidationError("Must be an absolute path of the daemon's machine, or begin with ~/.")


def _host_key(value: str) -> None:
    try:
        Pin.parse(value)
    except ValueError as error:
        raise ValidationError(str(error)) from None


def _pattern_of_names(value: str) -> None:
    if not re.fullmatch(r"-?[A-Za-z0-9_*?]+", value):
        raise ValidationError("Must be the name of a variable, with * and ? for any characters.")


def _assignment(value: str) -> None:
    if not re.match(r"[A-Za-z_][A-Za-z0-9_]*=", value):
        raise ValidationError("Must be of the form NAME=VALUE.")


class OnDemandSchema(Schema):
    """A certificate on demand: who signs it, and what it asks for within the signer's limits."""

    signer = Text(
        required=True,
        validate=Length(1, 64),
        metadata={"description": "The name of a signer (`connmgr ca ls`), which signs a fresh key for each login."},
    )
    principals = List(
        Text(validate=[Length(1, 255), _single_word]),
        validate=Length(1, 64),
        metadata={"description": "The names that it certifies; by default as the signer's limit says, or the user."},
    )
    seconds = Number(
        validate=Range(30, 86_400),
        metadata={"description": "How long it may be used to log in; by default as long as the signer's limit says."},
    )


class _Certificate(Nested):
    """A certificate's text or file, or an object that says who signs one."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, partial: Any = None, **kwargs: Any) -> Any:
        if isinstance(value, str):
            return Text(validate=Length(1, 65536)).deserialize(value)
        return super()._deserialize(value, attr, data, partial, **kwargs)


class IdentitySchema(Schema):
    """A private key: a file on the daemon's machine, the key's own text, or one that is made for each login."""

    file = Text(
        validate=_absolute_file,
        metadata={"description": "The private key's file, or a .pub file whose private key an agent holds."},
    )
    key = Secret(metadata={"description": "The private key itself, in OpenSSH's or PEM format."})
    passphrase = Secret(metadata={"description": "What the private key is encrypted with."})
    certificate = _Certificate(
        OnDemandSchema,
        metadata={
            "type": ["string", "object"],
            "description": "The key's certificate: its text or file, the file's name with -cert.pub by default. An "
            "object stands for a certificate on demand, of a key that is made for each login.",
        },
    )

    @validates_schema
    def _names_one_key(self, data: Mapping[str, Any], **_: Any) -> None:
        on_demand = isinstance(data.get("certificate"), Mapping)
        if ["file" in data, "key" in data, on_demand].count(True) != 1:
            raise ValidationError("Exactly one of file, key, and a certificate with a signer is needed.")
        if on_demand and "passphrase" in data:
            raise ValidationError("A certificate on demand has no passphrase.")


class SshSchema(Schema):
    """The fields of an SSH connection; ``~/.ssh/config`` provides the values of missing ones."""

    host = Text(
        required=True,
        validate=[Length(1, 255), _host],
        metadata={"description": "A name, an address or an alias of ~/.ssh/config."},
    )
    port = Integer(
        load_default=DEFAULT_PORT,
        validate=Range(1, 65535),
        metadata={"description": "The TCP port; 22 gives way to a port that ~/.ssh/config names."},
    )
    user = Text(
        validate=[Length(1, 255), _single_word],
        metadata={"description": "Who to log in as; the name in ~/.ssh/config, or else the daemon's own user."},
    )
    password = Secret(metadata={"description": "Answers password and keyboard-interactive authentication."})
    identity = Nested(IdentitySchema, metadata={"description": "The only key to offer."})
    agent = Boolean(
        metadata={
            "description": "Whether the daemon's ssh-agent may sign, with an identity for that key alone; "
            "by default only where neither password nor identity is given."
        }
    )
    forwardAgent = Boolean(
        metadata={
            "description": "Whether programs on the host may use an ssh-agent of this side: the daemon's, or the one "
            "that a client lends for the login. Tokens then need the scope ssh.agent.  [default: false]"
        }
    )
    gateway = Reference(metadata={"description": "The connection to go through."})
    hostKeyChecking = Text(
        validate=OneOf([STRICT, ACCEPT_NEW]),
        metadata={
            "description": "Whether the key of a host seen for the first time is refused, or accepted and kept; "
            "by default as StrictHostKeyChecking of ~/.ssh/config says, refused where that says nothing."
        },
    )
    hostKey = Text(
        validate=[Length(1, 16384), _host_key],
        metadata={"description": "The only host key to accept: its known_hosts form (type and base64) or SHA256:…"},
    )
    connectTimeout = Number(
        load_default=20.0,
        validate=Range(0.1, 600),
        metadata={"description": "Seconds until the link must be open, authentication included."},
    )
    keepAlive = Number(
        load_default=10.0,
        validate=Range(0, 3600),
        metadata={"description": "Seconds of silence before a probe; after three times that the host is gone. 0: off."},
    )
    sendEnv = List(
        Text(validate=_pattern_of_names),
        metadata={
            "description": "Names of variables that clients send from their environment, with * and ?, in addition to "
            "the daemon's send-env and SendEnv of ~/.ssh/config; -PATTERN removes earlier ones."
        },
    )
    setEnv = List(
        Text(validate=_assignment),
        metadata={
            "description": "Variables of all that runs there, as NAME=VALUE, in addition to SetEnv of ~/.ssh/config."
        },
    )
    shell = Text(
        allow_none=True,
        metadata={"description": "The session's shell, a path or a name; the user's login shell otherwise."},
    )


class Ssh(ConnectionType):
    """A machine reached over SSH."""

    name = "ssh"
    description = "A machine reached over SSH, directly or through another connection."
    schema = SshSchema
    example: ClassVar[Mapping[str, Any]] = {
        "host": "build.example.com",
        "user": "deploy",
        "identity": {"file": "~/.ssh/id_ed25519"},
    }
    via = "gateway"

    def __init__(self) -> None:
        self._accepted = AcceptedKeys(None)
        self._places = LoginPlaces()
        self._keep_alives = KeepAlives()
        self._reader = SharedReader()
        # Used by requests about thousands of connections. A login reads the files itself.
        self._files = CurrentFiles()

    def prepare(self, directory: Path) -> None:
        self._accepted = AcceptedKeys(directory / "known_hosts")

    def open(self, data: Mapping[str, Any], via: Transport | None, *, timeout: float) -> Transport:
        return self.open_for(Asker(), data, via, timeout=timeout)

    def open_for(self, asker: Asker, data: Mapping[str, Any], via: Transport | None, *, timeout: float) -> Transport:
        # Importing paramiko takes longer than all the rest of this module.
        from connmgr_ssh.transport import connect

        try:
            return connect(data, via, self._accepted, timeout, asker, self._places, self._keep_alives, self._reader)
        except AuthFailed as error:
            # The data may name any file of the daemon's machine. The whole message would tell a token which files are
            # there, who may read them, and whether they are keys.
            error.for_tokens = (
                f"{data['host']} refused the login, or the daemon has no usable identity for it: ask the daemon's "
                "owner, who sees the reason."
            )
            raise

    def dialled(self, data: Mapping[str, Any]) -> Sequence[Dialled]:
        # They import cryptography.
        from connmgr_ssh.login import offered, wants_agent

        own = destination_of(data, self._files)
        before = [] if data.get(self.via) else jumps(own, files=self._files)
        hosts = [*((jump, {}) for jump in before), (own, data)]
        return [
            Dialled(
                host.host,
                host.port,
                host.user,
                offered(host, fields),
                bool(wants_agent(fields) and host.agent_socket),
            )
            for host, fields in hosts
        ]

    def client_environment(self, data: Mapping[str, Any]) -> ClientEnvironment:
        destination = destination_of(data, self._files)
        # OpenSSH takes the first value that it finds of a variable; the connection is asked before the files.
        assigned = [*reversed(destination.set_env), *data.get("setEnv", ())]
        values = {name: value for name, _, value in (assignment.partition("=") for assignment in assigned)}
        return ClientEnvironment((*destination.send_env, *data.get("sendEnv", ())), values)

    def signer(self, data: Mapping[str, Any]) -> str | None:
        # Data of a request may be anything yet.
        identity = data.get("identity")
        certificate = identity.get("certificate") if isinstance(identity, Mapping) else None
        return str(certificate.get("signer")) if isinstance(certificate, Mapping) else None

    def trust_host_key(self, data: Mapping[str, Any], host: str, key: str) -> bool:
        verifier = self._verifier(data, host)
        if verifier is None:
            return False
        try:
            shown = HostKey.parse(key)
        except ValueError as error:
            raise InvalidRequest(f"hostKey: {error}") from None
        verifier.check(shown.blob, None, Deadline(FILE_SECONDS))
        return True

    def forget_host_keys(self, data: Mapping[str, Any], host: str | None) -> Sequence[ForgottenKey] | None:
        verifier = self._verifier(data, host)
        return None if verifier is None else verifier.forget(Deadline(FILE_SECONDS))

    def _verifier(self, data: Mapping[str, Any], host: str | None) -> HostKeyVerifier | None:
        """Return the verifier of the keys of ``host``, by default the host of ``data``; None if no hop has the name."""
        destination = destination_of(data)
        pin = data.get("hostKey")
        verifiers = [HostKeyVerifier(destination, self._accepted, pin, ACCEPT_NEW)]
        if not data.get(self.via):
            verifiers += [HostKeyVerifier(jump, self._accepted, None, ACCEPT_NEW) for jump in jumps(destination)]
        return next((verifier for verifier in verifiers if host in (None, verifier.name)), None)


@hookimpl
def connmgr_connection_types() -> Sequence[ConnectionType]:
    return [Ssh()]


@hookimpl
def connmgr_ssh_signers() -> Sequence[SshSigner]:
    return [OwnAuthority(), SigningCommand(), VaultSecretsEngine(), StepCa()]
