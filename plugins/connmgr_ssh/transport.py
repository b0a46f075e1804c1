"""Opens links to a host, through the hops of its configuration, or through another connection."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from connmgr.errors import AuthFailed, ChannelRefused, ScopeDenied, ShellLost, TransportUnsupported
from connmgr.plugin import Asker, ByteStream, Deadline, Listener, Pty, Transport
from connmgr_ssh.accepted_keys import AcceptedKeys
from connmgr_ssh.agent import Agent, ForwardedAgent
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
        self.forwards_agent = link.agent is not None

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
                self._forward_agent(channel, deadline)
                channel.start(argv, pty=pty, deadline=deadline)
            except BaseException:
                channel.close()
                raise
        # sshd has disabled Nagle's algorithm on its side by now.
        self._link.wire.hasty = False
        return channel

    def _forward_agent(self, channel: SessionChannel, deadline: Deadline) -> None:
        if not self._link.forward_agent(channel, deadline):
            raise TransportUnsupported(
                f"{self._name} does not take the ssh-agent that the connection forwards: allow it there "
                "(AllowAgentForwarding in sshd_config, agent-forwarding in authorized_keys), or set "
                "forwardAgent=false."
            )

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


def connect(
    data: Mapping[str, Any],
    via: Transport | None,
    accepted: AcceptedKeys,
    timeout: float,
    asker: Asker,
) -> SshTransport:
    """Open a link to the host of ``data``, over ``via`` if given.

    :param data: the fields that :class:`connmgr_ssh.SshSchema` loaded, with secrets in plain text.
    :raises connmgr.errors.OperationError: of the most specific class.
    """
    deadline = Deadline(min(timeout, data["connectTimeout"]))
    destination = destination_of(data)
    forwards = bool(asker.is_own and data.get("forwardAgent"))
    forwarded = _forwarded(destination, asker) if forwards else None
    inherited = {name: data[name] for name in _OF_THE_HOST if name in data}
    hops: list[Transport] = []
    try:
        for jump in jumps(destination) if via is None else ():
            over = hops[-1] if hops else None
            hops.append(SshTransport(_connect(jump, inherited, over, accepted, deadline, asker), str(jump)))
        link = _connect(destination, data, hops[-1] if hops else via, accepted, deadline, asker)
        if forwarded is not None:
            link.agent = ForwardedAgent(forwarded, str(destination))
        return SshTransport(link, str(destination), hops)
    except BaseException:
        _close(hops)
        raise


def _forwarded(destination: Destination, asker: Asker) -> Agent:
    """Return the agent that a link forwards.

    :raises ScopeDenied: the asker may not use it.
    :raises AuthFailed: there is none.
    """
    if not asker.may_forward:
        raise ScopeDenied(
            "The connection forwards an ssh-agent (forwardAgent), and everything that runs there can sign by it: "
            "the token needs the scope ssh.agent."
        )
    agent = _agent_for(destination, asker)
    if agent is None:
        raise AuthFailed(
            f"The connection to {destination} forwards an ssh-agent (forwardAgent), and there is none: the daemon "
            "knows no socket (SSH_AUTH_SOCK, IdentityAgent), and the client lends none. Start ssh-agent and run the "
            "command again, or set forwardAgent=false.",
            **_lendable(destination, asker),
        )
    return agent


def _agent_for(destination: Destination, asker: Asker) -> Agent | None:
    """Return the agent to ask: a lent one in place of that of the daemon's environment; None if there is none."""
    if asker.agent is not None and destination.agent_is_usual:
        return Agent(asker.agent, "The ssh-agent that the client lends")
    return Agent.at(destination.agent_socket) if destination.agent_socket else None


def _lendable(destination: Destination, asker: Asker) -> dict[str, str]:
    """Return the details of an error after which the client may lend its agent."""
    if asker.agent is not None or not destination.agent_is_usual:
        return {}
    return {"agent": "asked" if destination.agent_socket else "none"}


def _close(transports: Sequence[Transport]) -> None:
    for transport in reversed(transports):
        transport.close()


def _connect(
    destination: Destination,
    data: Mapping[str, Any],
    via: Transport | None,
    accepted: AcceptedKeys,
    deadline: Deadline,
    asker: Asker,
) -> Link:
    name = str(destination)
    judge = Judge(destination, accepted, data.get("hostKey"), data.get("hostKeyChecking"))
    wire = Wire(_stream_to(destination, via, deadline), data["keepAlive"] or None)
    link = Link(wire, name, host_keys=judge.preferred_types, certified=judge.verifies_certificates)
    try:
        with mapped(name, "exchanging keys", deadline):
            link.negotiate(deadline)
        judge.check(*link.proven_key(), deadline)
        with mapped(name, "logging in", deadline):
            _log_in(link, destination, data, deadline, asker)
    except BaseException:
        link.close()
        raise
    return link


def _stream_to(destination: Destination, via: Transport | None, deadline: Deadline) -> ByteStream:
    if via is None:
        return dial(destination.host, destination.port, deadline)
    with mapped(str(destination), "connecting through the gateway", deadline):
        return via.open_tcp(destination.host, destination.port, timeout=deadline.left())


def _log_in(link: Link, destination: Destination, data: Mapping[str, Any], deadline: Deadline, asker: Asker) -> None:
    wanted = wants_agent(data)
    agent = _agent_for(destination, asker) if wanted else None
    details = _lendable(destination, asker) if wanted else {}
    login: Login | None = None
    try:
        found = gather(destination, data, deadline, agent, asker.passphrases)
        if wanted and agent is None:
            found.notes.append(
                "no ssh-agent was asked, since the daemon knows the socket of none (SSH_AUTH_SOCK, IdentityAgent) and "
                "the client lent none"
            )
        login = Login(link, destination.user, str(destination), deadline, notes=found.notes)
        details = {**details, **found.locked}
        login.run(found.identities, data.get("password"))
    except AuthFailed as error:
        # A password is sent once: hosts count failures, so nothing is lent for another attempt.
        if login is None or not login.password_sent:
            error.details = {**details, **error.details}
        raise
