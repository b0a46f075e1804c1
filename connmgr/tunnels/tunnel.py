"""One tunnel: its local port stays open, while the route behind it is opened, lost and opened again.

A :class:`Route` has a leased link, the streams that are opened over it, and for some tunnels a port of the remote host.
"""

from __future__ import annotations

import random
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from typing import NamedTuple

from connmgr import errors
from connmgr.engine.script import Source, script_argv
from connmgr.errors import ConnmgrError, HostRefused, ShellLost, StreamLimit, TransportUnsupported
from connmgr.links.channels import PROBE_SECONDS, lease_live_link
from connmgr.links.link import Lease
from connmgr.links.table import LinkTable
from connmgr.pipes.remote import endpoint_of
from connmgr.plugin import LEAST_SECONDS, ByteStream, Channel, Deadline, Listener, Transport
from connmgr.processes import connect_unix
from connmgr.secrets.principals import Access
from connmgr.streams.endpoints import Endpoint, SocketEndpoint
from connmgr.streams.listener import MAX_GREETING_BYTES, Accepted, Admit, Greeting, Leave, Place, PortListener
from connmgr.streams.loop import Loop, Timer
from connmgr.streams.splice import Splice
from connmgr.tunnels.shares import RELAY_DESCRIPTORS, STREAM_DESCRIPTORS, Holder, TunnelShares

DIAL_SECONDS = 10.0
"""Longest time for the remote host to open a stream."""

GREETING_SECONDS = 10.0
"""Longest time for a SOCKS client of a remote port to say where it leads."""

READ_SECONDS = 1.0
PROGRAMS = ("python3", "bash", "socat", "nc")
"""Programs that can relay, the best first: they pass on more about the end of a stream."""

UNIX_PROGRAMS = ("python3", "socat", "nc")
"""Those that can connect to Unix sockets."""

_HOST = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9._:%-]{0,254}")
"""Names and addresses that no program takes for an option, or for a host with further fields, as socat would."""

_SOCKET = re.compile(r"/[A-Za-z0-9_./@%+=-]{1,106}")
"""Paths of Unix sockets that no program reads in another way."""

_FIND = Source("connmgr.tunnels", "find_relay")
_RELAY = Source("connmgr.tunnels", "relay")


ACCEPT_SECONDS = 1.0
"""Longest single wait for a connection, before waiting again."""

