"""Opens links to a host, through the hops of its configuration, or through another connection."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from connmgr.errors import ChannelRefused, ShellLost
from connmgr.plugin import ByteStream, Deadline, Listener, Pty, Transport
from connmgr_ssh.accepted_keys import AcceptedKeys
from connmgr_ssh.agent import Agent
from connmgr_ssh.authentication import Login
from connmgr_ssh.channel import SessionChannel
from connmgr_ssh.config import Destination
from connmgr_ssh.dial import dial
from connmgr_ssh.faults import mapped, quoted, refused_stream
from connmgr_ssh.forwarded import refused
from connmgr_ssh.hostkeys import Judge
from connmgr_ssh.identities import gather, wants_agent
from connmgr_ssh.link import Link
from connmgr_ssh.stream import Refused, packed
from connmgr_ssh.tcp import TcpStream
from connmgr_ssh.way import destination_of, jumps
from connmgr_ssh.wire import Wire

_OF_THE_HOST = ("hostKeyChecking", "connectTimeout", "keepAlive")
"""Fields of a connection that apply to its hops too."""


class SshTransport(Transport):
    """An open SSH connection, and those of its hops."""

    def __init__(self, link: Link, name: str, hops: Sequence[Transport] = ()) -> None:
        self._link = link
        self._name = name
        self._hops = hops

    @property
    def alive(self) -> bool:
        return bool(self._link.active)

    def answers(self, timeout: float) -> bool:
        return self._link.answers(timeout)

    def open_channel(self, argv: Sequence[str], *, pty: Pty | None = None, timeout: float) -> SessionChannel:
        deadline = Deadline(timeout)
        self._refuse_when_lost()
        with mapped(self._name, "opening a channel", deadline):
            try:
                channel = self._link.open_stream(SessionChannel, b"session", b"", deadline)
            except Refused as refusal:
                said = quoted(refusal.text)
                raise ChannelRefused(
                    f"{self._name} opens no further session on this connection (sshd's MaxSessions): {said}."
                ) from refusal
            try:
                channel.start(argv, pty=pty, deadline=deadline)
            except BaseException:
                channel.close()
                raise
        # sshd has disabled Nagle's algorithm on its side by now.
        self._link.wire.hasty = False
        return channel

    def open_tcp(self, host: str, port: int, *, timeout: float) -> ByteStream:
        deadline = Deadline(timeout)
        self._refuse_when_lost()
        with mapped(self._name, f"connecting to {host}:{port}", deadline):
            target = packed(host.encode()) + struct.pack(">I", port)
            origin = packed(b"127.0.0.1") + struct.pack(">I", 0)
            try:
                stream = self._link.open_stream(TcpStream, b"direct-tcpip", target + origin, deadline)
            except Refused as refusal:
                raise refused_stream(refusal, f"{host}:{port}", self._name) from refusal
        return stream

    def listen_tcp(self, host: str, port: int, *, timeout: float) -> Listener:
        deadline = Deadline(timeout)
        self._refuse_when_lost()
        with mapped(self._name, f"listening on {host}:{port}", deadline):
            listener = self._link.ports.listen(host, port, deadline)
        if listener is None:
            self._refuse_when_lost()
            raise refused(host, port, self._name)
        return listener

    def _refuse_when_lost(self) -> None:
        if not self.alive:
            raise ShellLost(f"The SSH connection to {self._name} is gone.")

    def close(self) -> None:
        self._link.close()
        for hop in reversed(self._hops):
            hop.close()


def connect(data: Mapping[str, Any], via: Transport | None, accepted: AcceptedKeys, timeout: float) -> SshTransport:
    """Open a link to the host of ``data``, over ``via`` if given.

    :param data: the fields that :class:`connmgr_ssh.SshSchema` loaded, with secrets in plain text.
    :raises connmgr.errors.OperationError: of the most specific class.
    """
    deadline = Deadline(min(timeout, data["connectTimeout"]))
    destination = destination_of(data)
    inherited = {name: data[name] for name in _OF_THE_HOST if name in data}
    hops: list[Transport] = []
    try:
        for jump in jumps(destination) if via is None else ():
            hops.append(_connect(jump, inherited, hops[-1] if hops else None, accepted, deadline, ()))
        return _connect(destination, data, hops[-1] if hops else via, accepted, deadline, hops)
    except BaseException:
        _close(hops)
        raise


def _close(transports: Sequence[Transport]) -> None:
    for transport in reversed(transports):
        transport.close()


def _connect(
    destination: Destination,
    data: Mapping[str, Any],
    via: Transport | None,
    accepted: AcceptedKeys,
    deadline: Deadline,
    hops: Sequence[Transport],
) -> SshTransport:
    name = str(destination)
    judge = Judge(destination, accepted, data.get("hostKey"), data.get("hostKeyChecking"))
    wire = Wire(_stream_to(destination, via, deadline), data["keepAlive"] or None)
    link = Link(wire, name, host_keys=judge.preferred_types, certified=judge.verifies_certificates)
    try:
        with mapped(name, "exchanging keys", deadline):
            link.negotiate(deadline)
        judge.check(*link.proven_key(), deadline)
        with mapped(name, "logging in", deadline):
            _log_in(link, destination, data, deadline)
    except BaseException:
        link.close()
        raise
    return SshTransport(link, name, hops)


def _stream_to(destination: Destination, via: Transport | None, deadline: Deadline) -> ByteStream:
    if via is None:
        return dial(destination.host, destination.port, deadline)
    with mapped(str(destination), "connecting through the gateway", deadline):
        return via.open_tcp(destination.host, destination.port, timeout=deadline.left())


def _log_in(link: Link, destination: Destination, data: Mapping[str, Any], deadline: Deadline) -> None:
    password = data.get("password")
    wanted = wants_agent(data)
    agent = Agent(destination.agent_socket) if wanted and destination.agent_socket else None
    identities, notes = gather(destination, data, deadline, agent)
    if wanted and agent is None:
        notes.append("no ssh-agent was asked, since the daemon knows the socket of none (SSH_AUTH_SOCK, IdentityAgent)")
    login = Login(link, destination.user, deadline, notes=notes)
    login.run(identities, password)
