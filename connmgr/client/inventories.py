"""``client.inventories``: connections that follow a list of hosts.

changes = client.inventories.add("aws", ansible="/srv/aws_ec2.yml", every=900)
print(changes.added, changes.vanished)
"""

from __future__ import annotations

from typing import Any

from connmgr.client.group import Group
from connmgr.contract.inventory import (
    InventoryAddRequest,
    InventoryChanges,
    InventoryInfo,
    InventoryNameRequest,
    InventoryQueryRequest,
    InventoryQueryResponse,
    InventoryRenewRequest,
)

__all__ = ["Inventories", "InventoryChanges", "InventoryInfo"]


class Inventories(Group):
    """``/inventory``."""

    def add(self, name: str, **fields: Any) -> InventoryChanges:
        """Add an inventory and renew it; ``fields`` are those of :class:`InventoryAddRequest`."""
        return self._ask("/inventory/add", InventoryAddRequest(name=name, **fields), InventoryChanges)

    def renew(self, name: str, *, dry_run: bool = False) -> InventoryChanges:
        """Renew an inventory, or show what that would change."""
        return self._ask("/inventory/renew", InventoryRenewRequest(name=name, dry_run=dry_run), InventoryChanges)

    def query(self, name: str | None = None) -> list[InventoryInfo]:
        """Return the inventories, by their names."""
        return self._ask("/inventory/query", InventoryQueryRequest(name=name), InventoryQueryResponse).inventories

    def remove(self, name: str) -> None:
        """Remove an inventory; its connections stay."""
        self._tell("/inventory/remove", InventoryNameRequest(name=name))
