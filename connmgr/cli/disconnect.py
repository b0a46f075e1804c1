"""``connmgr disconnect``: end the shells of connections, and their links."""

from __future__ import annotations

import click

from connmgr.cli.address import reach
from connmgr.cli.daemon import connect
from connmgr.cli.names import ConnectionName
from connmgr.cli.output import counted
from connmgr.client import Client, ClientError
from connmgr.printable import visible


@click.command()
@click.argument("connections", metavar="CONNECTION...", type=ConnectionName(), nargs=-1, required=True)
@click.option("--session", metavar="NAME", help="End only the shell of this name.")
def disconnect(connections: tuple[str, ...], session: str | None) -> None:
    """End the shells of connections, and their links.

    Commands in the shells end with them. The next command logs in again. Jobs run on, and so do the shells of
    connections over these.
    """
    client = connect()
    ids = {reach(client, name): name for name in connections}
    for id, name in ids.items():
        shells = [one for one in client.shell.list(id) if session in (None, one.status.session)]
        ended = _stopped(client, id, session)
        said = f"{counted(len(shells), 'shell')} ended" if ended else "no shell runs"
        click.echo(f"{visible(name)}: {said}")


def _stopped(client: Client, id: str, session: str | None) -> bool:
    """Stop one shell or all, and return whether there was any."""
    try:
        client.shell.stop(id, session=session, all=session is None)
    except ClientError as error:
        if error.code != "no_shell":
            raise
        return False
    return True
