"""``connmgr mv``: give a connection another name or category."""

from __future__ import annotations

import click

from connmgr.cli.daemon import connect
from connmgr.cli.names import ConnectionName, ensure_category


@click.command()
@click.argument("connection", type=ConnectionName())
@click.argument("name", required=False)
@click.option("--category", metavar="PATH", help="The category to move it to; created if missing.")
def mv(connection: str, name: str | None, category: str | None) -> None:
    """Rename a connection, or change its category. Its uuid stays.

    Connections in it that share its category move with it.
    """
    if name is None and category is None:
        raise click.UsageError("Nothing to change: give NAME, --category or both.")
    client = connect()
    where = None if category is None else ensure_category(client, category)
    client.connection.update(client.connection.find(connection), name=name, category=where)
