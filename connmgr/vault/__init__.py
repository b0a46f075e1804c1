"""The vault: categories, connections and principals in one database."""

from __future__ import annotations

from connmgr.vault.backends import VaultLock, open_database
from connmgr.vault.categories import Categories
from connmgr.vault.category_rows import Category
from connmgr.vault.connection_rows import Connection
from connmgr.vault.connections import Connections
from connmgr.vault.database import Database
from connmgr.vault.vault import Vault

__all__ = ["Categories", "Category", "Connection", "Connections", "Database", "Vault", "VaultLock", "open_database"]
