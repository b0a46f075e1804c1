"""``connmgr exec --detach``: starts a command as a job."""

from __future__ import annotations

from typing import Any

import click

from connmgr.cli.output import print_json
from connmgr.client import Client
from connmgr.printable import visible


def start_job(client: Client, connection: str, *, open_input: bool | None, as_json: bool, **options: Any) -> None:
    """Start a command as a job beside the connection's shell, and print the job's uuid."""
    if open_input:
        from connmgr.client.jobs import OPEN

        options["stdin"] = OPEN
    started = client.jobs.start(connection, **options)
    if started.warning is not None:
        click.echo(f"connmgr: {visible(started.warning)}", err=True)
    if as_json:
        print_json({"job": started.id} | ({} if started.warning is None else {"warning": started.warning}))
    else:
        click.echo(started.id)
