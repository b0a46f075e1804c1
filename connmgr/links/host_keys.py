"""The known keys of the hosts that a connection leads to. A caller who may open the connection may change them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from connmgr.errors import InvalidRequest
from connmgr.fields import map_secrets
from connmgr.links.chain import Target, permitted_hops
from connmgr.plugin import ConnectionType, ForgottenKey
from connmgr.registry import Registry
from connmgr.secrets.principals import Access
from connmgr.vault import Vault


def trust(vault: Vault, registry: Registry, connection: str, host: str, key: str, access: Access) -> None:
    """Accept ``key`` for ``host``; raise as :func:`forget`, and HostKeyChanged if another is known or it is revoked."""
    if not any(kind.trust_host_key(data, host, key) for kind, data in _way(vault, registry, connection, access)):
        raise _leads_elsewhere(host)


def forget(
    vault: Vault, registry: Registry, connection: str, host: str | None, access: Access
) -> Sequence[ForgottenKey]:
    """Remove the known keys of ``host``, by default of the nearest host that has any on the connection's chain.

    :raises InvalidRequest: no link of the connection leads there, or a given key is malformed.
    :raises connmgr.errors.SecretLocked: ``access`` may not open the connection.
    """
    for kind, data in _way(vault, registry, connection, access):
        found = kind.forget_host_keys(data, host)
        if found is not None:
            return found
    raise _leads_elsewhere(host)


def _way(
    vault: Vault, registry: Registry, connection: str, access: Access
) -> Iterator[tuple[ConnectionType, Mapping[str, Any]]]:
    target = Target.stored(vault.connections.get(connection))
    hops, _ = permitted_hops(vault, registry, target, access)
    for hop in hops:
        kind = registry.get(hop.type)
        if isinstance(kind, ConnectionType):
            yield kind, map_secrets(kind.schema(), hop.data, lambda _: None)


def _leads_elsewhere(host: str | None) -> InvalidRequest:
    if host is None:
        return InvalidRequest("connection: It leads to no host that has keys.")
    return InvalidRequest("host: No link of this connection leads to a host of that name that has keys.")
