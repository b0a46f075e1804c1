from __future__ import annotations

# The vault on both databases.
from tests.vault.conftest import open_vault, postgres, renewed, url, vault

__all__ = ["open_vault", "postgres", "renewed", "url", "vault"]
