"""``connmgr status``: whether the daemon runs, and with what load."""

from __future__ import annotations

import click

from connmgr.cli.daemon import connect
from connmgr.cli.output import counted, json_option, lasting, print_json, print_table
from connmgr.client import Client, DaemonStatus, RunningShell

ANSWER_SECONDS = 10.0


@click.command()
@json_option
def status(*, as_json: bool) -> None:
    """Show whether the daemon runs, and how it is. Exits with 3 if none answers."""
    client = connect(ANSWER_SECONDS, offers_start=False)
    answer = client.post("/daemon/status")
    vault = client.vault.status()
    connections = len(client.connection.query())
    if as_json:
        unlocked = {"hasUsers": vault.has_users, "user": vault.user}
        print_json({"url": client.base_url, **answer, "connections": connections, "vault": unlocked})
        return
    found = DaemonStatus.read(answer)
    locked = f"unlocked by {vault.user}" if vault.user else "locked" if vault.has_users else "without users"
    print_table(
        [
            ("daemon", f"connmgr {found.version} on {found.runtime}, process {found.pid}"),
            ("listens on", client.base_url),
            ("runs for", lasting(found.uptime)),
            ("vault", f"{counted(connections, 'connection')}, {locked}"),
            ("in use", f"{found.slots_in_use} of {found.slots} slots, by {counted(found.clients, 'client')}"),
            ("shells", str(len(found.shells))),
        ]
    )
    _print_shells(client, found.shells)


def _print_shells(client: Client, shells: list[RunningShell]) -> None:
    if not shells:
        return
    named = {one.id: one.path for one in client.connection.info([one.connection for one in shells])}
    rows = [
        (
            _label(named[one.connection], one.session),
            one.state,
            f"runs for {lasting(one.uptime)}",
            f"idle for {lasting(one.idle)}",
        )
        for one in shells
    ]
    print_table(sorted(rows), indent="  ")


def _label(path: str, session: str | None) -> str:
    return path if session is None else f"{path} [{session}]"
