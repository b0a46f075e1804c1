"""``connmgr vault``: its users, and work on it while no daemon runs."""

from __future__ import annotations

from typing import Any

import click

from connmgr.cli.backup import backup, restore
from connmgr.cli.group import Group
from connmgr.cli.options import read_settings, setting_options
from connmgr.cli.vault_session import lock, status, unlock, user


@click.group(cls=Group)
def vault() -> None:
    """Look after the vault."""


for command in (status, unlock, lock, user, backup, restore):
    vault.add_command(command)


@vault.command(name="rotate-key")
@setting_options("data_dir", "database_url", "key_store")
def rotate_key(**given: Any) -> None:
    """Replace the vault's key, while no daemon runs on the vault.

    Secrets and passphrases stay as they are. If it is interrupted, the next start finds the right key. Daemons that
    share the vault's database must be stopped, and need a copy of the new key.
    """
    settings = read_settings(given)
    from connmgr.daemon.files import private_directory
    from connmgr.daemon.storage import database_url, key_store
    from connmgr.errors import StartupError
    from connmgr.processes import harden
    from connmgr.vault import VaultLock, open_database
    from connmgr.vault.integrity import rotate

    harden()
    private_directory(settings.data_dir, "data directory")
    with VaultLock(settings.data_dir / "lock"):
        database = open_database(database_url(settings))
        try:
            if database.empty:
                raise StartupError("There is no vault yet whose key could be replaced.")
            rotate(database, key_store(settings))
        finally:
            database.close()
    click.echo("The vault has a new key.")
