"""The way of a tunnel: a leased link, its abilities, and the streams that are opened over it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import NamedTuple

from connmgr.errors import ShellLost
from connmgr.links.link import Lease
from connmgr.links.process import PROBE_SECONDS, answering
from connmgr.links.table import LinkTable
from connmgr.plugin import LEAST_SECONDS, ByteStream, Channel, Deadline, Forward, Listener
from connmgr.secrets.principals import Access
from connmgr.tunnels.relay import Relay, find_relay

DIAL_SECONDS = 10.0
"""Longest time for the far side to open a stream."""


class Way(NamedTuple):
    """A leased link, or None if no link is needed, because the tunnel leads to its own machine.

    If the link carries no streams, ``relay`` starts programs for them. ``listener`` is the tunnel's port on the far
    side, if it has one, and ``address`` that port's address.
    """

    lease: Lease | None
    relay: Relay | None = None
    listener: Listener | None = None
    address: tuple[str, int] | None = None

    @property
    def intact(self) -> bool:
        """Whether its link works, as far as known without asking the far side."""
        return self.lease is None or self.lease.link.alive

    def dial(self, host: str, port: int) -> ByteStream | Channel:
        """Open a stream from the far side to ``host:port``.

        :raises ShellLost: the link is lost, or gives no sign of life.
        :raises connmgr.errors.OperationError: the stream could not be opened.
        """
        if self.lease is None:
            raise ShellLost("The tunnel has no link.")
        deadline = Deadline(DIAL_SECONDS)
        first = self.lease.link.first
        if not first.answers(deadline.within(PROBE_SECONDS).left()):
            raise ShellLost("The far side does not respond.")
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


def open_way(
    links: LinkTable, connection: str, forward: Forward, access: Access, timeout: float, *, listens_far: bool
) -> Way:
    """Open the way through ``connection`` within ``timeout`` seconds.

    :raises connmgr.errors.TransportUnsupported: it carries no streams, and the far side has no program for them.
    :raises connmgr.errors.ConnmgrError: what leasing a link raises.
    """
    deadline = Deadline(timeout)
    lease = answering(links, connection, access, deadline)
    with ExitStack() as cleanup:
        cleanup.callback(lease.release)
        transport = lease.link.transport
        way = Way(lease)
        if listens_far:
            listener = transport.listen_tcp(forward.host, forward.port, timeout=deadline.left(1.0))
            way = Way(lease, None, listener, (forward.host, listener.port))
        elif not transport.carries_streams:
            way = Way(lease, find_relay(transport, deadline.left(1.0)))
        cleanup.pop_all()
        return way
