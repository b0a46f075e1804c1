"""``connmgr ls``: the stored connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from connmgr.cli.daemon import connect
from connmgr.cli.names import is_text
from connmgr.cli.output import ago, json_option, on_terminal, print_json, print_table, summarised, visible
from connmgr.client import Client, Connection

if TYPE_CHECKING:
    from rich.tree import Tree

INFOS_PER_REQUEST = 2000


@click.command()
@click.argument("pattern", metavar="[GLOB]", default="*")
@click.option("--category", metavar="GLOB", default="*", help="Only connections in categories with a matching path.")
@click.option("--type", "kind", metavar="GLOB", default="*", help="Only connections with a matching type.")
@json_option
def ls(pattern: str, category: str, kind: str, *, as_json: bool) -> None:
    """List connections with their type, their last known state and their last use.

    GLOB matches whole paths and ignores case: * within a segment, ** across segments, ? [abc] {a,b}. A terminal shows a
    tree by category; other output has one line a connection.
    """
    infos = described(connect(), pattern, category, kind)
    if as_json:
        print_json(infos)
        return
    connections = sorted((Connection.read(info) for info in infos), key=lambda one: (one.category, one.name))
    if on_terminal():
        _print_tree(connections)
    else:
        print_table([("/".join([*one.category, *one.name]), *_columns(one)) for one in connections])


def described(client: Client, pattern: str, category: str = "*", kind: str = "*") -> list[dict[str, Any]]:
    """Return the daemon's descriptions of the connections that the filters match."""
    filters = {"connection": pattern, "category": category, "type": kind}
    found = client.connection.query(**filters) if all(map(is_text, filters.values())) else []
    parts = [found[start : start + INFOS_PER_REQUEST] for start in range(0, len(found), INFOS_PER_REQUEST)]
    return [info for part in parts for info in client.post("/connection/info", connections=part)["infos"]]


def _columns(one: Connection) -> tuple[str, str, str]:
    return one.type, summarised(one.state) or "-", ago(one.last_used)


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
            kind, seen, used = _columns(one)
            style = "red" if "error" in one.state else "green"
            table.add_row(visible(one.path), Text(kind, "cyan"), Text(visible(seen), style), Text(used, "dim"))
        branches[category].add(table)
    Console(highlight=False).print(branches[()])
