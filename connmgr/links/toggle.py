"""Starts and stops the system that a connection leads to, over the link of its host's connection."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from connmgr.errors import NotToggleable
from connmgr.fields import map_secrets
from connmgr.links.table import LinkTable
from connmgr.plugin import LEAST_SECONDS, Deadline, Toggled, Transport
from connmgr.registry import Registry
from connmgr.secrets.principals import Access
from connmgr.vault import Connection, Vault


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
        raise NotToggleable(f"A connection of type {record.type} leads to nothing that can be started and stopped.")
    deadline = Deadline(timeout)
    via = record.data.get(kind.via) if kind.via else None
    # Checks that the secrets go where the authenticated row leads.
    vault.connections.way([via] if via else [], record.way)

    def unseal(secret: Any) -> str:
        return secret if isinstance(secret, str) else vault.principals.unseal(secret, access)

    plain = map_secrets(kind.schema(), record.data, unseal)
    with ExitStack() as cleanup:
        transport: Transport | None = None
        if via is not None:
            lease = links.lease(via, access, timeout)
            cleanup.callback(lease.release)
            transport = lease.link.transport
        kind.toggle(transport, plain, state, timeout=deadline.left(LEAST_SECONDS))
