"""``connmgr add``: store a connection."""

from __future__ import annotations

from typing import Any

import click

from connmgr.cli import fields
from connmgr.cli.daemon import connect
from connmgr.cli.names import find_category
from connmgr.cli.output import json_option, print_json, print_table
from connmgr.client import Client


@click.command()
@click.argument("kind", metavar="TYPE", required=False)
@click.argument("name", required=False)
@click.argument("assignments", metavar="[FIELD=VALUE]...", nargs=-1)
@click.option("--secret", "secrets", metavar="FIELD", multiple=True, help="Ask for a secret field, or read it.")
@click.option("--category", metavar="PATH", help="Where to put it.  [default: default]")
@click.option("--validate", is_flag=True, help="Open it first, and add it only if that succeeds.")
@click.option("--schema", "show", is_flag=True, help="Show the fields of TYPE, or all types, and add nothing.")
@json_option
def add(
    kind: str | None,
    name: str | None,
    assignments: tuple[str, ...],
    secrets: tuple[str, ...],
    category: str | None,
    *,
    validate: bool,
    show: bool,
    as_json: bool,
) -> None:
    """Store a connection and print its uuid. An equivalent one is not stored twice.

    Write a field within a field as identity.file=~/.ssh/id, a list item by item or as JSON, and a connection by its
    name. Secrets never stand on the command line: --secret password asks for it on the terminal. If standard input is
    no terminal, the secrets are read from it, one per line.
    """
    client = connect()
    if show:
        _show(client, kind, as_json=as_json)
        return
    if kind is None or name is None:
        raise click.UsageError("TYPE and NAME are needed; `connmgr add --schema` lists the types.")
    chosen = fields.type_named(client, kind)
    data: dict[str, Any] = {"type": chosen.name}
    fields.apply(client, chosen, data, assignments, secrets)
    where = None if category is None else find_category(client, category)
    added = client.connection.add(name, data, validate=validate, category=where)
    if as_json:
        print_json({"connection": added})
    else:
        click.echo(added)


def _show(client: Client, kind: str | None, *, as_json: bool) -> None:
    if kind is None:
        types = client.connection.types()
        if as_json:
            print_json({one.name: one.schema for one in types})
        else:
            print_table([(one.name, one.description) for one in types])
        return
    chosen = fields.type_named(client, kind)
    if as_json:
        print_json(chosen.schema)
    else:
        print_table([("FIELD", "VALUE", "MEANING"), *fields.described(chosen)])
