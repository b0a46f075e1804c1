"""``connmgr rm``: remove connections."""

from __future__ import annotations

import sys

import click

from connmgr.cli.daemon import connect
from connmgr.cli.names import ConnectionName
from connmgr.client.names import qualified
from connmgr.printable import visible


@click.command()
@click.argument("connections", metavar="CONNECTION...", type=ConnectionName(), nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
def rm(connections: tuple[str, ...], *, yes: bool) -> None:
    """Remove connections, and all that run over them. Their shells are stopped.

    It asks first. Without a terminal to ask on, it needs --yes.
    """
    client = connect()
    ids = list(dict.fromkeys(client.connection.find(name) for name in connections))
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("There is no terminal to ask on: give --yes.")
        names = ", ".join(visible(qualified(one)) for one in client.connection.info(ids))
        click.confirm(f"Remove {names}, and what runs over it?", abort=True, err=True)
    client.connection.remove(ids)
