"""``connmgr ls``: lists the stored connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from connmgr.cli.daemon import connect
from connmgr.cli.output import ago, json_option, on_terminal, print_json, print_table, summarised
from connmgr.cli.selection import Choice, chosen, selecting
from connmgr.client import Client, Connection
from connmgr.client.names import UUID, qualified
from connmgr.printable import visible

if TYPE_CHECKING:
    from rich.tree import Tree

INFOS_PER_REQUEST = 2000

DEFAULT_PORT = 22
"""The port of a connection that names none; ~/.ssh/config may then name another."""

HEADING = ("NAME", "TYPE", "ADDRESS", "STATE", "LAST USED")
MORE = ("CHANGED", "UUID")


@click.command()
@selecting
@click.option(
    "-l", "--long", "long", is_flag=True, help="Show one line with all columns per connection, with its uuid."
)
@click.option(
    "--format",
    "shape",
    metavar="table|names|json",
    type=click.Choice(["table", "names", "json"]),
    help="Show a table with a heading, only names, or JSON.",
)
@json_option
def ls(selectors: tuple[str, ...], choice: Choice, shape: str | None, *, long: bool, as_json: bool) -> None:
    """List connections: address, state, last use.

    GLOB is a name or a pattern: * within a segment, ** across segments, ? [abc] {a,b}. A pattern without / is held
    against last names, one with / against paths, with or without the category. Case is ignored. A terminal shows a tree
    by category; other output has one line per connection.
    """
    client = connect()
    names = chosen(client, selectors, choice, may_be_none=True).names
    if not names and choice.filters and not selectors:
        filters = " and ".join(map(" ".join, choice.filters.items()))
        click.echo(f"connmgr: no connection matches {filters}", err=True)
    if shape == "names":
        print_table([(qualified(one),) for one in names])
        return
    infos = infos_of(client, [one.id for one in names])
    if as_json or shape == "json":
        print_json(infos)
        return
    connections = [Connection.read(info) for info in infos]
    if shape is None and not long and on_terminal():
        _print_tree(connections)
        return
    rows = [(qualified(one), *_columns(one), *(_more(one) if long else ())) for one in connections]
    heading = [(*HEADING, *(MORE if long else ()))] if shape == "table" or on_terminal() else []
    if rows:
        print_table([*heading, *rows])


def described(client: Client, kind: str) -> list[dict[str, Any]]:
    """Return the daemon's descriptions of the connections of a type."""
    return infos_of(client, client.connection.query(type=kind))


def infos_of(client: Client, ids: list[str], **more: bool) -> list[dict[str, Any]]:
    """Return the daemon's descriptions of connections; ``more`` are options of `/connection/info`."""
    parts = [ids[start : start + INFOS_PER_REQUEST] for start in range(0, len(ids), INFOS_PER_REQUEST)]
    answers = (client.post("/connection/info", connections=part, created=True, **more) for part in parts)
    return [info for answer in answers for info in answer["infos"]]


def _more(one: Connection) -> tuple[str, str]:
    return ago(one.last_modified), one.id


def _columns(one: Connection) -> tuple[str, str, str, str]:
    return one.type, _address(one.data), summarised(one.state) or "-", used(one)


def used(one: Connection) -> str:
    """Return when a connection was last used."""
    return "never used" if one.last_used == one.created else ago(one.last_used)


def _address(data: dict[str, Any]) -> str:
    """Return ``user@host:port`` as ``data`` say it, without a part that they leave out; ``-`` without a host."""
    host = data.get("host")
    if not isinstance(host, str) or UUID.fullmatch(host):
        # A uuid means another connection, whose name begins the path.
        return "-"
    user, port = data.get("user"), data.get("port")
    own_port = port not in (None, DEFAULT_PORT)
    shown = f"[{host}]:{port}" if own_port and ":" in host else f"{host}:{port}" if own_port else host
    return f"{user}@{shown}" if user else shown


def _print_tree(connections: list[Connection]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text
    from rich.tree import Tree

    branches: dict[tuple[str, ...], Tree] = {(): Tree("", hide_root=True)}
    grouped: dict[tuple[str, ...], list[Connection]] = {}
    for one in connections:
        grouped.setdefault(one.category, []).append(one)
    for category, members in grouped.items():
        for depth in range(1, len(category) + 1):
            if category[:depth] not in branches:
                label = Text(visible(category[depth - 1]), style="bold")
                branches[category[:depth]] = branches[category[: depth - 1]].add(label)
        table = Table.grid(padding=(0, 2))
        for one in members:
            kind, where, seen, last = _columns(one)
            style = "red" if "error" in one.state else "green"
            cells = (Text(kind, "cyan"), Text(visible(where)), Text(visible(seen), style), Text(last, "dim"))
            table.add_row(Text(visible(one.path)), *cells)
        branches[category].add(table)
    Console(highlight=False).print(branches[()])
