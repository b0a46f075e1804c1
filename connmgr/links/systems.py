"""The systems inside a connection, such as containers: listed, started and stopped over the link of their host."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import islice

from connmgr.errors import NotToggleable, OperationError
from connmgr.links.chain import opened_data
from connmgr.links.table import LinkTable
from connmgr.plugin import LEAST_SECONDS, Child, Deadline, Described, Toggled, Transport
from connmgr.registry import Registry
from connmgr.secrets.principals import Access
from connmgr.vault import Connection, Vault

MAX_CHILDREN = 10_000
"""Most systems inside one connection."""


def holds_others(registry: Registry, name: str) -> bool:
    """Whether connections of this type may have systems inside."""
    return type(registry.get(name)).children is not Described.children


def children_of(
    vault: Vault, registry: Registry, links: LinkTable, record: Connection, access: Access, timeout: float
) -> list[Child]:
    """Return the systems inside ``record``, found within ``timeout`` seconds.

    :raises connmgr.errors.SecretLocked: ``access`` may not open a secret that this needs.
    :raises connmgr.errors.ConnmgrError: they could not be listed.
    """
    deadline = Deadline(timeout)
    kind = registry.get(record.type)
    lease = links.lease(record.id, access, timeout)
    try:
        # The secrets of this data are used on the link that was opened to the same data.
        plain = opened_data(vault, registry, record.type, lease.link.target.data, access, deadline)
        listed = kind.children(lease.link.transport, plain, timeout=deadline.left(LEAST_SECONDS))
        children = list(islice(listed, MAX_CHILDREN + 1))
    finally:
        lease.release()
    if len(children) > MAX_CHILDREN:
        raise OperationError(
            f"There are more than {MAX_CHILDREN:,} systems inside: restrict the listing in the connection's data."
        )
    return children


def toggle(
    vault: Vault,
    registry: Registry,
    links: LinkTable,
    record: Connection,
    state: bool,
    access: Access,
    timeout: float,
) -> None:
    """Start or stop the system that ``record`` leads to, within ``timeout`` seconds.

    :raises NotToggleable: its type does not support this.
    :raises connmgr.errors.SecretLocked: ``access`` may not open a secret that this needs.
    :raises connmgr.errors.ConnmgrError: it failed.
    """
    kind = registry.get(record.type)
    if not isinstance(kind, Toggled):
        raise NotToggleable(f"Connections of type {record.type} cannot be started and stopped.")
    deadline = Deadline(timeout)
    via = record.data.get(kind.via) if kind.via else None
    # Checks that the secrets go where the authenticated row leads.
    vault.connections.carriers_of([via] if via else [], record.dependency_digest)
    plain = opened_data(vault, registry, record.type, record.data, access, deadline)
    with ExitStack() as cleanup:
        transport: Transport | None = None
        if via is not None:
            lease = links.lease(via, access, timeout)
            cleanup.callback(lease.release)
            transport = lease.link.transport
        kind.toggle(transport, plain, state, timeout=deadline.left(LEAST_SECONDS))
