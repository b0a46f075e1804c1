"""Reaches the far sides of jobs over open links, or opens one and keeps it for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from connmgr import errors
from connmgr.jobs.spool import Spool
from connmgr.links.link import Link, Outdated
from connmgr.links.table import IdleLinks, LinkTable
from connmgr.secrets.principals import Access

Result = TypeVar("Result")

OPEN_SECONDS = 30.0
UNREACHABLE = (
    errors.HostUnresolved,
    errors.HostRefused,
    errors.HostUnreachable,
    errors.ConnectTimeout,
    errors.ShellLost,
    errors.TransferFailed,
)
"""The errors of a far side that is unreachable now."""


class Reach:
    """Runs calls to far sides. Safe to use from several threads."""

    def __init__(self, links: LinkTable, kept: IdleLinks) -> None:
        self._links = links
        self._kept = kept

    def allows(self, connection: str, access: Access) -> bool:
        """Whether there is an open link to the connection that ``access`` may use.

        :raises connmgr.errors.SecretLocked: it may not.
        """
        lease = self._links.peek(connection)
        if lease is None:
            return False
        try:
            lease.link.admission.check(access)
        except Outdated:
            return False
        finally:
            lease.release()
        return True

    def ask(self, connection: str, access: Access, work: Callable[[Spool], Result], *, shared: bool = True) -> Result:
        """Like :meth:`ask_once`, but try again if the link broke, because it may have been dead for long."""
        try:
            return self.ask_once(connection, access, work, shared=shared)
        except (errors.ShellLost, errors.TransferFailed):
            return self.ask_once(connection, access, work, shared=shared)

    def ask_once(
        self, connection: str, access: Access, work: Callable[[Spool], Result], *, shared: bool = True
    ) -> Result:
        """Call ``work`` with the far side of ``connection``, if necessary over a new link, and return its result.

        Without a shell, its jobs are among those of its host's user; ``work`` on other than the vault's jobs is then
        not ``shared``.
        :raises connmgr.errors.ConnmgrError: what opening the link raises, including :data:`UNREACHABLE`.
        """
        lease = self._links.lease(connection, access, OPEN_SECONDS)
        try:
            self._kept.keep(connection, lease)
            return _worked(lease.link, work, shared=shared)
        finally:
            lease.release()

    def ask_at_once(self, connection: str, work: Callable[[Spool], Result]) -> Result | None:
        """Like :meth:`ask`, with the daemon's own access and only over an open link; return None without one."""
        lease = self._links.peek(connection)
        if lease is None:
            return None
        try:
            return _worked(lease.link, work, shared=True)
        except errors.ConnmgrError:
            return None
        finally:
            lease.release()


def spool_of(link: Link) -> Spool:
    """Return the spool of a link's jobs; for a container without a shell it is on the host."""
    beside = link.outside
    return Spool(link.transport, link.helpers) if beside is None else Spool(beside.transport, beside.helpers)


def _worked(link: Link, work: Callable[[Spool], Result], *, shared: bool) -> Result:
    if not shared:
        return work(Spool(link.transport, link.helpers))
    try:
        return work(spool_of(link))
    except errors.NoShellInside:
        if link.look_for_shell(OPEN_SECONDS) is None:
            raise
        return work(spool_of(link))
