"""The open links by connection: everything that runs over a connection shares one, as long as it can carry more."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from connmgr.cancellation import NEVER, Cancellation
from connmgr.engine.session import FairLock
from connmgr.errors import ConnectTimeout, ShellBusy, ShellLost
from connmgr.links.chain import Target
from connmgr.links.link import Lease, Link, open_link
from connmgr.plugin import DEFAULT_SEND_ENV, LEAST_SECONDS, Deadline
from connmgr.registry import Registry
from connmgr.secrets.principals import Access
from connmgr.vault import Vault
from connmgr.vault.admission import Outdated


@dataclass
class _Place:
    """The open links of one connection, the newest last; ``opening`` is held while another one is opened.

    ``openers`` counts the threads that have or await ``opening``, ``changes`` the connection's changes meanwhile.
    """

    opening: FairLock = field(default_factory=FairLock)
    links: list[Link] = field(default_factory=list)
    openers: int = 0
    changes: int = 0


class LinkTable:
    """Leases the link of a stored connection to all who use the connection. Safe to use from several threads.

    A link that is lost, or whose connection was changed or removed, gets no further leases. It closes when its last
    lease ends.
    """

    def __init__(self, vault: Vault, registry: Registry, send_env: Sequence[str] = DEFAULT_SEND_ENV) -> None:
        self.send_env = send_env
        """Names of the variables that clients send on every connection."""
        self._vault = vault
        self._registry = registry
        self._lock = threading.Lock()
        self._places: dict[str, _Place] = {}

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
        :raises connmgr.errors.CommandCancelled: it was cancelled while another thread opened the link.
        :raises ShellBusy: the connection kept changing meanwhile.
        """
        lease = self._shared(connection, access, without)
        if lease is not None:
            return lease
        deadline = Deadline(timeout)
        with self._opening(connection, deadline, cancellation) as place:
            while True:
                lease = self._shared(connection, access, without) or self._opened(connection, place, access, deadline)
                if lease is not None:
                    return lease
                if deadline.passed:
                    raise ShellBusy("The connection kept changing while it was opened; try again.")

    def peek(self, connection: str) -> Lease | None:
        """Lease an open link of the connection, or return None. Check its ``admission`` before using it."""
        return next(self._leases(connection, ()), None)

    def forget(self, connections: Iterable[str]) -> None:
        """Give no further leases of links of removed or changed connections, nor of links that are being opened."""
        with self._lock:
            for connection in connections:
                place = self._places.get(connection)
                if place is not None:
                    place.changes += 1
                    for link in place.links:
                        link.retire()

    def _shared(self, connection: str, access: Access, without: Collection[Link]) -> Lease | None:
        for lease in self._leases(connection, without):
            with contextlib.ExitStack() as cleanup:
                cleanup.callback(lease.release)
                try:
                    lease.link.admission.check(access)
                except Outdated:
                    lease.link.retire()
                    continue
                cleanup.pop_all()
                return lease
        return None

    def _leases(self, connection: str, without: Collection[Link]) -> Iterator[Lease]:
        """Yield a lease of each usable link; the newest is the likeliest to have room."""
        with self._lock:
            place = self._places.get(connection)
            links = [link for link in reversed(place.links) if link not in without] if place else []
        for link in links:
            with contextlib.suppress(ShellLost):
                yield link.lease()

    def _opened(self, connection: str, place: _Place, access: Access, deadline: Deadline) -> Lease | None:
        """Open a link and lease it; return None if its connection was changed meanwhile."""
        changes = place.changes
        target = Target.stored(self._vault.connections.get(connection))
        link = open_link(self._vault, self._registry, target, access, deadline.left(LEAST_SECONDS), self.send_env)
        lease = link.lease(opener=True)
        with self._lock:
            if place.changes == changes:
                place.links.append(link)
                link.when_closed = partial(self._drop, connection)
                return lease
        lease.release()
        return None

    @contextlib.contextmanager
    def _opening(self, connection: str, deadline: Deadline, cancellation: Cancellation) -> Iterator[_Place]:
        """Be the only thread that opens a link of ``connection``.

        :raises ConnectTimeout: another thread opens one until ``deadline`` is over.
        """
        with self._lock:
            place = self._places.setdefault(connection, _Place())
            place.openers += 1
            self._vault.connections.hold(connection)
        try:
            try:
                place.opening.acquire(deadline.left(), cancellation)
            except TimeoutError:
                raise ConnectTimeout("The connection is still being opened; try again.") from None
            try:
                yield place
            finally:
                place.opening.release()
        finally:
            with self._lock:
                place.openers -= 1
                self._tidy(connection, place)

    def _drop(self, connection: str, link: Link) -> None:
        with self._lock:
            place = self._places[connection]
            place.links.remove(link)
            self._tidy(connection, place)

    def _tidy(self, connection: str, place: _Place) -> None:
        if not (place.links or place.openers):
            del self._places[connection]
            self._vault.connections.leave(connection)
