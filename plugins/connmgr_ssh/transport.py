"""Opens links to a host, through the hops of its configuration, or through another connection.

:func:`connect` has the steps: dial, exchange keys, check the host's key, log in. Failures become connmgr's errors:

==============================  =====================
raised below                    becomes
==============================  =====================
socket.gaierror                 HostUnresolved
ConnectionRefusedError          HostRefused
TimeoutError                    ConnectTimeout
other OSError                   HostUnreachable
EOFError, other SSHException    HostRefused
IncompatiblePeer                TransportUnsupported
==============================  =====================

Logins, host keys and channels are connmgr's own (login.py, hostkeys.py, channels.py) and raise its errors.
"""

from __future__ import annotations

import logging
import random
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from paramiko import ssh_exception

from connmgr.errors import (
    AuthFailed,
    ChannelRefused,
    ConnectTimeout,
    ConnmgrError,
    HostRefused,
    HostUnreachable,
    HostUnresolved,
    OperationError,
    ShellLost,
    TransportUnsupported,
)
from connmgr.plugin import Asker, ByteStream, Channel, Deadline, Listener, Pty, Transport
from connmgr_ssh.agent import AgentClient, ForwardedAgent
from connmgr_ssh.certificates import log_in_certified
from connmgr_ssh.channels import ChannelOpenFailure, LineChannel, SessionChannel, TcpStream
from connmgr_ssh.config import Destination, destination_of, jumps, out_of_descriptors
from connmgr_ssh.forwarding import refused
from connmgr_ssh.hostkeys import HostKeyVerifier
from connmgr_ssh.keepalives import KeepAlives
from connmgr_ssh.known_hosts import AcceptedKeys
from connmgr_ssh.link import SshLink
from connmgr_ssh.login import UserAuthentication, gather, wants_agent
from connmgr_ssh.packets import Wire, packed
from connmgr_ssh.places import LoginPlaces, network_of
from connmgr_ssh.reading import SharedReader

log = logging.getLogger("connmgr_ssh")

_OF_THE_HOST = ("hostKeyChecking", "connectTimeout", "keepAlive")
"""Fields of a connection that apply to its hops too."""

_FORBIDDEN = 1
_WORDS: tuple[tuple[str, type[OperationError]], ...] = (
    ("refused", HostRefused),
    ("timed out", ConnectTimeout),
    ("not known", HostUnresolved),
    ("resol", HostUnresolved),
    ("no address", HostUnresolved),
)
"""Words of strerror or gai_strerror, which a gateway's sshd gives as the reason for not opening a stream."""

SPARE_END_SECONDS, RETRY_SECONDS = 1.0, 0.02
"""Longest wait for a session that was given up, and the pause between two attempts."""

DROPPED_ATTEMPTS, DROPPED_SECONDS = 5, 0.2
"""How often a login is tried that the host drops before it begins, and the longest pause before the second attempt;
each later one is twice as long."""

_LANGUAGE = (
    "x=1; export LC_TIME=xx_XX 2>/dev/null; "
    'test "${x:+2}$LC_TIME$0${SSH_ORIGINAL_COMMAND-.}" = "2xx_XX${SHELL##*/}." && echo "${x}posix"'
)
"""A line that prints :data:`_IS_POSIX` only in a shell of POSIX's language that sshd itself has started, and that SHELL
names: neither in fish and csh, nor behind a forced command, which may do anything with the line, nor in ksh93, which
does not set a locale that the host lacks."""

_IS_POSIX = b"1posix"
_MOST_SAID = 64 * 1024
"""Most bytes that start-up files may print before it."""


