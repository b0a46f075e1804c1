"""A live way to a connection's machine, shared by all that runs over it."""

from __future__ import annotations

import threading
from contextlib import ExitStack

from connmgr.engine.helper import Helpers
from connmgr.errors import ShellLost
from connmgr.links.chain import Chain, Target, open_chain
from connmgr.links.spare import SpareTransport
from connmgr.registry import Registry
from connmgr.secrets.principals import Access
from connmgr.vault import Vault
from connmgr.vault.admission import Admission


class Link:
    """An open chain, its helpers, and who may use them. The link closes when its last lessee has gone.

    Safe to use from several threads.
    """

    def __init__(self, chain: Chain, transport: SpareTransport, helpers: Helpers, admission: Admission) -> None:
        self.first = chain.transport
        """Carries the session. Everything beside it goes over ``transport``, which may open a second chain."""
        self.transport = transport
        self.helpers = helpers
        self.admission = admission
        self._chain = chain
        self._lock = threading.Lock()
        self._leases: set[Lease] = set()
        self._closed = False

    def lease(self) -> Lease:
        """Return the right to use the link.

        :raises ShellLost: it is closed.
        """
        lease = Lease(self)
        with self._lock:
            if self._closed:
                raise ShellLost("The link is closed.")
            self._leases.add(lease)
        return lease

    def released(self, lease: Lease) -> None:
        """Take note that a lessee has gone; close the link after the last one. Doing so again does nothing."""
        with self._lock:
            self._leases.discard(lease)
            if self._leases or self._closed:
                return
            self._closed = True
        with ExitStack() as cleanup:
            cleanup.callback(self._chain.close)
            cleanup.callback(self.transport.close)
            self.helpers.close()


class Lease:
    """The right to use a link until :meth:`release`."""

    def __init__(self, link: Link) -> None:
        self.link = link

    def release(self) -> None:
        """Use the link no longer. Calling it again does nothing."""
        self.link.released(self)


def open_link(vault: Vault, registry: Registry, target: Target, access: Access, timeout: float) -> Link:
    """Open a link to ``target`` within ``timeout`` seconds; see :func:`connmgr.links.chain.open_chain` for the errors.

    Whoever calls this leases it.
    """
    chain = open_chain(vault, registry, target, access, timeout)
    helpers = Helpers()
    transport = SpareTransport(
        chain.transport,
        lambda seconds: open_chain(vault, registry, target, access, min(seconds, timeout)),
        helpers.dismiss,
    )

    def unchanged() -> bool:
        return target.id is None or vault.connections.unchanged(target.id, target.data, target.way)

    return Link(chain, transport, helpers, Admission(vault.principals, chain.sealed, unchanged))
