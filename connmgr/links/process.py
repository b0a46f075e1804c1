"""Starts what runs over the link of a stored connection, and is no shell: processes, and TCP streams."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from connmgr.errors import ShellLost
from connmgr.links.link import Lease
from connmgr.links.table import LinkTable
from connmgr.plugin import LEAST_SECONDS, Channel, Deadline, Transport
from connmgr.secrets.principals import Access

PROBE_SECONDS = 5.0
"""Time in which a far side that owes a sign of life must give it; else the connection is opened anew."""

Open = Callable[[Transport, float], Channel]
"""Opens a channel within a number of seconds."""


def answering(links: LinkTable, connection: str, access: Access, deadline: Deadline) -> Lease:
    """Lease a link of the connection whose far side answers: one that owes a sign of life and gives none is retired.

    :raises connmgr.errors.ConnmgrError: what leasing raises.
    """
    while True:
        lease = links.lease(connection, access, deadline.left(LEAST_SECONDS))
        with ExitStack() as cleanup:
            cleanup.callback(lease.release)
            if lease.opener or lease.link.first.answers(deadline.within(PROBE_SECONDS).left()):
                cleanup.pop_all()
                return lease
            lease.link.retire()


def start_over(links: LinkTable, connection: str, access: Access, open: Open, timeout: float) -> tuple[Lease, Channel]:
    """Return what ``open`` returns within ``timeout`` seconds, and the lease of the link that carries it.

    A link that turns out to be lost makes way for another one.
    :raises connmgr.errors.ConnmgrError: what leasing raises, or ``open``.
    """
    deadline = Deadline(timeout)
    while True:
        lease = answering(links, connection, access, deadline)
        with ExitStack() as cleanup:
            cleanup.callback(lease.release)
            try:
                channel = open(lease.link.transport, deadline.left(LEAST_SECONDS))
            except ShellLost:
                lease.link.retire()
                if lease.opener or deadline.passed:
                    raise
                continue
            cleanup.pop_all()
            return lease, channel
