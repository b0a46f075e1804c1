"""``connmgr api-key``: the key for clients that cannot read the auth file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from connmgr.cli.options import read_settings, setting_options
from connmgr.cli.private_file import check_new, write_private
from connmgr.printable import visible


@click.command(name="api-key")
@click.option("--rotate", is_flag=True, help="Replace it. A running daemon accepts the new key at once.")
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write it into the new FILE, which only you can read, instead of standard output.",
)
@click.option("--force", is_flag=True, help="Let --output overwrite FILE if it exists.")
@setting_options("data_dir")
def api_key(output: Path | None, *, rotate: bool, force: bool, **given: Any) -> None:
    """Print the API key, or write it into a file. The first call creates it."""
    settings = read_settings(given)
    if force and output is None:
        raise click.UsageError("--force is for --output.")
    if output is not None:
        check_new(output, force=force)
    from connmgr.daemon import apikey

    key = apikey.make(settings.data_dir, rotate=rotate)
    if output is None:
        click.echo(key)
    else:
        write_private(output, f"{key}\n", replace=force)
        click.echo(f"The API key is in {visible(str(output))}.", err=True)