class SshTransport(Transport):
    """An open SSH connection, and those of its hops."""

    def __init__(self, link: SshLink, name: str, hops: Sequence[Transport] = ()) -> None:
        self._link = link
        self._name = name
        self._hops = hops
        self.forwards_agent = link.agent is not None
        self.fresh_until = link.fresh_until
        self._spares = _SpareSession(link)
        self._learning = threading.Lock()
        self._is_posix: bool | None = None
        """What :meth:`learn_language` has learnt."""

    @property
    def alive(self) -> bool:
        return bool(self._link.active)

    def answers(self, timeout: float) -> bool:
        return self._link.answers(timeout)

    def open_channel(self, argv: Sequence[str], *, pty: Pty | None = None, timeout: float) -> SessionChannel:
        deadline = Deadline(timeout)
        try:
            return self._open_process(argv, pty, deadline)
        except ChannelRefused:
            if not self._spares.give_up():
                raise
        # The session that was kept free is this one's now; sshd ends it when it has handled all that it has read.
        until = deadline.within(SPARE_END_SECONDS)
        while True:
            try:
                return self._open_process(argv, pty, deadline)
            except ChannelRefused:
                if until.passed:
                    raise
            time.sleep(RETRY_SECONDS)

    def _open_process(self, argv: Sequence[str], pty: Pty | None, deadline: Deadline) -> SessionChannel:
        with self._opening(deadline):
            channel = self._link.open_stream(SessionChannel, b"session", b"", deadline)
            try:
                self._forward_agent(channel, deadline)
                channel.start(argv, pty=pty, deadline=deadline)
            except BaseException:
                channel.close()
                raise
        return channel

    @contextmanager
    def _opening(self, deadline: Deadline) -> Iterator[None]:
        """Turn what prevents a session from being opened in the block into connmgr's errors."""
        self._refuse_when_lost()
        with mapped_errors(self._name, "opening a channel", deadline):
            try:
                yield
            except ChannelOpenFailure as refusal:
                # sshd allows 10 sessions on a connection (MaxSessions); helpers and terminals are sessions too.
                reason = quoted(refusal.text)
                raise ChannelRefused(
                    f"{self._name} does not open another session on this connection (sshd's MaxSessions): {reason}."
                ) from refusal
        # sshd has disabled Nagle's algorithm on its side by now.
        self._link.wire.hasty = False

    @property
    def can_learn_language(self) -> bool:
        return self._is_posix is None and self._link.agent is None

    def learn_language(self, timeout: float) -> None:
        if self._learning.acquire(blocking=False):
            try:
                if self._is_posix is None:
                    self._is_posix = self._answers_as_posix(timeout)
            finally:
                self._learning.release()

    def _answers_as_posix(self, timeout: float) -> bool | None:
        """Whether the login shell answers :data:`_LANGUAGE` as it should; None if no answer came."""
        deadline, printed = Deadline(timeout), b""
        try:
            channel = self._started(_LANGUAGE, deadline)
        except OperationError:
            # Such as a server's MaxSessions; it is asked again later.
            return None
        try:
            channel.shutdown_write()
            while not deadline.passed and len(printed) < _MOST_SAID:
                printed += channel.recv(deadline.left())[0]
        except (OSError, EOFError):
            # Start-up files may print something before it.
            return printed.split(b"\n")[-2:] == [_IS_POSIX, b""] if self.alive else None
        finally:
            channel.close()
        return False

    def open_line(self, line: str, *, timeout: float) -> Channel | None:
        # An agent is asked for before the process starts, and in the order of open_channel().
        return self._started(line, Deadline(timeout)) if self._is_posix and self._link.agent is None else None

    def _started(self, line: str, deadline: Deadline) -> LineChannel:
        """Start ``line`` in the login shell, which may be of any kind."""
        with self._opening(deadline):
            channel = self._spares.take(deadline)
            if channel is None:
                channel = self._link.open_stream(
                    LineChannel, b"session", b"", deadline, lambda opening: opening.start_when_open(line)
                )
            else:
                channel.start_now(line, deadline)
            try:
                channel.await_start(deadline)
            except BaseException:
                channel.close()
                raise
        if self._is_posix:
            self._spares.ask(deadline)
        return channel

    def _forward_agent(self, channel: SessionChannel, deadline: Deadline) -> None:
        if not self._link.forward_agent(channel, deadline):
            raise TransportUnsupported(
                f"{self._name} refuses the ssh-agent that the connection forwards: allow it there "
                "(AllowAgentForwarding in sshd_config, agent-forwarding in authorized_keys), or set "
                "forwardAgent=false."
            )

    def open_tcp(self, host: str, port: int, *, timeout: float) -> ByteStream:
        deadline = Deadline(timeout)
        self._refuse_when_lost()
        with mapped_errors(self._name, f"connecting to {host}:{port}", deadline):
            target = packed(host.encode()) + struct.pack(">I", port)
            # RFC 4254, section 7.2, wants the originator's address. That of the daemon's client says nothing there.
            origin = packed(b"127.0.0.1") + struct.pack(">I", 0)
            try:
                stream = self._link.open_stream(TcpStream, b"direct-tcpip", target + origin, deadline)
            except ChannelOpenFailure as refusal:
                raise refused_stream(refusal, f"{host}:{port}", self._name) from refusal
        return stream

    def open_unix(self, path: str, *, timeout: float) -> ByteStream:
        deadline = Deadline(timeout)
        self._refuse_when_lost()
        with mapped_errors(self._name, f"connecting to {path}", deadline):
            # OpenSSH's PROTOCOL, section 2.4: the path, and two fields that are reserved.
            target = packed(path.encode()) + packed(b"") + struct.pack(">I", 0)
            try:
                stream = self._link.open_stream(TcpStream, b"direct-streamlocal@openssh.com", target, deadline)
            except ChannelOpenFailure as refusal:
                raise refused_stream(refusal, path, self._name, "AllowStreamLocalForwarding") from refusal
        return stream

    def listen_unix(self, path: str, *, timeout: float) -> Listener:
        deadline = Deadline(timeout)
        self._refuse_when_lost()
        with mapped_errors(self._name, f"listening at {path}", deadline):
            listener = self._link.ports.listen_unix(path, deadline)
        if listener is None:
            self._refuse_when_lost()
            raise OperationError(
                f"{self._name} does not listen at {path}: something is there, the user may not make it, or sshd does "
                "not let this user forward Unix sockets (AllowStreamLocalForwarding)."
            )
        return listener

    def listen_tcp(self, host: str, port: int, *, timeout: float) -> Listener:
        deadline = Deadline(timeout)
        self._refuse_when_lost()
        with mapped_errors(self._name, f"listening on {host}:{port}", deadline):
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


