"""``connmgr edit``: change the fields of connections."""

from __future__ import annotations

import functools
from typing import Any

import click

from connmgr.cli import fields
from connmgr.cli.daemon import connect
from connmgr.cli.names import ConnectionName
from connmgr.cli.output import counted
from connmgr.cli.selection import Choice, agreed, all_option, choosing, chosen, consent, means_many, require_some
from connmgr.client import Client, Connection
from connmgr.client.names import qualified


@click.command()
@click.argument("words", metavar="CONNECTION... [FIELD=VALUE]...", type=ConnectionName(), nargs=-1)
@click.option("--secret", "secrets", metavar="FIELD", multiple=True, help="Ask for a secret field, or read it.")
@click.option("--unset", metavar="FIELD", multiple=True, help="Remove a field, so that it has its default.")
@click.option("--validate", is_flag=True, help="Open it with the changes first, and store them only if that succeeds.")
@all_option
@choosing
@consent
def edit(
    words: tuple[str, ...],
    secrets: tuple[str, ...],
    unset: tuple[str, ...],
    choice: Choice,
    *,
    validate: bool,
    everywhere: bool,
    yes: bool,
    dry_run: bool,
) -> None:
    """Change fields of a connection. The others stay.

    Write fields as for connmgr add. A shell on the connection is stopped.

    With --all each word before the first FIELD=VALUE is a CONNECTION or a GLOB, and the same fields of all that match
    change in one step; with --validate one connection after the other. It shows which, and asks first. Without a
    terminal to ask on, it needs --yes.
    """
    if not everywhere and choice.given:
        raise click.UsageError(f"{', '.join(choice.given)} goes with --all.")
    at = next((at for at, word in enumerate(words) if "=" in word and (everywhere or at)), len(words))
    names, assignments = (words[:at], words[at:]) if everywhere else (words[:1], words[1:])
    if everywhere:
        require_some(names, choice)
    elif not names:
        raise click.UsageError("Missing argument 'CONNECTION'.")
    if not (assignments or secrets or unset):
        raise click.UsageError("Nothing to change: give FIELD=VALUE, --secret FIELD or --unset FIELD.")
    client = connect()
    ids = [one.id for one in chosen(client, names, choice).names] if everywhere else [client.connection.find(names[0])]
    if not ids:
        click.echo("No connection is chosen.", err=True)
        return
    # A secret is asked for once, however many connections get it.
    ask = functools.cache(fields.ask)
    found = client.connection.info(ids)
    changed = {one.id: _data(client, one, assignments, secrets, unset, ask) for one in found}
    what = [*(word.partition("=")[0] for word in assignments), *secrets, *unset]
    rows = [("change", qualified(one), ", ".join(what)) for one in found]
    asks = everywhere and means_many(names, choice)
    question = f"Change {counted(len(rows), 'connection')}? Their shells are stopped."
    if not agreed(rows, question, yes=yes, dry_run=dry_run, asks=asks):
        return
    if len(ids) == 1 or validate:
        for id, data in changed.items():
            client.connection.update(id, data=data, validate=validate)
    else:
        client.connection.apply(change=[{"connection": id, "data": data} for id, data in changed.items()])


def _data(
    client: Client,
    stored: Connection,
    assignments: tuple[str, ...],
    secrets: tuple[str, ...],
    unset: tuple[str, ...],
    ask: Any,
) -> dict[str, Any]:
    """Return the data of a connection with the changes."""
    kind = fields.type_named(client, stored.type)
    data = {"type": stored.type, **stored.data}
    fields.unset(kind, data, unset)
    fields.apply(client, kind, data, assignments, secrets, ask)
    return data
