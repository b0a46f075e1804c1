"""The routes of tunnels: a leased link, the streams that are opened over it, and ports of a remote host."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from connmgr.engine.script import Source, script_argv
from connmgr.errors import HostRefused, ShellLost, TransportUnsupported
from connmgr.links.channels import PROBE_SECONDS, lease_live_link
from connmgr.links.link import Lease
from connmgr.links.table import LinkTable
from connmgr.plugin import LEAST_SECONDS, ByteStream, Channel, Deadline, Forward, Listener, Transport
from connmgr.secrets.principals import Access
from connmgr.streams.listener import MAX_GREETING_BYTES, Greeting
from connmgr.streams.loop import Loop

DIAL_SECONDS = 10.0
"""Longest time for the remote host to open a stream."""

GREETING_SECONDS = 10.0
"""Longest time for a SOCKS client of a remote port to say where it leads."""

READ_SECONDS = 1.0
PROGRAMS = ("python3", "bash", "socat", "nc")
"""Programs that can relay, the best first: they pass on more about the end of a stream."""

_HOST = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9._:%-]{0,254}")
"""Names and addresses that no program takes for an option, or for a host with further fields, as socat would."""

_FIND = Source("connmgr.tunnels", "find_relay")
_RELAY = Source("connmgr.tunnels", "relay")


ACCEPT_SECONDS = 1.0
"""Longest single wait for a connection, before waiting again."""

Take = Callable[[socket.socket | None, ByteStream, str], object]


class Route(NamedTuple):
    """A leased link, or None if no link is needed, because the tunnel leads to its own machine.

    If the link carries no streams, ``relay`` starts programs for them. ``listener`` is the tunnel's port on the
    remote host, if it has one, and ``address`` that port's address.
    """

    lease: Lease | None
    relay: Relay | None = None
    listener: Listener | None = None
    address: tuple[str, int] | None = None

    @property
    def intact(self) -> bool:
        """Whether its link works, as far as known without asking the remote host."""
        return self.lease is None or self.lease.link.alive

    def dial(self, host: str, port: int) -> ByteStream | Channel:
        """Open a stream from the remote host to ``host:port``.

        :raises ShellLost: the link is lost, or gives no sign of life.
        :raises connmgr.errors.OperationError: the stream could not be opened.
        """
        if self.lease is None:
            raise ShellLost("The tunnel has no link.")
        deadline = Deadline(DIAL_SECONDS)
        # A silent link would take the whole time of the dial. A lost one has to be noticed first, so that the tunnel
        # opens another link for the client that waits.
        first = self.lease.link.first
        if not first.answers(deadline.within(PROBE_SECONDS).left()):
            raise ShellLost("The remote host does not respond.")
        transport = self.lease.link.transport
        if self.relay is not None:
            return self.relay.dial(transport, host, port, deadline.left(LEAST_SECONDS))
        return transport.open_tcp(host, port, timeout=deadline.left(LEAST_SECONDS))

    def retire(self) -> None:
        """Refuse further leases of the link."""
        if self.lease is not None:
            self.lease.link.retire()

    def close(self) -> None:
        """Stop listening, and release the link."""
        with ExitStack() as ending:
            if self.lease is not None:
                ending.callback(self.lease.release)
            if self.listener is not None:
                self.listener.close()


def open_route(
    links: LinkTable, connection: str, forward: Forward, access: Access, timeout: float, *, listens_far: bool
) -> Route:
    """Open the route through ``connection`` within ``timeout`` seconds.

    :raises connmgr.errors.TransportUnsupported: the link carries no streams, and the host has no program for them.
    :raises connmgr.errors.ConnmgrError: the errors of leasing a link.
    """
    deadline = Deadline(timeout)
    lease = lease_live_link(links, connection, access, deadline)
    with ExitStack() as cleanup:
        cleanup.callback(lease.release)
        transport = lease.link.transport
        route = Route(lease)
        if listens_far:
            listener = transport.listen_tcp(forward.host, forward.port, timeout=deadline.left(1.0))
            route = Route(lease, None, listener, (forward.host, listener.port))
        elif not transport.carries_streams:
            route = Route(lease, find_relay(transport, deadline.left(1.0)))
        cleanup.pop_all()
        return route


@dataclass(frozen=True)
class Relay:
    """A program of the remote host that joins its standard streams with a TCP connection."""

    program: str

    def dial(self, transport: Transport, host: str, port: int, timeout: float) -> Channel:
        """Start it for a connection to ``host:port``; the channel's exit status tells whether that failed.

        :raises HostRefused: ``host`` is not a name or an address.
        """
        if not _HOST.fullmatch(host):
            raise HostRefused(f"{host!r} is not the name or address of a host.")
        # The script is in the argv, so the standard streams carry nothing but the connection's bytes.
        argv = script_argv(_RELAY.text, [self.program, host, str(port)], own_locale=True)
        channel = transport.open_channel(argv, timeout=timeout)
        channel.expect_bulk()
        return channel


def find_relay(transport: Transport, timeout: float) -> Relay:
    """Return the first of :data:`PROGRAMS` that the remote host has.

    :raises TransportUnsupported: it has none of them.
    :raises connmgr.errors.OperationError: no channel could be opened to look for them.
    """
    deadline = Deadline(timeout)
    channel = transport.open_channel(script_argv(_FIND.text, PROGRAMS, own_locale=True), timeout=timeout)
    output = b""
    try:
        while not deadline.passed:
            output += channel.recv(min(READ_SECONDS, deadline.left()))[0]
    except EOFError:
        pass
    finally:
        channel.close()
    # Start-up files may have printed something before. "relay" as the last word is a line that was cut off.
    lines = output.decode(errors="replace").split()
    if "relay" not in lines[:-1]:
        raise TransportUnsupported(
            "The connection cannot carry TCP streams itself, and its machine has no program that can: install one of "
            f"{', '.join(PROGRAMS)} there."
        )
    return Relay(lines[lines.index("relay") + 1])


class RemotePort:
    """Accepts connections of ``listener`` in its own thread, until the listener is closed or its link is lost.

    For each stream ``take`` is called in the thread of the loop: with a connection to ``to``, or to what the stream
    asks for by SOCKS; or with None and the error.
    """

    def __init__(self, loop: Loop, listener: Listener, to: tuple[str, int] | None, take: Take) -> None:
        self._loop, self._listener, self._to, self._take = loop, listener, to, take
        threading.Thread(target=self._accept, name="tunnel port", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                stream = self._listener.accept(ACCEPT_SECONDS)
            except TimeoutError:
                continue
            except (OSError, EOFError):
                return
            # Another client must not wait until this one's connection is made, which a host that drops packets makes
            # long.
            self._loop.work(partial(self._dial, stream))

    def _dial(self, stream: ByteStream) -> None:
        """Open the connection on this side, in a thread that may wait."""
        connected, fault = None, ""
        try:
            to = self._to
            connected = _connected_for(stream) if to is None else socket.create_connection(to, DIAL_SECONDS)
        except (OSError, EOFError, ValueError) as error:
            # ValueError: the host cannot be a name, or the greeting is not one of SOCKS.
            fault = getattr(error, "strerror", None) or str(error)
        self._loop.call(partial(self._take, connected, stream, fault))


def _connected_for(stream: ByteStream) -> socket.socket:
    """Return the connection that the client behind ``stream`` asks for by SOCKS, and tell it so.

    :raises OSError: there is no such connection, or the client has left or asks for none in time.
    :raises ValueError: what it says is not SOCKS.
    """
    greeting, deadline, target = Greeting(grants=False), Deadline(GREETING_SECONDS), None
    while target is None:
        if deadline.passed:
            raise TimeoutError("The greeting of a SOCKS client did not come.")
        stream.settimeout(deadline.left(LEAST_SECONDS))
        target = greeting.take(stream.recv(MAX_GREETING_BYTES))
        if answer := greeting.answer():
            stream.sendall(answer)
    with ExitStack() as unless_joined:
        try:
            connected = socket.create_connection((target.host, target.port), DIAL_SECONDS)
        except (OSError, ValueError):
            stream.sendall(greeting.reply(granted=False))
            raise
        unless_joined.callback(connected.close)
        # Only now: a client that is told of success before the connection exists would take its failure for an end.
        stream.sendall(greeting.reply(granted=True))
        connected.sendall(target.rest)
        unless_joined.pop_all()
    return connected