class _SpareSession:
    """One session of ``link`` that is open before a line comes for it, which so saves a round trip.

    It takes one of the sessions that sshd allows (MaxSessions), and is given up for good when they are short. Safe to
    use from several threads.
    """

    def __init__(self, link: SshLink) -> None:
        self._link = link
        self._lock = threading.Lock()
        self._channel: LineChannel | None = None
        self._is_wanted = True

    def ask(self, deadline: Deadline) -> None:
        """Ask for a session, if there is none, and do not wait for it."""
        with self._lock:
            if self._channel is None and self._is_wanted:
                # A link that is lost tells so to whoever uses it next.
                with suppress(OSError, EOFError):
                    self._channel = self._link.ask_for_stream(LineChannel, b"session", b"", deadline)

    def take(self, deadline: Deadline) -> LineChannel | None:
        """Return the session once it is open; None if there is none."""
        with self._lock:
            channel, self._channel = self._channel, None
        if channel is None:
            return None
        try:
            channel.wait_open(deadline)
        except (ChannelOpenFailure, EOFError):
            self._is_wanted = False
            return None
        return None if channel.closed else channel

    def give_up(self) -> bool:
        """Close the session, and ask for no other; return whether there was one."""
        with self._lock:
            channel, self._channel = self._channel, None
            self._is_wanted = False
        if channel is not None:
            channel.close()
        return channel is not None


