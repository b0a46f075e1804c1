"""``connmgr stop``: end the daemon."""

from __future__ import annotations

import time

import click

from connmgr.cli.daemon import connect
from connmgr.cli.exits import Failure
from connmgr.client import ClientError, Unreachable

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
    raise Failure(f"The daemon still runs after {STOP_SECONDS:g} seconds.")
