"""``connmgr status``: whether the daemon runs, and how it is."""

from __future__ import annotations

from typing import Any

import click

from connmgr.cli.daemon import connect
from connmgr.cli.output import json_option, print_json, print_table

TIMEOUT = 10.0


@click.command()
@json_option
def status(*, as_json: bool) -> None:
    """Show whether the daemon runs, and how it is; exits with 3 where none answers."""
    client = connect(TIMEOUT)
    version = client.daemon.version()
    vault = client.vault.status()
    shown: dict[str, Any] = {
        "url": client.base_url,
        "version": version.build,
        "runtime": version.runtime,
        "connections": len(client.connection.query()),
        "vault": {"hasUsers": vault.has_users, "user": vault.user},
    }
    if as_json:
        print_json(shown)
        return
    unlocked = f"unlocked by {vault.user}" if vault.user else "locked" if vault.has_users else "has no users"
    print_table(
        [
            ("daemon", f"running at {client.base_url}"),
            ("version", f"{version.build} on {version.runtime}"),
            ("vault", f"{unlocked}, {shown['connections']} connections"),
        ]
    )