def connect(
    data: Mapping[str, Any],
    via: Transport | None,
    accepted: AcceptedKeys,
    timeout: float,
    asker: Asker,
    places: LoginPlaces,
    keep_alives: KeepAlives,
    reader: SharedReader,
) -> SshTransport:
    """Open a link to the host of ``data``, over ``via`` if given.

    Each login may take ``connectTimeout`` from when it has one of ``places``, and all of it ``timeout``; whoever is
    silent later is asked by ``keep_alives``.

    :param data: the fields that :class:`connmgr_ssh.SshSchema` loaded, with secrets in plain text.
    :raises connmgr.errors.OperationError: of the most specific class.
    """
    deadline = Deadline(timeout)
    destination = destination_of(data)
    forwards = bool(asker.is_own and data.get("forwardAgent"))
    # Before the login: a connection that should forward an agent is refused where there is none.
    forwarded = _forwarded(destination, asker) if forwards else None
    inherited = {name: data[name] for name in _OF_THE_HOST if name in data}
    hops: list[Transport] = []
    try:
        for jump in jumps(destination) if via is None else ():
            over = hops[-1] if hops else None
            hop = _connect(jump, inherited, over, accepted, deadline, asker, places)
            hops.append(SshTransport(hop, str(jump)))
            hop.leave_to(keep_alives, reader)
        link = _connect(destination, data, hops[-1] if hops else via, accepted, deadline, asker, places)
        link.leave_to(keep_alives, reader)
        if forwarded is not None:
            link.agent = ForwardedAgent(forwarded, str(destination))
        return SshTransport(link, str(destination), hops)
    except BaseException:
        _close(hops)
        raise


def _forwarded(destination: Destination, asker: Asker) -> AgentClient:
    """Return the agent that a link forwards.

    :raises ScopeDenied: the asker may not use it.
    :raises AuthFailed: there is none.
    """
    asker.require_forwarding()
    agent = _agent_for(destination, asker)
    if agent is None:
        raise AuthFailed(
            f"The connection to {destination} forwards an ssh-agent (forwardAgent), but no agent is available: the "
            "daemon has no agent socket (SSH_AUTH_SOCK, IdentityAgent), and the client lent no agent. Start ssh-agent "
            "and run the command again, or set forwardAgent=false.",
            **_lendable(destination, asker),
        )
    return agent


def _agent_for(destination: Destination, asker: Asker) -> AgentClient | None:
    """Return the agent to ask: the agent that a client lent, or else the agent of the daemon's environment, or None."""
    if asker.agent is not None and destination.agent_is_usual:
        return AgentClient(asker.agent, "The ssh-agent that the client lends", asker.touch)
    return AgentClient.at(destination.agent_socket, asker.touch) if destination.agent_socket else None


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
    whole: Deadline,
    asker: Asker,
    places: LoginPlaces,
) -> SshLink:
    addresses = (
        [] if via is not None else _addresses(destination.host, destination.port, whole.within(data["connectTimeout"]))
    )
    first = addresses[0][-1][0] if addresses else destination.host
    way = network_of(first) if addresses else id(via)
    with places.taken((way, first, destination.port), way, whole):
        return _logged_in(destination, data, via, accepted, whole.within(data["connectTimeout"]), asker, addresses)


def _logged_in(
    destination: Destination,
    data: Mapping[str, Any],
    via: Transport | None,
    accepted: AcceptedKeys,
    deadline: Deadline,
    asker: Asker,
    addresses: Sequence[Any],
) -> SshLink:
    name = str(destination)
    verifier = HostKeyVerifier(destination, accepted, data.get("hostKey"), data.get("hostKeyChecking"))

    def unused() -> SshLink:
        wire = Wire(_stream_to(destination, via, addresses, deadline), data["keepAlive"] or None)
        return SshLink(wire, name, host_keys=verifier.preferred_types, certified=verifier.verifies_certificates)

    link = _negotiated(name, unused, deadline)
    try:
        verifier.check(*link.proven_key(), deadline)
        with mapped_errors(name, "logging in", deadline):
            _log_in(link, destination, data, deadline, asker)
    except BaseException:
        link.close()
        raise
    return link


