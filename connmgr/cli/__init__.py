"""The command line. It is built on the client; the server is loaded by the commands that run it, and only then."""

from __future__ import annotations

from typing import Any

import click

from connmgr import __version__
from connmgr.cli.api_key import api_key
from connmgr.cli.plugins import plugins
from connmgr.cli.serve import serve
from connmgr.cli.vault import vault
from connmgr.errors import ConnmgrError


class Commands(click.Group):
    """Says in one line what went wrong, and exits with 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ConnmgrError as error:
            raise click.ClickException(error.message) from error


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="connmgr", message="%(prog)s %(version)s")
def main() -> None:
    """Manage connections to machines, over an HTTP API on this machine."""


for command in (serve, api_key, plugins, vault):
    main.add_command(command)
