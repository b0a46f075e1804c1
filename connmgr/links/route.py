"""The hosts that a connection would dial, found without dialling."""

from __future__ import annotations

from connmgr.fields import map_secrets
from connmgr.links.chain import Target, hops_to
from connmgr.plugin import ConnectionType, Dialled
from connmgr.registry import Registry
from connmgr.vault import Connection, Vault


def dialled(vault: Vault, registry: Registry, connection: Connection) -> list[Dialled]:
    """Return the hosts on the way to a connection in dialling order, its own last; raises as :func:`chain.hops_to`.

    :raises connmgr.errors.OperationError: a file on which this depends, such as ssh_config, cannot be used.
    :raises connmgr.errors.UnknownType: no plugin offers the type of a link.
    """
    found: list[Dialled] = []
    for hop in reversed(hops_to(vault, registry, Target.stored(connection))):
        kind = registry.get(hop.type)
        if isinstance(kind, ConnectionType):
            found += kind.dialled(map_secrets(kind.schema(), hop.data, lambda _: ""))
    return found