def _negotiated(name: str, unused: Callable[[], SshLink], deadline: Deadline) -> SshLink:
    """Return a link that has exchanged keys; if the host drops it before it has said anything, another one.

    sshd drops connections at random where too many have not logged in yet (``MaxStartups``). That says nothing about
    this login, and the host has been sent a version at most: no name of a user, and no credential.
    """
    attempt, pause = 1, DROPPED_SECONDS
    while True:
        link = unused()
        try:
            with mapped_errors(name, "exchanging keys", deadline):
                link.negotiate(deadline)
        except HostRefused as error:
            link.close()
            if not link.was_dropped:
                raise
            # Random, so that those who were dropped together do not come back together.
            wait = pause * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
            if attempt == DROPPED_ATTEMPTS or wait >= deadline.left():
                raise HostRefused(f"{error.message} That happened {attempt} times in a row.") from error
            log.info("%s dropped a login before it began; attempt %d follows in %.1f s", name, attempt + 1, wait)
        except BaseException:
            link.close()
            raise
        else:
            return link
        time.sleep(wait)
        attempt, pause = attempt + 1, 2 * pause


def _stream_to(
    destination: Destination, via: Transport | None, addresses: Sequence[Any], deadline: Deadline
) -> ByteStream:
    if via is None:
        return _dial(f"{destination.host}:{destination.port}", addresses, deadline)
    with mapped_errors(str(destination), "connecting through the gateway", deadline):
        return via.open_tcp(destination.host, destination.port, timeout=deadline.left())


def _log_in(link: SshLink, destination: Destination, data: Mapping[str, Any], deadline: Deadline, asker: Asker) -> None:
    on_demand = (data.get("identity") or {}).get("certificate")
    if isinstance(on_demand, Mapping):
        log_in_certified(UserAuthentication(link, destination.user, str(destination), deadline), on_demand, data, asker)
        return
    asks_agent = wants_agent(data)
    agent = _agent_for(destination, asker) if asks_agent else None
    details = _lendable(destination, asker) if asks_agent else {}
    login: UserAuthentication | None = None
    try:
        offers = gather(destination, data, deadline, agent, asker.passphrases)
        if asks_agent and agent is None:
            offers.notes.append(
                "no ssh-agent was used: the daemon has no agent socket (SSH_AUTH_SOCK, IdentityAgent), and the client "
                "lent no agent"
            )
        login = UserAuthentication(link, destination.user, str(destination), deadline, notes=offers.notes)
        details = {**details, **offers.locked}
        login.run(offers.identities, data.get("password"))
    except AuthFailed as error:
        # A password is sent once: hosts count failures, so nothing is lent for another attempt.
        if login is None or not login.password_sent:
            error.details = {**details, **error.details}
        raise


def _dial(where: str, addresses: Sequence[Any], deadline: Deadline) -> socket.socket:
    """Connect to the first of ``addresses`` that answers, without Nagle's algorithm.

    :raises HostRefused: nothing listens there.
    :raises ConnectTimeout: no answer came in time.
    :raises HostUnreachable: no route leads there.
    """
    failures: list[OSError] = []
    for index, (family, kind, protocol, _, address) in enumerate(addresses):
        try:
            connection = socket.socket(family, kind, protocol)
        except OSError as error:
            failures.append(error)
            continue
        try:
            # Each address gets a share of the time, so that an address that drops packets leaves time for the next.
            connection.settimeout(max(0.001, deadline.left() / (len(addresses) - index)))
            connection.connect(address)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            connection.close()
            failures.append(error)
        else:
            return connection
    raise connect_error(where, failures, deadline) from failures[-1]


def connect_error(where: str, failures: Sequence[OSError], deadline: Deadline) -> OperationError:
    """Return the most informative error of the failed addresses of ``where``."""
    if any(isinstance(failure, ConnectionError) for failure in failures):
        return HostRefused(f"{where} refused the connection: nothing listens there, or a firewall rejects it.")
    if any(isinstance(failure, TimeoutError) for failure in failures):
        return expired(deadline, where, "connecting")
    reason = out_of_descriptors(failures[-1]) or failures[-1].strerror or str(failures[-1])
    return HostUnreachable(f"{where} cannot be reached: {reason}.")


def _addresses(host: str, port: int, deadline: Deadline) -> list[Any]:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        return _look_up(host, port, deadline)
    except UnicodeError as error:
        raise HostUnresolved(f"{host} is not a valid host name.") from error


_WHOLE_ADDRESS = re.compile(r"[@/]|^[^:]+:[0-9]+$")
"""What a host's name has where somebody wrote ``USER@HOST``, ``HOST:PORT`` or ``ssh://HOST``."""


