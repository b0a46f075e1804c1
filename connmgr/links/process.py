"""Starts processes and TCP streams over the link of a stored connection."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from connmgr.cancellation import NEVER, Cancellation
from connmgr.errors import ShellLost
from connmgr.links.link import Lease, Link
from connmgr.links.table import LinkTable
from connmgr.plugin import LEAST_SECONDS, Channel, Deadline
from connmgr.rights.ground import Ground
from connmgr.secrets.principals import Access

PROBE_SECONDS = 5.0
"""Longest wait for an overdue sign of life; then the connection is opened again."""

Open = Callable[[Link, float], Channel]
"""Opens a channel of a link within a number of seconds."""


def answering(
    links: LinkTable, connection: str, access: Access, deadline: Deadline, cancellation: Cancellation = NEVER
) -> Lease:
    """Lease a link whose far side answers; retire links that give no sign of life.

    :raises connmgr.errors.ConnmgrError: what leasing raises.
    """
    while True:
        lease = links.lease(connection, access, deadline.left(LEAST_SECONDS), (), cancellation)
        with ExitStack() as cleanup:
            cleanup.callback(lease.release)
            if lease.opener or lease.link.first.answers(deadline.within(PROBE_SECONDS).left()):
                cleanup.pop_all()
                return lease
            lease.link.retire()


def start_over(
    links: LinkTable,
    connection: str,
    access: Access,
    open: Open,
    timeout: float,
    cancellation: Cancellation = NEVER,
    ground: Ground | None = None,
) -> tuple[Lease, Channel]:
    """Return the result of ``open`` within ``timeout`` seconds, and the lease of its link.

    A link that turns out to be lost is replaced by another one.
    :raises connmgr.errors.CommandCancelled: it was cancelled before ``open`` was called.
    :raises connmgr.errors.ApprovalRequired: the link leads elsewhere than the approved ``ground``.
    :raises connmgr.errors.ConnmgrError: what leasing raises, or ``open``.
    """
    deadline = Deadline(timeout)
    while True:
        lease = answering(links, connection, access, deadline, cancellation)
        with ExitStack() as cleanup:
            cleanup.callback(lease.release)
            cancellation.require()
            if ground is not None:
                ground.require(lease.link.target.digest)
            try:
                channel = open(lease.link, deadline.left(LEAST_SECONDS))
            except ShellLost:
                lease.link.retire()
                if lease.opener or deadline.passed:
                    raise
                continue
            cleanup.pop_all()
            return lease, channel
