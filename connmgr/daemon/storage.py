"""Where the settings say that the vault and its key are kept."""

from __future__ import annotations

from connmgr.secrets.keyfile import KeyFile, KeyStore
from connmgr.settings import Settings


def database_url(settings: Settings) -> str:
    """Return the SQLAlchemy URL of the vault's database."""
    return settings.database_url or f"sqlite:///{settings.data_dir / 'vault.db'}"


def key_store(settings: Settings) -> KeyStore:
    """Return the store of the vault's key.

    :raises StartupError: the settings ask for a keyring, and there is none.
    """
    if settings.key_store == "keyring":
        from connmgr.secrets.keyring import Keyring

        return Keyring(settings.data_dir)
    return KeyFile(settings.data_dir / "vault.key")
