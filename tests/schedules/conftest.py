from __future__ import annotations

# The vault on both databases.
from tests.vault.conftest import new_file, open_vault, postgres, renewed, url, vault

__all__ = ["new_file", "open_vault", "postgres", "renewed", "url", "vault"]
