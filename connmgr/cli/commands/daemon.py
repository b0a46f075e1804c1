"""``connmgr status`` and ``stop``: the running daemon."""

from __future__ import annotations

import time

import click

from connmgr.cli.connect import connect
from connmgr.cli.exits import Failure
from connmgr.cli.output import counted, json_option, lasting, print_json, print_table
from connmgr.cli.sessions import at_work, shell_label
from connmgr.client import Client, ClientError, Unreachable
from connmgr.client.shells import ListedShell
from connmgr.contract.daemon import DaemonStatusResponse

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
            ("vault", f"{counted(connections, 'connection')}, {locked}"),
            ("in use", f"{daemon.slots.in_use} of {daemon.slots.count} slots, by {counted(daemon.clients, 'client')}"),
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
    """Show who works on the runs under way; a daemon or a token that cannot tell has none."""
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
    deadline = time.monotonic() + STOP_SECONDS
    while time.monotonic() < deadline:
        try:
            client.daemon.version()
        except Unreachable as error:
            if not error.sent:
                click.echo("The daemon has stopped.")
                return
        except ClientError:
            # The daemon answered that it is stopping.
            pass
        time.sleep(POLL_SECONDS)
    raise Failure(f"The daemon still runs after {STOP_SECONDS:g} seconds; `connmgr status` shows what it does.")
