"""``connmgr vault backup`` and ``connmgr vault restore``: copies of the vault, also while a daemon runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from connmgr.cli.options import read_settings, setting_options

_KEY_NOT_INCLUDED = "The vault's key is not part of it, and no secret can be read without: keep a copy of it elsewhere."


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@setting_options("data_dir", "database_url")
def backup(file: Path, **given: Any) -> None:
    """Write the vault into the new FILE, which only you can read. Daemons on the vault keep running.

    FILE has everything except the vault's key.
    """
    settings = read_settings(given)
    from connmgr.daemon.storage import database_url
    from connmgr.errors import StartupError
    from connmgr.secrets.process import harden
    from connmgr.vault import open_database
    from connmgr.vault.backup import backup as write

    harden()
    if not settings.database_url and not (settings.data_dir / "vault.db").exists():
        raise StartupError("There is no vault yet that could be backed up.")
    database = open_database(database_url(settings))
    try:
        if database.empty:
            raise StartupError("There is no vault yet that could be backed up.")
        database.prepare()
        write(database, file)
    finally:
        database.close()
    click.echo(f"The vault is in {file}.\n{_KEY_NOT_INCLUDED}")


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@setting_options("data_dir", "database_url")
def restore(file: Path, **given: Any) -> None:
    """Restore the vault from the backup FILE.

    The data directory, or the PostgreSQL database, must be empty. Then put the vault's key into the data directory,
    before you start a daemon.
    """
    settings = read_settings(given)
    from connmgr.secrets.process import harden
    from connmgr.vault import backup as copies
    from connmgr.vault import open_database

    harden()
    if settings.database_url:
        database = open_database(settings.database_url)
        try:
            copies.restore_into(file, database)
        finally:
            database.close()
    else:
        copies.restore(file, settings.data_dir)
    click.echo(f"The vault is restored. Put its key, vault.key, into {settings.data_dir} before you start a daemon.")
