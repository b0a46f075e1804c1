"""The private keys to log in with: a connection's own, the configuration's, or an agent's."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from connmgr.errors import AuthFailed
from connmgr.plugin import Deadline
from connmgr_ssh import config_file, local_file
from connmgr_ssh.agent import Agent
from connmgr_ssh.config import Destination
from connmgr_ssh.keys import Identity, certified, load
from connmgr_ssh.known_hosts import HostKey

USUAL = ("id_ed25519", "id_ecdsa", "id_rsa")
"""The files that ``ssh`` tries in ``~/.ssh`` if none is named."""

STORED = "(the connection's own key)"


@dataclass
class Gathered:
    """The identities to offer, certificates first, and notes on those that cannot be used.

    ``locked`` are the details of an error about an encrypted key that could be used with its passphrase.
    """

    identities: list[Identity]
    notes: list[str]
    locked: Mapping[str, Any] = field(default_factory=dict)


def gather(
    destination: Destination,
    data: Mapping[str, Any],
    deadline: Deadline,
    agent: Agent | None,
    passphrases: Mapping[str, str],
) -> Gathered:
    """Return the identities to offer.

    With ``identity`` in ``data`` only that one is offered. ``agent`` is None if no agent may be asked. ``passphrases``
    are lent ones, by ``key`` in the details of an error.
    :raises AuthFailed: the requested identity cannot be used.
    """
    held, notes = _held_by(agent, deadline, insist=bool(data.get("agent")))
    if data.get("identity"):
        return Gathered(_with_certificates(_asked_for(data["identity"], held, passphrases), destination), notes)
    configured = _configured(destination, data, held, passphrases)
    found = configured.identities
    if not destination.identities_only:
        found = [*held, *(identity for identity in found if identity not in held)]
    return Gathered(_with_certificates(found, destination), notes + configured.notes, configured.locked)


def offered(destination: Destination, data: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the private keys that :func:`gather` would offer besides an agent's; reads no file."""
    asked = data.get("identity")
    if asked:
        return (config_file.shown(Path(asked["file"]).expanduser()) if "file" in asked else STORED,)
    return tuple(config_file.shown(Path(name).expanduser()) for name in _named(destination, data))


def wants_agent(data: Mapping[str, Any]) -> bool:
    """Whether an ssh-agent is to be asked for keys."""
    return bool(data.get("agent", data.get("password") is None and not data.get("identity")))


def _held_by(agent: Agent | None, deadline: Deadline, *, insist: bool) -> tuple[list[Identity], list[str]]:
    if agent is None:
        return [], []
    try:
        return agent.identities(deadline), []
    except AuthFailed as error:
        if insist:
            raise
        return [], [error.message]


def _asked_for(asked: Mapping[str, Any], held: list[Identity], passphrases: Mapping[str, str]) -> list[Identity]:
    if "key" in asked:
        text = asked["key"].encode()
        # A lent passphrase must open no other connection's key.
        name = f"key {sha256(text).hexdigest()[:16]}"
        found = [load("The private key", text, passphrases.get(name) or asked.get("passphrase"), asked_as=name)]
    else:
        found = [_from_file(asked["file"], asked.get("passphrase"), held, passphrases)]
    certificate = asked.get("certificate")
    if certificate:
        path = Path(certificate).expanduser() if certificate.startswith(("/", "~/")) else None
        text = _read(path, "The certificate") if path else certificate.encode()
        return [certified(found[0], text), *found]
    return found


def _configured(
    destination: Destination, data: Mapping[str, Any], held: list[Identity], passphrases: Mapping[str, str]
) -> Gathered:
    names = _named(destination, data)
    found: list[Identity] = []
    notes: list[str] = []
    locked: Mapping[str, Any] = {}
    if not names and destination.identity_files is None and data.get("password") is None:
        notes.append(f"~/.ssh has no {', '.join(USUAL[:-1])} or {USUAL[-1]}")
    for name in names:
        try:
            found.append(_from_file(name, None, held, passphrases))
        except AuthFailed as error:
            notes.append(error.message)
            locked = locked or error.details
    return Gathered(found, notes, locked)


def _named(destination: Destination, data: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the files of private keys to offer, for a connection that names no identity."""
    if destination.identity_files is not None:
        return destination.identity_files
    if data.get("password") is not None:
        # The user wants that password; the usual keys would only use up the host's attempts.
        return ()
    usual = [str(Path.home() / ".ssh" / name) for name in USUAL]
    return tuple(name for name in usual if Path(name).exists())


def _from_file(name: str, passphrase: str | None, held: list[Identity], passphrases: Mapping[str, str]) -> Identity:
    path = Path(name).expanduser()
    shown = config_file.shown(path)
    subject = f"The private key {shown}"
    public = _public_part(path)
    by_agent = next((identity for identity in held if identity.public == public), None)
    if by_agent:
        return by_agent
    if public and path.suffix == ".pub":
        raise AuthFailed(f"{shown} is a public key, and no agent that may be asked holds its private key.")
    text = _read(path, subject, private=True)
    return load(subject, text, passphrases.get(shown) or passphrase, name=shown, asked_as=shown)


def _public_part(path: Path) -> HostKey | None:
    for candidate in (path, path.with_name(path.name + ".pub")):
        try:
            return HostKey.parse(local_file.read(candidate)[0].decode())
        except (OSError, ValueError):
            continue
    return None


def _read(path: Path, subject: str, *, private: bool = False) -> bytes:
    try:
        content, status = local_file.read(path)
    except OSError as error:
        raise AuthFailed(f"{subject} cannot be read: {error.strerror}.") from error
    # Like ssh, refuse a key of this user that others could have read.
    if private and content and status.st_uid == os.getuid() and status.st_mode & 0o077:
        raise AuthFailed(f"{subject} is not used, because other users may read it: chmod 600 it.")
    return content


def _with_certificates(found: list[Identity], destination: Destination) -> list[Identity]:
    return [*_certificates_of(found, destination), *found]


def _certificates_of(found: list[Identity], destination: Destination) -> Iterator[Identity]:
    for identity in found:
        names = [f"{identity.name}-cert.pub", *destination.certificate_files]
        for path in (Path(name).expanduser() for name in names if name.startswith(("/", "~/"))):
            if path.exists():
                try:
                    yield certified(identity, local_file.read(path)[0])
                except (AuthFailed, OSError):
                    continue
