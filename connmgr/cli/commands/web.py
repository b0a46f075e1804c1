"""``connmgr web``: the daemon's page in a browser."""

from __future__ import annotations

import os
import sys
import webbrowser

import click

from connmgr.cli.connect import connect
from connmgr.client import Client
from connmgr.contract.web import WebTicketResponse as PageTicket

ANSWER_SECONDS = 10.0


@click.command()
@click.option("--print", "prints", is_flag=True, help="Print the address instead of opening a browser.")
def web(*, prints: bool) -> None:
    """Open the daemon's page in a browser.

    The page has the rights of this command: the owner's, or those of the token that --token-file names. Its address
    logs in once, within 60 seconds; later `connmgr web` makes another one.
    """
    client = connect(ANSWER_SECONDS)
    if prints:
        click.echo(_address(client, client.web.ticket()))
        return
    # Other users see the words of the browser's process.
    if _has_display() and webbrowser.open(_address(client, client.web.ticket(same_user=True))):
        return
    ticket = client.web.ticket()
    click.echo(f"No browser was found here. Open this address within {ticket.valid:g} seconds:", err=True)
    click.echo(_address(client, ticket))


def _address(client: Client, ticket: PageTicket) -> str:
    return f"{client.base_url}/#login={ticket.ticket}"


def _has_display() -> bool:
    """Whether a browser would open a window of its own, and not take over this terminal."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
