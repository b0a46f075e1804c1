"""``connmgr trust``: accepts the key of a host, or forgets the known one."""

from __future__ import annotations

import click

from connmgr.cli.address import reach
from connmgr.cli.daemon import connect
from connmgr.cli.exits import Failure
from connmgr.cli.host_key import CHANGED, Doorkeeper
from connmgr.cli.names import ConnectionName
from connmgr.client import Client, ClientError
from connmgr.printable import visible


@click.command()
@click.argument("connection", type=ConnectionName())
@click.option(
    "--fingerprint",
    "fingerprints",
    metavar="SHA256:...",
    multiple=True,
    help="Accept only a key with this fingerprint, without asking. Give it once for each unknown host on the way.",
)
@click.option("--forget", is_flag=True, help="Remove the known keys of a reinstalled host.")
def trust(connection: str, *, fingerprints: tuple[str, ...], forget: bool) -> None:
    """Accept or forget the keys of hosts.

    The hosts are those that CONNECTION leads to. It opens the connection, shows each unknown key, and asks. Compare the
    fingerprint with the host's administrator. Without a terminal, --fingerprint names the key to accept.

    With --forget it removes the known keys of the host whose key has changed, otherwise of the host that CONNECTION
    leads to, from the known_hosts files of connmgr and of the daemon's user.
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
