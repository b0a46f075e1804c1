"""``connmgr vault backup`` and ``connmgr vault restore``: copies of the vault, also while a daemon runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from connmgr.cli.options import read_settings, setting_options
from connmgr.cli.output import counted, json_option, print_json, print_table
from connmgr.printable import visible

if TYPE_CHECKING:
    from connmgr.vault.backup import Contents

_KEY_NOT_INCLUDED = "The vault's key is not part of it, and no secret can be read without: keep a copy of it elsewhere."


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@json_option
@setting_options("data_dir", "database_url")
def backup(file: Path, *, as_json: bool, **given: Any) -> None:
    """Write the vault into the new FILE, which only you can read. Daemons on the vault keep running.

    FILE has connections, users, tokens, saved commands, approvals and jobs, and the files that connection types keep in
    the data directory, such as known_hosts. It does not have the vault's key; the output lists what else is left out.
    """
    settings = read_settings(given)
    from connmgr.daemon.storage import database_url
    from connmgr.errors import StartupError
    from connmgr.processes import harden
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
        contents = write(database, file, settings.data_dir)
    finally:
        database.close()
    if as_json:
        print_json(_as_json(contents))
        return
    click.echo(f"The vault is in {visible(str(file))}: {_listed(contents)}.\n{_KEY_NOT_INCLUDED}")
    _tell_left_out(contents)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_option
@setting_options("data_dir", "database_url")
def restore(file: Path, *, as_json: bool, **given: Any) -> None:
    """Restore the vault from the backup FILE.

    The data directory, or the PostgreSQL database, must be empty. Then put the vault's key into the data directory,
    before you start a daemon.
    """
    settings = read_settings(given)
    from connmgr.processes import harden
    from connmgr.vault import backup as copies
    from connmgr.vault import open_database

    harden()
    if settings.database_url:
        database = open_database(settings.database_url)
        try:
            contents = copies.restore_into(file, database, settings.data_dir)
        finally:
            database.close()
    else:
        _, contents = copies.restore(file, settings.data_dir)
    if as_json:
        print_json(_as_json(contents))
        return
    origin = f", as of {contents.created}, by connmgr {contents.version}" if contents.created else ""
    click.echo(f"The vault is restored{origin}: {_listed(contents)}.")
    if not contents.format:
        click.echo("This backup was made before backups had files: host keys that were trusted must be trusted anew.")
    click.echo(f"Put its key, vault.key, into {settings.data_dir} before you start a daemon.")
    _tell_left_out(contents)


def _listed(contents: Contents) -> str:
    rows = [f"{number} {_one(what) if number == 1 else what}" for what, number in contents.numbers.items() if number]
    return ", ".join([*rows, *(f"{visible(name)} ({_lines(text)})" for name, text in contents.files.items())])


def _one(plural: str) -> str:
    return plural[:-3] + "y" if plural.endswith("ies") else plural.removesuffix("s")


def _lines(content: bytes) -> str:
    return counted(len(content.splitlines()), "line")


def _tell_left_out(contents: Contents) -> None:
    rows = [(one.name, counted(len(one.files), "file"), f"{one.size:,} bytes", one.reason) for one in contents.left_out]
    if rows:
        click.echo("\nNot part of it are:")
        print_table(rows, indent="  ")
    click.echo("Nor are config.toml, and files that connections name: keys, ~/.ssh/config, ~/.ssh/known_hosts.")


def _as_json(contents: Contents) -> dict[str, Any]:
    return {
        "format": contents.format,
        "created": contents.created,
        "version": contents.version,
        "numbers": contents.numbers,
        "files": {name: len(content) for name, content in contents.files.items()},
        "leftOut": [{"name": one.name, "reason": one.reason, "files": one.files} for one in contents.left_out],
    }
