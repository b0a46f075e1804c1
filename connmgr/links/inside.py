"""The systems inside a connection, such as containers, listed by its type over its link."""

from __future__ import annotations

from itertools import islice
from typing import Any

from connmgr.errors import OperationError
from connmgr.fields import map_secrets
from connmgr.links.table import LinkTable
from connmgr.plugin import LEAST_SECONDS, Child, Deadline, Described
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

        def unseal(secret: Any) -> str:
            return secret if isinstance(secret, str) else vault.principals.unseal(secret, access)

        # The secrets of this data are used on the link that was opened to the same data.
        plain = map_secrets(kind.schema(), lease.link.target.data, unseal)
        found = kind.children(lease.link.transport, plain, timeout=deadline.left(LEAST_SECONDS))
        children = list(islice(found, MAX_CHILDREN + 1))
    finally:
        lease.release()
    if len(children) > MAX_CHILDREN:
        raise OperationError(
            f"There are more than {MAX_CHILDREN:,} systems inside: restrict the listing in the connection's data."
        )
    return children
