"""``connmgr serve``: run the daemon."""

from __future__ import annotations

import gc
from typing import Any

import click

from connmgr.cli.options import read_settings, setting_options


@click.command()
@setting_options()
def serve(**given: Any) -> None:
    """Run the daemon until it is stopped.

    SIGTERM, Ctrl-C, `connmgr stop` and POST /daemon/stop stop it. It prints one line when it is ready.
    Each option is also the environment variable CONNMGR_<OPTION> and a key of config.toml. An option on the command
    line wins.
    """
    settings = read_settings(given)
    # Garbage collection takes a third of the time of the imports.
    gc.disable()
    from connmgr import daemon

    daemon.serve(settings)
