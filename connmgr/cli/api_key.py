"""``connmgr api-key``: the key for clients that cannot read the auth file."""

from __future__ import annotations

from typing import Any

import click

from connmgr.cli.options import read_settings, setting_options


@click.command(name="api-key")
@click.option("--rotate", is_flag=True, help="Replace it. A running daemon accepts the new key at once.")
@setting_options("data_dir")
def api_key(*, rotate: bool, **given: Any) -> None:
    """Print the API key. The first call creates it."""
    settings = read_settings(given)
    from connmgr.daemon import apikey

    click.echo(apikey.make(settings.data_dir, rotate=rotate))
