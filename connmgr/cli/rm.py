"""``connmgr rm``: remove connections."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from connmgr.cli.daemon import connect
from connmgr.cli.output import counted
from connmgr.cli.selection import Choice, agreed, chosen, consent, require_some, selecting
from connmgr.cli.stored import Stored, marked
from connmgr.client import Client


@click.command()
@selecting
@consent
def rm(selectors: tuple[str, ...], choice: Choice, *, yes: bool, dry_run: bool) -> None:
    """Remove connections, and all that run over them. Their shells are stopped.

    It shows which, and asks first. Without a terminal to ask on, it needs --yes.
    """
    require_some(selectors, choice)
    client = connect()
    ids = [one.id for one in chosen(client, selectors, choice).names]
    if not ids:
        click.echo("No connection is chosen.", err=True)
        return
    rows = [] if yes and not dry_run else _going(client, ids)
    if agreed(rows, f"Remove {counted(len(rows), 'connection')}?", yes=yes, dry_run=dry_run):
        client.connection.remove(ids)


def _going(client: Client, ids: Iterable[str]) -> list[tuple[str, str, str]]:
    """Return a row for each of the connections ``ids``, and for each that runs over one of them."""
    stored = Stored(client)
    over = {id: _over(stored, info) for id, info in stored.infos.items()}
    going = dict.fromkeys(ids, "")
    # It grows meanwhile, until nothing runs over what is in it.
    for below in iter(lambda: next((one for one in over if one not in going and over[one] & going.keys()), ""), ""):
        [at, *_] = over[below] & going.keys()
        going[below] = f"runs over {_name(stored, at)}"
    return [("remove", _name(stored, id), why) for id, why in going.items()]


def _over(stored: Stored, info: dict[str, Any]) -> set[str]:
    """Return the ids of the connections that a connection refers to."""
    found: set[str] = set()

    def note(_: str, value: Any) -> Any:
        found.add(str(value.get("storeId") if isinstance(value, dict) else value).lower())
        return value

    marked(stored.schema(info["type"]), "x-connmgr-reference", info["rawData"], note)
    return found


def _name(stored: Stored, id: str) -> str:
    info = stored.infos[id]
    return "/".join([*info["category"], *info["name"]])