LOOK_SECONDS = 0.05
"""Interval at which a port of the remote host looks whether a thread may dial again for its next client."""

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

    def dial(self, to: Place) -> ByteStream | Channel:
        """Open a stream from the remote host ``to`` a port or a Unix socket.

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
            return self.relay.dial(transport, to, deadline.left(LEAST_SECONDS))
        if isinstance(to, str):
            return transport.open_unix(to, timeout=deadline.left(LEAST_SECONDS))
        return transport.open_tcp(*to, timeout=deadline.left(LEAST_SECONDS))

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
    links: LinkTable,
    connection: str,
    access: Access,
    timeout: float,
    *,
    far: Place | None = None,
    to: Place | None = None,
) -> Route:
    """Open the route through ``connection`` within ``timeout`` seconds: ``to`` a target there, or from a place there.

    That place, ``far``, is where the remote host shall listen.

    :raises connmgr.errors.TransportUnsupported: the link carries no streams, and the host has no program for them.
    :raises connmgr.errors.ConnmgrError: the errors of leasing a link.
    """
    deadline = Deadline(timeout)
    lease = lease_live_link(links, connection, access, deadline)
    with ExitStack() as cleanup:
        cleanup.callback(lease.release)
        transport = lease.link.transport
        route = Route(lease)
        if isinstance(far, str):
            route = Route(lease, None, transport.listen_unix(far, timeout=deadline.left(1.0)), (far, 0))
        elif far is not None:
            listener = transport.listen_tcp(*far, timeout=deadline.left(1.0))
            route = Route(lease, None, listener, (far[0], listener.port))
        elif not transport.carries_streams:
            programs = UNIX_PROGRAMS if isinstance(to, str) else PROGRAMS
            route = Route(lease, find_relay(transport, deadline.left(1.0), programs))
        cleanup.pop_all()
        return route


@dataclass(frozen=True)
class Relay:
    """A program of the remote host that joins its standard streams with a connection."""

    program: str

    def dial(self, transport: Transport, to: Place, timeout: float) -> Channel:
        """Start it for a connection to ``to``; the channel's exit status tells whether that failed.

        :raises HostRefused: what it leads to is not a name or an address, or not a path that each program can take.
        """
        if isinstance(to, str):
            if not _SOCKET.fullmatch(to):
                raise HostRefused(f"{to!r} is not a path of a Unix socket that programs such as socat accept.")
            arguments = [self.program, to]
        else:
            host, port = to
            if not _HOST.fullmatch(host):
                raise HostRefused(f"{host!r} is not the name or address of a host.")
            arguments = [self.program, host, str(port)]
        # The script is in the argv, so the standard streams carry nothing but the connection's bytes.
        argv = script_argv(_RELAY.text, arguments, own_locale=True)
        channel = transport.open_channel(argv, timeout=timeout)
        channel.expect_bulk()
        return channel


def find_relay(transport: Transport, timeout: float, programs: Sequence[str] = PROGRAMS) -> Relay:
    """Return the first of ``programs`` that the remote host has.

    :raises TransportUnsupported: it has none of them.
    :raises connmgr.errors.OperationError: no channel could be opened to look for them.
    """
    deadline = Deadline(timeout)
    channel = transport.open_channel(script_argv(_FIND.text, programs, own_locale=True), timeout=timeout)
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
            "The connection cannot carry streams itself, and its machine has no program that can: install one of "
            f"{', '.join(programs)} there."
        )
    return Relay(lines[lines.index("relay") + 1])


class RemotePort:
    """Accepts connections of ``listener`` in its own thread, until the listener is closed or its link is lost.

    For each stream ``take`` is called in the thread of the loop: with a connection to ``to``, or to what the stream
    asks for by SOCKS; or with None and the error. The threads that this takes meanwhile are of ``shares``.
    """

    def __init__(
        self,
        loop: Loop,
        listener: Listener,
        to: Place | None,
        take: Take,
        shares: TunnelShares,
        holder: Callable[[], Holder],
    ) -> None:
        self._loop, self._listener, self._to, self._take = loop, listener, to, take
        self._shares, self._holder = shares, holder
        self._dials = threading.Semaphore(MAX_DIALS)
        self._greeted: dict[ByteStream, None] = {}
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
            # long. Further ones wait at the port.
            if not self._dials.acquire(blocking=False):
                self._displace()
                self._dials.acquire()
            holder = self._holder()
            while not self._shares.begin_dial(holder):
                time.sleep(LOOK_SECONDS)
            self._loop.work(partial(self._dial, stream, holder))

    def _displace(self) -> None:
        """Disconnect the SOCKS client that has waited longest without saying where it leads, if there is one."""
        with suppress(RuntimeError, StopIteration):
            # RuntimeError: another thread has changed them. Then one has ended by itself.
            next(iter(self._greeted)).close()

    def _dial(self, stream: ByteStream, holder: Holder) -> None:
        """Open the connection on this side, in a thread that may wait."""
        connected, fault = None, ""
        try:
            connected = self._connected_for(stream) if self._to is None else _connected(self._to)
        except (OSError, EOFError, ValueError) as error:
            # ValueError: the host cannot be a name, or the greeting is not one of SOCKS.
            fault = getattr(error, "strerror", None) or str(error)
        finally:
            self._dials.release()
            self._shares.end_dial(holder)
        self._loop.call(partial(self._take, connected, stream, fault))
        self._loop.call(self._shares.serve_next)

    def _connected_for(self, stream: ByteStream) -> socket.socket:
        """Return the connection that the client behind ``stream`` asks for by SOCKS, and tell it so.

        :raises OSError: there is no such connection, or the client has left or asks for none in time.
        :raises ValueError: what it says is not SOCKS.
        """
        greeting, deadline, target = Greeting(grants=False), Deadline(GREETING_SECONDS), None
        self._greeted[stream] = None
        try:
            while target is None:
                if deadline.passed:
                    raise TimeoutError("The SOCKS client sent no request in time.")
                stream.settimeout(deadline.left(LEAST_SECONDS))
                try:
                    target = greeting.take(stream.recv(MAX_GREETING_BYTES))
                finally:
                    if answer := greeting.answer():
                        stream.sendall(answer)
        finally:
            self._greeted.pop(stream, None)
        with ExitStack() as unless_joined:
            try:
                connected = socket.create_connection((target.host, target.port), DIAL_SECONDS)
            except (OSError, ValueError):
                stream.sendall(greeting.reply(granted=False))
                raise
            unless_joined.callback(connected.close)
            # Only now: a client that is told of success before the connection exists would take its failure for an
            # end.
            stream.sendall(greeting.reply(granted=True))
            connected.sendall(target.rest)
            unless_joined.pop_all()
        return connected


def _connected(to: Place) -> socket.socket:
    """Return a connection to a port or a Unix socket that this machine reaches; raise OSError if there is none."""
    return connect_unix(to, DIAL_SECONDS) if isinstance(to, str) else socket.create_connection(to, DIAL_SECONDS)


MAX_STREAMS = 2048
"""Most streams of one tunnel; further clients wait at its port."""

MAX_DIALS = 32
"""Most streams of one tunnel that are being opened at the same time."""

LEAST_DELAY_SECONDS, MOST_DELAY_SECONDS = 1.0, 60.0
"""Bounds of the pause between attempts to open the route; after a loss the first attempt follows at once."""

FINAL = (
    errors.AuthFailed,
    errors.HostKeyChanged,
    errors.TransportUnsupported,
    errors.UnknownConnection,
    errors.UnknownType,
    errors.ConnectionCycle,
    errors.IntegrityError,
)
"""Errors after which nothing is tried again: another attempt could lock an account or help an attacker, or a person
has to change something first."""


STOPPED, CONNECTING, OPEN, RETRYING, FAILED = "stopped", "connecting", "open", "retrying", "failed"

HOLD_SECONDS = 10.0
"""Longest wait of a client for the route."""


@dataclass(frozen=True)
class TunnelStatus:
    """The state of a tunnel; ``address`` is where it listens, times are aware and in UTC.

    The address of a Unix socket is its path, and port 0.
    """

    state: str
    address: tuple[str, int] | None = None
    since: datetime | None = None
    retries: int = 0
    next_retry: datetime | None = None
    last_error: ConnmgrError | None = None

    relay: str | None = None
    streams: int = 0
    waiting: int = 0
    bytes_in: int = 0
    bytes_out: int = 0

    @property
    def place(self) -> str | None:
        """Where it listens, as ``HOST:PORT``, or the path of a Unix socket."""
        if self.address is None:
            return None
        host, port = self.address
        if not port:
            return host
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class LiveTunnel:
    """Keeps a tunnel open from :meth:`begin` to :meth:`stop`; both may be called once each, in any thread.

    ``open_route`` opens the route, in a thread that may wait. ``listen`` opens the local port, if the tunnel has one;
    ``to`` is the destination of a tunnel from the remote host, None where each connection asks for one by SOCKS.
    ``changed`` is called with its status after each change of its state; it must not wait. Its clients count for
    ``holder`` in ``shares``; further ones are disconnected, and the status says why.
    """

    def __init__(
        self,
        loop: Loop,
        open_route: Callable[[], Route],
        listen: Callable[[Callable[[Accepted], None], Admit], PortListener] | None,
        to: Place | None,
        shares: TunnelShares,
        holder: Callable[[], Holder] = lambda: None,
        changed: Callable[[TunnelStatus], object] = lambda _: None,
    ) -> None:
        self._shares, self._holder = shares, holder
        self._loop, self._open_route, self._to, self._changed = loop, open_route, to, changed
        self._bytes_in = self._bytes_out = 0
        self._waiting: dict[Accepted, None] = {}
        self._waiting_ends: dict[Accepted, Timer] = {}
        self._streams: dict[Splice, None] = {}
        self._dialling = 0
        self._route: Route | None = None
        self._retry: Timer | None = None
        self._attempting = self._stopped = False
        self._status = TunnelStatus(CONNECTING, since=_now())
        self.attempted = threading.Event()
        """Set when the first attempt to open the route has ended, successful or not."""
        self.failure: ConnmgrError | None = None
        """The error of the last attempt to open the route, None if it succeeded."""
        self._listener = None if listen is None else listen(self._enter, self._admit)

    @property
    def status(self) -> TunnelStatus:
        """Its current state."""
        address = (self._listener.host, self._listener.port) if self._listener is not None else self._status.address
        return replace(
            self._status,
            address=None if self._status.state == FAILED else address,
            streams=len(self._streams),
            waiting=len(self._waiting) + self._dialling,
            bytes_in=self._bytes_in,
            bytes_out=self._bytes_out,
        )

    def begin(self) -> None:
        """Accept clients, and open the route."""
        self._loop.call(self._begin)

    def stop(self) -> threading.Event:
        """End the tunnel; return an event that is set when the port and the link are released."""
        released = threading.Event()
        self._loop.call(partial(self._stop, released))
        return released

    def look(self) -> None:
        """Check whether the route is lost; called regularly in the loop's thread."""
        if self._route is not None and not self._route.intact:
            self._lost(ShellLost("The link broke."))

    def try_now(self) -> None:
        """Open the route at once, if the next attempt is waiting."""
        self._loop.call(lambda: self._retry_within(0.0))

    def _begin(self) -> None:
        if self._listener is not None:
            self._listener.open()
        self._changed(self.status)
        self._attempt()

    def _stop(self, released: threading.Event) -> None:
        self._stopped = True
        if self._retry is not None:
            self._retry.cancel()
        if self._listener is not None:
            self._listener.close()
        self._close_streams()
        self._become(STOPPED)
        route, self._route = self._route, None
        self.attempted.set()
        self._loop.work(partial(_close_route, route, released))

    # The route.

    def _attempt(self) -> None:
        if self._stopped or self._attempting or self._route is not None:
            return
        self._attempting = True
        self._retry = None
        self._status = replace(self._status, next_retry=None)
        self._loop.work(self._open)

    def _open(self) -> None:
        """Open the route, in a thread that may block."""
        try:
            route = self._open_route()
        except ConnmgrError as error:
            self._loop.call(partial(self._failed, error))
        except BaseException:
            self._loop.call(
                partial(
                    self._failed, errors.InternalError("The route could not be opened; the daemon's log says more.")
                )
            )
            raise
        else:
            self._loop.call(partial(self._opened, route))

    def _opened(self, route: Route) -> None:
        self._attempting = False
        if self._stopped:
            self._loop.work(route.close)
            return
        # From here on `_dial` compares with this route: a stream that was dialled over the lost one is closed, because
        # its link may already carry nothing.
        self._route, self.failure = route, None
        self._status = TunnelStatus(OPEN, route.address, _now(), relay=route.relay.program if route.relay else None)
        # After the state: who has waited for the attempt asks for it, and for the address of a port of the remote host.
        self.attempted.set()
        self._changed(self.status)
        if route.listener is not None:
            take = partial(self._take_here, route)
            RemotePort(self._loop, route.listener, self._to, take, self._shares, self._holder)
        self._serve()

    def _failed(self, error: ConnmgrError) -> None:
        self._attempting = False
        if self._stopped:
            return
        self.failure, before = error, self._status.state
        if isinstance(error, FINAL):
            if self._listener is not None:
                self._listener.close()
            self._close_streams()
            self._status = TunnelStatus(FAILED, since=_now(), retries=self._status.retries, last_error=error)
        else:
            retries = self._status.retries + 1
            since = self._status.since if self._status.state == RETRYING else _now()
            self._status = TunnelStatus(RETRYING, None, since, retries, last_error=error)
            most = min(MOST_DELAY_SECONDS, LEAST_DELAY_SECONDS * 2 ** min(retries, 10))
            # Random within the doubled bound: after an outage a hundred tunnels would otherwise log in to the same host
            # at the same moments, and sshd refuses many logins at a time (MaxStartups).
            self._retry_after(LEAST_DELAY_SECONDS if self._waiting else random.uniform(LEAST_DELAY_SECONDS, most))  # noqa: S311
        if self._status.state != before:
            self._changed(self.status)
        self.attempted.set()

    def _lost(self, error: ConnmgrError) -> None:
        """Open the route again, and reset the streams over the lost one."""
        route, self._route = self._route, None
        if route is None:
            return
        # Retired before it is closed: other users may still have leases, and the next attempt must not lease this one.
        route.retire()
        self._loop.work(route.close)
        # A reset and not an end: the clients would take a cut-off answer for a whole one.
        for stream in list(self._streams):
            stream.close(reset=True)
        self._status = TunnelStatus(RETRYING, since=_now(), last_error=error)
        # At a random moment, because other tunnels may have lost the same link and open it again too.
        self._retry_after(random.uniform(0.0, LEAST_DELAY_SECONDS / 4))  # noqa: S311
        self._changed(self.status)

    def _retry_after(self, seconds: float) -> None:
        if self._retry is not None:
            self._retry.cancel()
        self._retry = self._loop.after(seconds, self._attempt)
        at = datetime.fromtimestamp(time.time() + seconds, timezone.utc)
        self._status = replace(self._status, next_retry=at)

    def _retry_within(self, seconds: float) -> None:
        """Bring the next attempt forward, because a client waits for it."""
        if self._retry is not None and self._retry.at > time.monotonic() + seconds:
            self._retry_after(seconds)

    def _become(self, state: str) -> None:
        self._status = replace(self._status, state=state, since=_now(), next_retry=None)
        self._changed(self.status)

    # Its clients.

    def _admit(self, connected: socket.socket) -> Leave | None:
        return self._taken(STREAM_DESCRIPTORS, connected.fileno())

    def _taken(self, count: int, descriptor: int = 0) -> Leave | None:
        """Take ``count`` descriptors for a client; return what gives them back, or None if there are none for it."""
        holder = self._holder()
        why = self._shares.take(holder, count, descriptor)
        if why is None:
            return partial(self._shares.give_back, holder, count)
        self._status = replace(self._status, last_error=StreamLimit(f"A client was disconnected: {why}."))
        return None

    def _enter(self, client: Accepted) -> None:
        self._hold(client)
        self._retry_within(LEAST_DELAY_SECONDS)
        self._serve()

    def _serve(self) -> None:
        """Dial for waiting clients, as many at a time as allowed."""
        if self._route is None:
            return
        while self._waiting and self._dialling < MAX_DIALS:
            holder = self._holder()
            if not self._shares.begin_dial(holder):
                self._shares.await_dial(holder, self._serve)
                break
            client = next(iter(self._waiting))
            del self._waiting[client]
            self._dialling += 1
            self._loop.work(partial(self._dial, self._route, client, holder))
        # Further clients wait in the kernel's queue of the port (listen(2)), where they cost the daemon nothing.
        if self._listener is not None and len(self._streams) + self._dialling + len(self._waiting) >= MAX_STREAMS:
            self._listener.shut()

    def _dial(self, route: Route, client: Accepted, holder: Holder) -> None:
        """Open a stream for ``client``, in a thread that may block."""
        try:
            stream = route.dial(client.to)
        except ConnmgrError as error:
            self._loop.call(partial(self._not_dialled, route, client, error))
        except BaseException:
            failure = errors.InternalError("The stream could not be opened; the daemon's log says more.")
            self._loop.call(partial(self._not_dialled, route, client, failure))
            raise
        else:
            self._loop.call(partial(self._dialled, route, client, stream))
        finally:
            self._shares.end_dial(holder)
            self._loop.call(self._shares.serve_next)

    def _not_dialled(self, route: Route, client: Accepted, error: ConnmgrError) -> None:
        self._dialling -= 1
        lost = isinstance(error, ShellLost) or not route.intact
        if lost and route is self._route:
            self._lost(error)
        if lost and not self._stopped:
            # Nothing of the client's was sent, so it may wait for the next route, for the rest of its time.
            self._hold(client)
            self._serve()
            return
        self._status = replace(self._status, last_error=error)
        self._turn_away(client)
        self._serve()

    def _dialled(self, route: Route, client: Accepted, stream: ByteStream | Channel) -> None:
        self._dialling -= 1
        remote = endpoint_of(self._loop, stream)
        if self._stopped or route is not self._route:
            remote.close()
            if self._stopped:
                self._turn_away(client)
            else:
                self._hold(client)
                self._serve()
            return
        if isinstance(stream, Channel):
            leave = self._taken(RELAY_DESCRIPTORS)
            if leave is None:
                remote.close()
                self._turn_away(client)
                return
            client.endpoint.at_release.append(leave)
        self._release(client)
        answer = client.answer(True)
        if answer and not client.endpoint.answer(answer):
            client.endpoint.close(reset=True)
            remote.close()
            return
        self._join(client.endpoint, remote, client.early, route)
        self._serve()

    def _join(self, client: Endpoint, remote: Endpoint, early: bytes, route: Route) -> None:
        splice = Splice(
            client,
            remote,
            early=early,
            came=self._count_in,
            went=self._count_out,
            is_intact=lambda: route.intact,
            ended=self._ended,
        )
        if not splice.closed:
            self._streams[splice] = None

    def _count_in(self, size: int) -> None:
        self._bytes_in += size

    def _count_out(self, size: int) -> None:
        self._bytes_out += size

    def _ended(self, stream: Splice) -> None:
        self._streams.pop(stream, None)
        # A place is free again. `open` does nothing if the port was not shut.
        if self._listener is not None and not self._stopped and self._status.state != FAILED:
            self._listener.open()

    def _hold(self, client: Accepted) -> None:
        """Let ``client`` wait; if it has waited before, for the rest of its time."""
        self._waiting[client] = None
        if client not in self._waiting_ends:
            self._waiting_ends[client] = self._loop.after(HOLD_SECONDS, lambda: self._time_is_over(client))

    def _take_waiting(self) -> list[Accepted]:
        """Return all waiting clients and stop their waiting; their timers run on."""
        clients = list(self._waiting)
        self._waiting.clear()
        return clients

    def _release(self, client: Accepted) -> None:
        """End the wait of ``client``, and its time."""
        self._waiting.pop(client, None)
        if (timer := self._waiting_ends.pop(client, None)) is not None:
            timer.cancel()

    def _time_is_over(self, client: Accepted) -> None:
        # If its stream is being dialled, the outcome of that answers the client.
        if client in self._waiting:
            self._turn_away(client)

    def _turn_away(self, client: Accepted) -> None:
        self._release(client)
        answer = client.answer(False)
        client.endpoint.close(reset=not (answer and client.endpoint.answer(answer)))

    def _close_streams(self) -> None:
        for stream in list(self._streams):
            stream.close(reset=True)
        for client in self._take_waiting():
            self._turn_away(client)

    # Connections from the remote host.

    def _take_here(self, route: Route, connected: socket.socket | None, stream: ByteStream, fault: str) -> None:
        """Join a stream of the remote host's port with the connection on this side, if there is one."""
        if connected is None:
            self._status = replace(self._status, last_error=HostRefused(fault))
        elif (
            self._stopped
            or route is not self._route
            or len(self._streams) >= MAX_STREAMS
            or (leave := self._taken(STREAM_DESCRIPTORS, connected.fileno())) is None
        ):
            connected.close()
        else:
            here = SocketEndpoint(self._loop, connected)
            here.at_release.append(leave)
            self._join(here, endpoint_of(self._loop, stream), b"", route)
            return
        self._loop.work(stream.close)


def _close_route(route: Route | None, released: threading.Event) -> None:
    try:
        if route is not None:
            route.close()
    finally:
        released.set()


def _now() -> datetime:
    return datetime.now(timezone.utc)
