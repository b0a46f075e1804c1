"""``connmgr export``: prints the vault's connections as a file for ``connmgr apply``."""

from __future__ import annotations

import click

from connmgr.cli.daemon import connect
from connmgr.cli.document import written
from connmgr.cli.output import json_option, print_json
from connmgr.cli.stored import Stored
from connmgr.cli.yaml_file import dump
from connmgr.client import Client

DEFAULT = ("default",)


@click.command()
@json_option
def export(*, as_json: bool) -> None:
    """Print all connections as YAML.

    connmgr apply reads it. Categories are part of it. No secret is printed, encrypted or not: `{secret: kept}` stands
    in its place. Connections refer to each other by their paths. Fields with their default are left out. It is no
    backup: jobs, users and host keys are not part of it.
    """
    client = connect()
    document = written(Stored(client), categories(client))
    if as_json:
        print_json(document)
    else:
        click.echo(dump(document), nl=False)


def categories(client: Client) -> list[tuple[str, ...]]:
    """Return the paths of all categories except the root and the default one, in their order."""
    paths = [one.name[1:] for one in client.category.info(client.category.query())]
    return [path for path in paths if path and path != DEFAULT]