def _look_up(host: str, port: int, deadline: Deadline) -> list[Any]:
    """Call the resolver, which has no deadline, in a thread that ends when the resolver gives up."""
    addresses: list[Any] = []
    failed: list[Exception] = []

    def ask() -> None:
        try:
            addresses.extend(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            failed.append(error)

    resolver = threading.Thread(target=ask, name=f"resolve {host}", daemon=True)
    resolver.start()
    resolver.join(deadline.left())
    if failed:
        reason = failed[0].strerror if isinstance(failed[0], OSError) else "it is not a valid name"
        whole = " Its user and port are fields of their own." if _WHOLE_ADDRESS.search(host) else ""
        raise HostUnresolved(f"{host} has no address: {reason}.{whole}") from failed[0]
    if not addresses:
        raise ConnectTimeout(f"The address of {host} was not found within {deadline.seconds:g} seconds.")
    return addresses


def expired(deadline: Deadline, subject: str, doing: str) -> ConnectTimeout:
    """Return the error for a ``subject`` that did not answer by ``deadline``, while ``doing`` something."""
    return ConnectTimeout(f"{subject} did not answer within {deadline.seconds:g} seconds, while {doing}.")


@contextmanager
def mapped_errors(subject: str, doing: str, deadline: Deadline) -> Iterator[None]:
    """Turn every failure of SSH within the block into an :class:`OperationError`.

    :param subject: the host, as the error names it.
    :param doing: what the block does, as "exchanging keys".
    """
    try:
        yield
    except ConnmgrError:
        raise
    except TimeoutError as error:
        raise expired(deadline, subject, doing) from error
    except (OSError, EOFError, ssh_exception.SSHException) as error:
        raise operation_error(error, subject, doing) from error


def operation_error(error: Exception, subject: str, doing: str) -> OperationError:
    """Return connmgr's error for ``error``."""
    for kind, becomes, text in _TABLE:
        if isinstance(error, kind):
            return becomes(text.format(subject=subject, doing=doing, error=_reason(error)))
    raise error


def _reason(error: Exception) -> str:
    return quoted(getattr(error, "strerror", None) or str(error) or type(error).__name__)


def quoted(text: str) -> str:
    """Return a text of a peer or of the system, made fit for a message."""
    return "".join(character if character.isprintable() else " " for character in text)[:200].strip(" .")


_TABLE: tuple[tuple[type[Exception], type[OperationError], str], ...] = (
    (socket.gaierror, HostUnresolved, "{subject} has no address: {error}."),
    (ConnectionRefusedError, HostRefused, "{subject} refused the connection."),
    (
        ConnectionResetError,
        HostRefused,
        "{subject} reset the connection while {doing}: it may be overloaded (MaxStartups), or not admit this client.",
    ),
    (OSError, HostUnreachable, "The connection to {subject} broke while {doing}: {error}."),
    (
        EOFError,
        HostRefused,
        "{subject} closed the connection while {doing}: it may be overloaded (MaxStartups), or not admit this client.",
    ),
    (
        ssh_exception.IncompatiblePeer,
        TransportUnsupported,
        "{subject} and connmgr have no algorithm in common, or no version of the protocol: {error}.",
    ),
    (ssh_exception.SSHException, HostRefused, "{subject} broke the SSH protocol while {doing}: {error}."),
)
"""From the specific to the general: the first match decides."""


def refused_stream(
    refusal: ChannelOpenFailure, subject: str, gateway: str, option: str = "AllowTcpForwarding"
) -> OperationError:
    """Return why ``gateway`` did not open a stream to ``subject``; ``option`` of its sshd forbids such streams."""
    if refusal.reason == _FORBIDDEN:
        return TransportUnsupported(
            f"{gateway} does not allow forwarding to {subject}: see {option} in its sshd_config."
        )
    words = refusal.text.lower()
    kind = next((kind for word, kind in _WORDS if word in words), HostUnreachable)
    return kind(f"{gateway} could not connect to {subject}: {quoted(refusal.text) or 'no reason given'}.")
