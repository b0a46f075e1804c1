"""``connmgr add``: store a connection."""

from __future__ import annotations

import shlex
from typing import Any

import click

from connmgr.cli import fields
from connmgr.cli.daemon import connect
from connmgr.cli.names import check_name, ensure_category
from connmgr.cli.output import json_option, print_json, print_table
from connmgr.client import Client
from connmgr.client.names import qualified
from connmgr.printable import visible


@click.command()
@click.argument("kind", metavar="TYPE", required=False)
@click.argument("name", required=False)
@click.argument("assignments", metavar="[FIELD=VALUE]...", nargs=-1)
@click.option("--secret", "secrets", metavar="FIELD", multiple=True, help="Ask for a secret field, or read it.")
@click.option("--category", metavar="PATH", help="The category to put it in; created if missing.")
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
    """Store a connection and print its uuid. An equivalent one is not stored twice; the existing one's name is shown.

    Without --category it is put into the category of the connection that it is in, or else into `default`.

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
    check_name(name)
    chosen = fields.type_named(client, kind)
    data: dict[str, Any] = {"type": chosen.name}
    fields.apply(client, chosen, data, assignments, secrets)
    fields.require(chosen, data)
    where = None if category is None else ensure_category(client, category)
    added, is_new = client.connection.ensure(name, data, validate=validate, category=where)
    if is_new:
        _tell_unusual(client, name, added)
    else:
        _tell_equal(client, name, added)
    if as_json:
        print_json({"connection": added, "added": is_new})
    else:
        click.echo(added)


def _tell_equal(client: Client, name: str, existing: str) -> None:
    """Say that nothing was stored as ``name``, because the connection ``existing`` has the same data."""
    [one] = client.connection.info([existing])
    stored = visible(qualified(one))
    click.echo(f"{visible(name)} was not added: {stored} is stored with the same data.", err=True)
    if one.name[-1] != name.lower():
        click.echo(f"To rename it: connmgr mv {shlex.quote(stored)} {shlex.quote(name)}", err=True)


def _tell_unusual(client: Client, name: str, added: str) -> None:
    """Say that the connection ``added`` has another name than ``name``, or one that others have too."""
    [one] = client.connection.info([added])
    stored = visible(qualified(one))
    if one.name[-1] != name.lower():
        click.echo(f"It is stored as {stored}, since / separates names.", err=True)
    alike = [other for other in client.connection.names() if (other.category, other.name) == (one.category, one.name)]
    if len(alike) > 1:
        click.echo(
            f"{stored} now is the name of {len(alike)} connections, and commands refuse it. To rename this one: "
            f"connmgr mv {added} NAME",
            err=True,
        )


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
