"""What every daemon computes once at its start: daemons are forked after it (tests/spawner.py)."""

from __future__ import annotations

import tempfile

from connmgr.api.app import endpoints
from connmgr.registry import Registry
from connmgr.secrets.vault_key import VaultKey
from connmgr.vault import Vault, open_database

endpoints()
Registry.load()
with tempfile.TemporaryDirectory(prefix="cm-") as directory:
    Vault(open_database(f"sqlite:///{directory}/vault.db"), VaultKey(bytes(32))).close()
