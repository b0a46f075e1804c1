"""``connmgr events``: prints what changes at the daemon, as it happens."""

from __future__ import annotations

import click

from connmgr.cli.connect import connect
from connmgr.cli.output import json_option, print_json
from connmgr.client import Client, ClientError, Event
from connmgr.contract.event import KINDS, MISSED, STREAM
from connmgr.contract.message import to_json
from connmgr.printable import visible


@click.command()
@click.option(
    "--kind",
    "kinds",
    metavar="KIND",
    type=click.Choice(KINDS),
    multiple=True,
    help=f"Only events of this kind: {', '.join(KINDS)}. Repeatable.",
)
@click.option(
    "--after", metavar="NUMBER", type=click.IntRange(0), help="Begin after the event of this number, instead of now."
)
@json_option
def events(kinds: tuple[str, ...], after: int | None, *, as_json: bool) -> None:
    """Print what changes, as it happens, until Ctrl-C.

    Each line has the time, the kind, the change, and the connection or name. With --json each line is the event as the
    API has it; the first one tells that the stream has begun. When the daemon restarts, the command goes on.
    """
    client = connect()
    names = _Names(client.clone())
    for event in client.events(list(kinds) or None, after):
        if as_json:
            print_json(to_json(event), indent=None)
        elif event.kind != STREAM:
            click.echo(_line(event, names))
        elif event.change == MISSED:
            click.echo("Some events were missed.", err=True)


class _Names:
    """The paths of connections, each asked for once; the uuid of one that cannot be read."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[str, str] = {}

    def of(self, event: Event) -> str:
        """Return the name of the connection of an event."""
        id = event.connection
        if id is None:
            return ""
        if event.kind == "connection" and event.name is not None:
            self._known[id] = event.name
        if id not in self._known:
            try:
                self._known[id] = self._client.connection.info([id])[0].path
            except ClientError:
                self._known[id] = id
        return self._known[id]


def _line(event: Event, names: _Names) -> str:
    name = names.of(event)
    about = [name, event.session, None if event.name == name else event.name, event.id, event.address]
    ended = None if event.exit_code is None else f"exit code {event.exit_code}"
    words = [event.kind, event.change, *(one for one in (*about, ended, event.code) if one)]
    return visible(f"{event.time.astimezone():%H:%M:%S}  {'  '.join(words)}")
