"""``connmgr serve``: run the daemon."""

from __future__ import annotations

import gc
from typing import Any

import click

from connmgr.cli.options import read_settings, setting_options


@click.command()
@setting_options()
def serve(**given: Any) -> None:
    """Run the daemon until it is stopped by a signal or by POST /daemon/stop.

    It prints one line when it is ready. Each option can also be set by the environment variable CONNMGR_<OPTION> or in
    config.toml; an option given here wins.
    """
    settings = read_settings(given)
    # Collecting takes a third of the time of the imports.
    gc.disable()
    from connmgr import daemon

    daemon.serve(settings)
