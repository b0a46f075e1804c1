"""``connmgr edit``: change the fields of a connection."""

from __future__ import annotations

import click

from connmgr.cli import fields
from connmgr.cli.daemon import connect
from connmgr.cli.names import ConnectionName


@click.command()
@click.argument("connection", type=ConnectionName())
@click.argument("assignments", metavar="[FIELD=VALUE]...", nargs=-1)
@click.option("--secret", "secrets", metavar="FIELD", multiple=True, help="Ask for a secret field, or read it.")
@click.option("--unset", metavar="FIELD", multiple=True, help="Remove a field, so that it has its default.")
@click.option("--validate", is_flag=True, help="Open it with the changes first, and store them only if that succeeds.")
def edit(
    connection: str, assignments: tuple[str, ...], secrets: tuple[str, ...], unset: tuple[str, ...], *, validate: bool
) -> None:
    """Change fields of a connection. The others stay.

    Write fields as for connmgr add. A shell on the connection is stopped.
    """
    if not (assignments or secrets or unset):
        raise click.UsageError("Nothing to change: give FIELD=VALUE, --secret FIELD or --unset FIELD.")
    client = connect()
    id = client.connection.find(connection)
    stored = client.connection.info([id])[0]
    kind = fields.type_named(client, stored.type)
    data = {"type": stored.type, **stored.data}
    fields.unset(kind, data, unset)
    fields.apply(client, kind, data, assignments, secrets)
    client.connection.update(id, data=data, validate=validate)
