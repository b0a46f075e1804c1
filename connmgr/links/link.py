"""A live link to a connection's machine, shared by everything that runs over it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

from connmgr.engine.rpc import Helpers
from connmgr.errors import NoShellInside, ShellLost
from connmgr.links.chain import Chain, Target, environment_of, no_loan_for, open_chain
from connmgr.links.outside import Outside
from connmgr.links.spare import SpareTransport
from connmgr.links.wrapped import WrappedTransport
from connmgr.plugin import DEFAULT_SEND_ENV, ClientEnvironment
from connmgr.registry import Registry
from connmgr.secrets.principals import Access
from connmgr.vault import Connection, Vault
from connmgr.vault.admission import Admission


class Link:
    """An open chain, its helpers, and its admission checks. The link closes when its last lease ends.

    Safe to use from several threads.
    """

    def __init__(
        self, target: Target, chain: Chain, transport: SpareTransport, helpers: Helpers, admission: Admission
    ) -> None:
        self.target = target
        """The data to which it was opened."""
        self.first = chain.transport
        """The transport of sessions. Everything else uses ``transport``, which may open a second chain."""
        self.transport = transport
        self.helpers = helpers
        self.admission = admission
        self.when_closed: Callable[[Link], None] = lambda _: None
        """Called once with this link, before it closes."""
        self.environment = ClientEnvironment(DEFAULT_SEND_ENV)
        """The variables of clients that reach what runs there."""
        self.is_borrowed = False
        """Whether its login used what a client had lent, so that the daemon may be unable to repeat it."""
        self._chain = chain
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        self._outside: Outside | None = None
        self._leases: set[Lease] = set()
        self._closed = False
        self._retired = False

    @property
    def alive(self) -> bool:
        """Whether the link works, as far as known without asking the far side."""
        return not self._closed and self.first.alive

    @property
    def usable(self) -> bool:
        """Whether it can be leased."""
        return self.alive and not self._retired

    @property
    def lessees(self) -> int:
        """The number of leases."""
        return len(self._leases)

    @property
    def outside(self) -> Outside | None:
        """The place of its jobs, if :meth:`look_for_shell` has found no shell."""
        return self._outside

    def look_for_shell(self, timeout: float) -> Outside | None:
        """Return None if there is a shell at the link's end, otherwise the place where jobs are kept.

        :raises connmgr.errors.OperationError: no answer came within ``timeout`` seconds.
        """
        if not isinstance(self.first, WrappedTransport):
            return None
        with self._looking:
            if self._outside is None:
                try:
                    self.transport.open_channel(["/bin/sh", "-c", ":"], timeout=timeout).close()
                except NoShellInside:
                    self._outside = Outside(self.first)
            return self._outside

    def retire(self) -> None:
        """Refuse all further leases of the link."""
        self._retired = True

    def lease(self, *, opener: bool = False) -> Lease:
        """Return the right to use the link.

        :raises ShellLost: it is lost, closed or retired.
        """
        lease = Lease(self, opener=opener)
        with self._lock:
            if self._retired or not self.alive:
                raise ShellLost("The link is closed.")
            self._leases.add(lease)
        return lease

    def released(self, lease: Lease) -> None:
        """End a lease; close the link after the last one. Calling it again does nothing."""
        with self._lock:
            self._leases.discard(lease)
            if self._leases or self._closed:
                return
            self._closed = True
        with ExitStack() as cleanup:
            cleanup.callback(self._chain.close)
            cleanup.callback(self.transport.close)
            cleanup.callback(self.helpers.close)
            if self._outside is not None:
                cleanup.callback(self._outside.close)
            self.when_closed(self)


class Lease:
    """The right to use a link until :meth:`release`; ``opener`` says that the link was opened for this lessee."""

    def __init__(self, link: Link, *, opener: bool) -> None:
        self.link = link
        self.opener = opener

    def release(self) -> None:
        """End the lease. Calling it again does nothing."""
        self.link.released(self)


def open_link(
    vault: Vault,
    registry: Registry,
    target: Target,
    access: Access,
    timeout: float,
    send_env: Sequence[str] = DEFAULT_SEND_ENV,
) -> Link:
    """Open a link to ``target`` within ``timeout`` seconds; see :func:`connmgr.links.chain.open_chain` for the errors.

    The caller gets the first lease.
    """
    # First, because it may raise.
    environment = environment_of(vault, registry, target, send_env)
    chain = open_chain(vault, registry, target, access, timeout)
    helpers = Helpers()
    transport = SpareTransport(
        chain.transport,
        # It is opened for files and for killing, perhaps for another client's request.
        lambda seconds: open_chain(vault, registry, target, access.without_loan, min(seconds, timeout), forwards=False),
        helpers.dismiss,
    )

    def unchanged(stored: Connection | None) -> bool:
        if target.id is None:
            return True
        if stored is not None:
            return (stored.data, stored.way) == (target.data, target.way)
        return vault.connections.unchanged(target.id, target.data, target.way)

    admission = Admission(
        vault.principals,
        chain.sealed,
        unchanged,
        forwards_agent=chain.transport.forwards_agent,
        connection=target.id,
        refusal=partial(no_loan_for, vault, chain.hops),
    )
    link = Link(target, chain, transport, helpers, admission)
    link.environment = environment
    link.is_borrowed = access.without_loan is not access
    return link
