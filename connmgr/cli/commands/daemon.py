"""``connmgr status``, ``stop``, ``events`` and ``web``: the running daemon."""

from __future__ import annotations

import os
import sys
import time
import webbrowser

import click

from connmgr.cli.connect import connect
from connmgr.cli.exits import Failure
from connmgr.cli.output import json_option, lasting, plural, print_json, print_table
from connmgr.cli.sessions import at_work, shell_label
from connmgr.client import Client, ClientError, Event, Unreachable
from connmgr.client.shells import ListedShell
from connmgr.contract.daemon import DaemonStatusResponse
from connmgr.contract.event import KINDS, MISSED, STREAM
from connmgr.contract.web import WebTicketResponse as PageTicket
from connmgr.printable import visible

ANSWER_SECONDS = 10.0


@click.command()
@json_option
def status(*, as_json: bool) -> None:
    """Show whether the daemon runs, and its state.

    It also shows what the daemon's shells do. It exits with 3 if no daemon answers.
    """
    client = connect(ANSWER_SECONDS, offers_start=False)
    answer = client.post("/daemon/status")
    vault = client.vault.status()
    connections = len(client.connection.query())
    if as_json:
        unlocked = {"hasUsers": vault.has_users, "user": vault.user}
        shells = client.post("/shell/list")["shells"]
        more = {"connections": connections, "vault": unlocked, "shells": shells}
        print_json({"url": client.base_url, **answer, **more})
        return
    daemon, running = DaemonStatusResponse.read(answer), client.shell.list()
    locked = f"unlocked by {vault.user}" if vault.user else "locked" if vault.has_users else "without users"
    print_table(
        [
            ("daemon", f"connmgr {daemon.version} on {daemon.runtime}, process {daemon.pid}"),
            ("listens on", client.base_url),
            ("runs for", lasting(daemon.uptime)),
            ("vault", f"{plural(connections, 'connection')}, {locked}"),
            ("in use", f"{daemon.slots.in_use} of {daemon.slots.count} slots, by {plural(daemon.clients, 'client')}"),
            *([("audit log", f"entries that could not be written: {daemon.audit_lost}")] if daemon.audit_lost else []),
            ("shells", str(len(running))),
        ]
    )
    _print_shells(client, running)
    _print_runs(client)


def _print_shells(client: Client, shells: list[ListedShell]) -> None:
    if not shells:
        return
    paths = {info.id: info.path for info in client.connection.info([shell.status.connection for shell in shells])}
    rows = []
    for shell in shells:
        path, session = paths[shell.status.connection], shell.status.session
        name = path if session is None else f"{path} [{shell_label(session)}]"
        rows.append((name, at_work(shell), f"started {lasting(shell.status.uptime)} ago", shell.directory))
    print_table(sorted(rows), indent="  ")


def _print_runs(client: Client) -> None:
    """Show the runs under way and the daemons that work on them, unless the token may not see runs."""
    from connmgr.contract.run import UNDER_WAY

    try:
        runs = client.runs.query(UNDER_WAY)
    except ClientError:
        return
    if runs:
        click.echo("runs")
    rows = [
        (
            run.name or run.run[:8],
            run.state,
            f"{run.targets - run.counts['waiting'] - run.counts['starting']} of {run.targets}",
            f"{run.counts['starting']} run",
            f"on {', '.join(run.daemons)}" if run.daemons else "",
        )
        for run in runs
    ]
    print_table(rows, indent="  ")


STOP_SECONDS = 20.0
POLL_SECONDS = 0.05


@click.command()
def stop() -> None:
    """Stop the daemon, and wait for its end. Running commands get 5 seconds."""
    client = connect(STOP_SECONDS, offers_start=False)
    client.daemon.stop()
    # Asked again and again, because a process that ends says nothing.
    deadline = time.monotonic() + STOP_SECONDS
    while time.monotonic() < deadline:
        try:
            client.daemon.version()
        except Unreachable as error:
            if not error.sent:
                click.echo("The daemon has stopped.")
                return
        except ClientError:
            # The daemon answered that it is stopping; it does so until its commands have ended.
            pass
        time.sleep(POLL_SECONDS)
    raise Failure(f"The daemon still runs after {STOP_SECONDS:g} seconds; `connmgr status` shows what it does.")


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
    # A clone, because the stream of events occupies the client's connection.
    names = _Names(client.clone())
    for event in client.events(list(kinds) or None, after):
        if as_json:
            print_json(event, indent=None)
        elif event.kind != STREAM:
            click.echo(_line(event, names))
        elif event.change == MISSED:
            click.echo("Some events were missed.", err=True)


class _Names:
    """The paths of connections, each asked for once; the uuid of one that cannot be read."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._paths: dict[str, str] = {}

    def of(self, event: Event) -> str:
        """Return the name of the connection of an event."""
        id = event.connection
        if id is None:
            return ""
        if event.kind == "connection" and event.name is not None:
            self._paths[id] = event.name
        if id not in self._paths:
            try:
                self._paths[id] = self._client.connection.info([id])[0].path
            except ClientError:
                self._paths[id] = id
        return self._paths[id]


def _line(event: Event, names: _Names) -> str:
    name = names.of(event)
    about = [name, event.session, None if event.name == name else event.name, event.id, event.address]
    ended = None if event.exit_code is None else f"exit code {event.exit_code}"
    words = [event.kind, event.change, *(word for word in (*about, ended, event.code) if word)]
    return visible(f"{event.time.astimezone():%H:%M:%S}  {'  '.join(words)}")


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
