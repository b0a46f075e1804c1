"""``connmgr trust``: accept the key of a host, or forget the one that is known."""

from __future__ import annotations

import click

from connmgr.cli.address import reach
from connmgr.cli.daemon import connect
from connmgr.cli.exits import Failure
from connmgr.cli.host_key import CHANGED, Doorkeeper
from connmgr.cli.names import ConnectionName
from connmgr.cli.output import visible
from connmgr.client import Client, ClientError


@click.command()
@click.argument("connection", type=ConnectionName())
@click.option(
    "--fingerprint",
    "fingerprints",
    metavar="SHA256:...",
    multiple=True,
    help="Accept a key with this fingerprint, and no other, without asking. Once for each unknown host on the way.",
)
@click.option("--forget", is_flag=True, help="Remove the known keys of a host that was set up anew.")
def trust(connection: str, *, fingerprints: tuple[str, ...], forget: bool) -> None:
    """Accept or forget the keys of hosts.

    They are those that CONNECTION leads to. It opens the connection, shows each key that is not known, and asks.
    Compare the fingerprint with the host's administrator. Where there is no terminal to ask on, --fingerprint says what
    to accept.

    With --forget it removes the known keys of the host whose key has changed, or else of the one that CONNECTION leads
    to, from the known_hosts files of connmgr and of the daemon's user.
    """
    if forget and fingerprints:
        raise click.UsageError("--forget and --fingerprint are two steps.")
    client = connect()
    id = reach(client, connection)
    if forget:
        _forget(client, id)
        return
    doorkeeper = Doorkeeper(client, fingerprints)
    client.remedy(doorkeeper.admits)
    client.connection.refresh(id)
    if not doorkeeper.admitted:
        click.echo("The key of every host on the way was known.")


def _forget(client: Client, id: str) -> None:
    client.remedy(None)
    host = None
    try:
        client.connection.refresh(id)
    except ClientError as error:
        if error.code == CHANGED:
            host = error.details.get("host")
    keys = client.hostkey.forget(id, host)
    for one in keys:
        if not one.kept:
            click.echo(f"forgotten  {visible(one.key)} ({visible(one.place)})")
    kept = [
        f"{visible(one.key)} is still known ({visible(one.place)}): {visible(one.kept)}." for one in keys if one.kept
    ]
    if kept:
        raise Failure("\n".join(kept))
    if not keys:
        click.echo("No key of the host was known.")
