"""The open links by connection: everything that runs over a connection shares one, as long as it can carry more.

:class:`LinkTable` leases them; :class:`IdleLinks` holds leases of its own, so that links outlast a use by a while.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from connmgr.cancellation import NEVER, Cancellation
from connmgr.contract.event import LINK
from connmgr.engine.session import FairLock
from connmgr.errors import ConnectTimeout, ShellBusy, ShellLost
from connmgr.events import Publish, unheard
from connmgr.links.chain import Target
from connmgr.links.link import Lease, Link, Outdated, open_link
from connmgr.plugin import DEFAULT_SEND_ENV, LEAST_SECONDS, Deadline
from connmgr.registry import Registry
from connmgr.secrets.principals import Access
from connmgr.signers import Signers
from connmgr.vault import Vault


@dataclass
class _OpenLinks:
    """The open links of one connection, the newest last; ``opening`` is held while another one is opened.

    ``lost`` are those whose loss was published while they still have users.

    ``openers`` counts the threads that have or await ``opening``, ``changes`` the connection's changes meanwhile.
    """

    opening: FairLock = field(default_factory=FairLock)
    links: list[Link] = field(default_factory=list)
    lost: list[Link] = field(default_factory=list)
    openers: int = 0
    changes: int = 0


class LinkTable:
    """Leases the link of a stored connection to all who use the connection. Safe to use from several threads.

    A link that is lost, or whose connection was changed or removed, gets no further leases. It closes when its last
    lease ends.
    """

    def __init__(
        self,
        vault: Vault,
        registry: Registry,
        send_env: Sequence[str] = DEFAULT_SEND_ENV,
        publish: Publish = unheard,
        signers: Signers | None = None,
    ) -> None:
        """``signers``: without them no connection can log in by a certificate on demand."""
        self.send_env = send_env
        """Names of the variables that clients send on every connection."""
        self._vault = vault
        self._registry = registry
        self._publish = publish
        self._signers = signers
        self._lock = threading.Lock()
        self._by_connection: dict[str, _OpenLinks] = {}

    def lease(
        self,
        connection: str,
        access: Access,
        timeout: float,
        without: Collection[Link] = (),
        cancellation: Cancellation = NEVER,
    ) -> Lease:
        """Lease a link of the connection that is not in ``without``; if necessary open one within ``timeout`` seconds.

        :raises connmgr.errors.UnknownConnection: there is no such connection.
        :raises connmgr.errors.SecretLocked: ``access`` may not open a secret on the way.
        :raises connmgr.errors.OperationError: no link could be opened.
        :raises connmgr.errors.CommandCancelled: the request was cancelled while another thread opened the link.
        :raises ShellBusy: the connection kept changing meanwhile.
        """
        lease = self._shared(connection, access, without)
        if lease is not None:
            return lease
        deadline = Deadline(timeout)
        with self._opening(connection, deadline, cancellation) as open_links:
            while True:
                lease = self._shared(connection, access, without) or self._opened(
                    connection, open_links, access, deadline
                )
                if lease is not None:
                    return lease
                if deadline.passed:
                    raise ShellBusy("The connection kept changing while it was opened; try again.")

    def open_unshared(self, target: Target, access: Access, timeout: float) -> Link:
        """Open a link that the table does not know; see :func:`connmgr.links.link.open_link`."""
        services = self._vault, self._registry, self._signers
        # A chain never leads over a connection twice, so no thread waits for a link that it opens itself.
        return open_link(*services, target, access, timeout, self.send_env, self._publish, lease_carrier=self.lease)

    def peek(self, connection: str) -> Lease | None:
        """Lease an open link of the connection, or return None. Check its ``admission`` before using it."""
        for link in self._newest_first(connection, ()):
            with contextlib.suppress(ShellLost):
                return link.lease()
        return None

    def forget(self, connections: Iterable[str]) -> None:
        """Retire the links of removed or changed connections, including links that are being opened right now."""
        with self._lock:
            for connection in connections:
                open_links = self._by_connection.get(connection)
                if open_links is not None:
                    open_links.changes += 1
                    for link in open_links.links:
                        link.retire()

    def _shared(self, connection: str, access: Access, without: Collection[Link]) -> Lease | None:
        for link in self._newest_first(connection, without):
            try:
                lease = link.lease()
            except ShellLost:
                continue
            try:
                link.admission.check(access)
            except Outdated:
                link.retire()
                lease.release()
            except BaseException:
                lease.release()
                raise
            else:
                return lease
        return None

    def _newest_first(self, connection: str, without: Collection[Link]) -> list[Link]:
        """Return the links of the connection; the newest is the likeliest to have room.

        One may die or be retired before it is leased. Then it refuses, and the next one is tried.
        """
        with self._lock:
            open_links = self._by_connection.get(connection)
            return [link for link in reversed(open_links.links) if link not in without] if open_links else []

    def _opened(self, connection: str, open_links: _OpenLinks, access: Access, deadline: Deadline) -> Lease | None:
        """Open a link and lease it; return None if its connection was changed meanwhile."""
        changes = open_links.changes
        target = Target.stored(self._vault.connections.get(connection))
        link = self.open_unshared(target, access, deadline.left(LEAST_SECONDS))
        lease = link.lease(opener=True)
        with self._lock:
            # Since it was read above, the connection may have been changed, and `forget` have run: this link then leads
            # where the connection no longer does. Both sides take the lock. Either `forget` finds the link in the table
            # and retires it, or this side sees the other count, drops the link, and the caller opens another one.
            if open_links.changes == changes:
                open_links.links.append(link)
                link.when_closed = partial(self._drop, connection)
                self._publish(LINK, "up", connection)
                return lease
        lease.release()
        return None

    @contextlib.contextmanager
    def _opening(self, connection: str, deadline: Deadline, cancellation: Cancellation) -> Iterator[_OpenLinks]:
        """Be the only thread that opens a link of ``connection``.

        :raises ConnectTimeout: another thread opens one until ``deadline`` is over.
        """
        with self._lock:
            # Counted before the lock is awaited: _tidy() of a thread that leaves would drop the entry from the table,
            # and the next thread would open beside us with an entry and a lock of its own.
            open_links = self._by_connection.setdefault(connection, _OpenLinks())
            open_links.openers += 1
            self._vault.connections.hold(connection)
        try:
            try:
                open_links.opening.acquire(deadline.left(), cancellation)
            except TimeoutError:
                raise ConnectTimeout("The connection is still being opened; try again.") from None
            try:
                yield open_links
            finally:
                open_links.opening.release()
        finally:
            with self._lock:
                open_links.openers -= 1
                self._tidy(connection, open_links)

    def _drop(self, connection: str, link: Link) -> None:
        with self._lock:
            open_links = self._by_connection[connection]
            open_links.links.remove(link)
            self._tidy(connection, open_links)
            if link in open_links.lost:
                open_links.lost.remove(link)
            else:
                # Whether it broke before its last user was done with it.
                self._publish(LINK, "closed" if link.first.alive else "lost", connection)

    def look(self) -> None:
        """Publish which links were lost; otherwise that is noticed when they are used."""
        with self._lock:
            for connection, open_links in self._by_connection.items():
                for link in open_links.links:
                    if link not in open_links.lost and not link.first.alive:
                        open_links.lost.append(link)
                        self._publish(LINK, "lost", connection)

    def _tidy(self, connection: str, open_links: _OpenLinks) -> None:
        if not (open_links.links or open_links.openers):
            del self._by_connection[connection]
            self._vault.connections.leave(connection)


class IdleLinks:
    """Keeps a lease of each connection's last used link until :meth:`let_go`, so that the next user finds it open.

    Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leases: dict[str, tuple[Lease, float]] = {}

    def keep(self, connection: str, lease: Lease) -> None:
        """Keep the link of ``lease``, which has just been used, in place of an earlier link of the connection."""
        with self._lock:
            before = self._leases.get(connection)
            same = before is not None and before[0].link is lease.link
            try:
                own = before[0] if before is not None and same else lease.link.lease()
            except ShellLost:
                # The link was lost or changed meanwhile; who else has a lease of it notices this without us.
                return
            self._leases[connection] = own, time.monotonic()
        if before is not None and not same:
            before[0].release()

    def let_go(self, idle_seconds: float) -> None:
        """Release the links that are unusable, or were not used for ``idle_seconds``."""
        with self._lock:
            at = time.monotonic() - idle_seconds
            idle = {
                connection: lease
                for connection, (lease, used) in self._leases.items()
                if used <= at or not lease.link.usable
            }
            for connection in idle:
                del self._leases[connection]
        for lease in idle.values():
            lease.release()
