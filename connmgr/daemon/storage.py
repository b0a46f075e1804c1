"""The places of the vault and its key, by the settings."""

from __future__ import annotations

from connmgr.secrets.vault_key import KeyFile, KeyStore
from connmgr.settings import Settings


def database_url(settings: Settings) -> str:
    """Return the SQLAlchemy URL of the vault's database."""
    return settings.database_url or f"sqlite:///{settings.data_dir / 'vault.db'}"


def key_store(settings: Settings) -> KeyStore:
    """Return the store of the vault's key.

    :raises StartupError: the settings require a keyring, and there is none.
    """
    if settings.key_store == "keyring":
        from connmgr.secrets.vault_key import Keyring

        return Keyring(settings.data_dir)
    return KeyFile(settings.data_dir / "vault.key")
