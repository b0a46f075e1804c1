"""``connmgr ls``, ``info``, ``category``, ``label`` and ``facts``: the stored connections and what is known of them."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from connmgr.cli.connect import connect
from connmgr.cli.exits import FAILED
from connmgr.cli.options import Group
from connmgr.cli.output import ago, json_option, plural, print_json, print_table
from connmgr.cli.progress import waiting
from connmgr.cli.selection import (
    Choice,
    ConnectionName,
    choosing,
    find_category,
    infos_of,
    jobs_option,
    means_many,
    read_labels,
    require_some,
    select_connections,
    selecting,
)
from connmgr.client import ROOT_CATEGORY, Client, Connection
from connmgr.client.names import full_path, is_uuid, split_elevation
from connmgr.contract.fact import MAX_GATHERED, SECONDS, GatheredFacts, MachineFacts
from connmgr.contract.message import time_from_json, to_json
from connmgr.contract.shell import ShellStatus as RunningShell
from connmgr.printable import visible

if TYPE_CHECKING:
    from rich.tree import Tree


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

    GLOB is a name or a pattern: * within a segment, ** across segments, ? [abc] {a,b}. A pattern without / is matched
    against last names, one with / against paths, with or without the category. Case is ignored. A terminal shows a tree
    by category; other output has one line per connection. Labels are the last column, if a connection has any.
    """
    client = connect()
    names = select_connections(client, selectors, choice, may_be_none=True).names
    if not names and choice.filters and not selectors:
        filters = " and ".join(map(" ".join, choice.filters.items()))
        click.echo(f"connmgr: no connection matches {filters}", err=True)
    if shape == "names":
        print_table([(full_path(name),) for name in names])
        return
    infos = infos_of(client, [name.id for name in names])
    if as_json or shape == "json":
        print_json(infos)
        return
    connections = [Connection.read(info) for info in infos]
    if shape is None and not long and sys.stdout.isatty():
        _print_tree(connections)
        return
    labelled = any(connection.labels for connection in connections)
    rows = [
        (
            full_path(connection),
            *_columns(connection),
            *((ago(connection.last_modified), connection.id) if long else ()),
            *((shown_labels(connection.labels) or "-",) if labelled else ()),
        )
        for connection in connections
    ]
    more = (*(MORE if long else ()), *(("LABELS",) if labelled else ()))
    heading = [(*HEADING, *more)] if shape == "table" or sys.stdout.isatty() else []
    if rows:
        print_table([*heading, *rows])


def _columns(connection: Connection) -> tuple[str, str, str, str]:
    return connection.type, _address(connection.data), state_text(connection.state) or "-", last_use(connection)


def shown_labels(labels: Mapping[str, str]) -> str:
    """Return labels in one line, as `connmgr label` takes them."""
    return " ".join(shlex.quote(f"{name}={value}") for name, value in sorted(labels.items()))


def last_use(connection: Connection) -> str:
    """Return when a connection was last used."""
    return "never used" if connection.last_used == connection.created else ago(connection.last_used)


def _address(data: dict[str, Any]) -> str:
    """Return ``user@host:port`` as ``data`` say it, without a part that they leave out; ``-`` without a host."""
    host = data.get("host")
    if not isinstance(host, str) or is_uuid(host):
        # A uuid means another connection, whose name begins the path.
        return "-"
    user, port = data.get("user"), data.get("port")
    own_port = port not in (None, DEFAULT_PORT)
    address = f"[{host}]:{port}" if own_port and ":" in host else f"{host}:{port}" if own_port else host
    return f"{user}@{address}" if user else address


def _print_tree(connections: list[Connection]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text
    from rich.tree import Tree

    branches: dict[tuple[str, ...], Tree] = {(): Tree("", hide_root=True)}
    grouped: dict[tuple[str, ...], list[Connection]] = {}
    for connection in connections:
        grouped.setdefault(connection.category, []).append(connection)
    for category, members in grouped.items():
        for depth in range(1, len(category) + 1):
            if category[:depth] not in branches:
                label = Text(visible(category[depth - 1]), style="bold")
                branches[category[:depth]] = branches[category[: depth - 1]].add(label)
        table = Table.grid(padding=(0, 2))
        for connection in members:
            kind, where, state, last = _columns(connection)
            style = "red" if "error" in connection.state else "green"
            cells = [Text(kind, "cyan"), Text(visible(where)), Text(visible(state), style), Text(last, "dim")]
            cells += [Text(visible(shown_labels(connection.labels)), "magenta")] if connection.labels else []
            table.add_row(Text(visible(connection.path)), *cells)
        branches[category].add(table)
    Console(highlight=False).print(branches[()])


def state_text(state: dict[str, Any]) -> str:
    """Return the last known state of a connection in a few words."""
    if state.get("running") is False:
        return "gone" if state.get("gone") else "stopped"
    if "error" in state:
        return str(state["error"])
    return str(state.get("osName") or ("running" if state.get("running") else ""))


SECRET = "(secret)"  # noqa: S105 - what is shown in its place


@click.command()
@selecting
@click.option("--refresh", is_flag=True, help="First test whether the connection can be opened.")
@json_option
def info(selectors: tuple[str, ...], choice: Choice, *, refresh: bool, as_json: bool) -> None:
    """Show connections, and what each would dial.

    It also shows what the connection's shells do. Secrets stay encrypted. CONNECTION may be an address: USER@HOST or
    ssh://[USER@]HOST[:PORT]. --json prints an object for one name, and an array for a GLOB, several names or options.

    "dials" is the host that CONNECTION leads to, according to ~/.ssh/config of the daemon's user, "through" the hosts
    on the way there, and "offers" the private keys that are offered to it.
    """
    require_some(selectors, choice)
    client = connect()
    ids = [name.id for name in select_connections(client, selectors, choice, addresses=True).names]
    if refresh:
        for id in ids:
            # One after the other, because a login may ask on the terminal.
            for sentence in client.connection.refresh(id).skipped:
                click.echo(f"connmgr: {visible(sentence)}", err=True)
    answers = infos_of(client, ids, dialled=True)
    if as_json:
        print_json(answers if means_many(selectors, choice) else answers[0])
        return
    for number, answer in enumerate(answers):
        if number:
            click.echo()
        _show(client, answer)


def _show(client: Client, answer: Mapping[str, Any]) -> None:
    # Imported here, because `connmgr ls` does not need it.
    from connmgr.cli.sessions import at_work

    connection, shells = Connection.read(answer), client.shell.list(answer["connection"])
    rows = [
        ("name", connection.path),
        ("uuid", connection.id),
        ("category", "/".join(connection.category)),
        ("type", connection.type),
        *((f"label: {name}", value) for name, value in sorted(connection.labels.items())),
        *((name, value) for name, value in _flat(connection.data)),
        *_hosts_on_the_way(answer["dialled"]),
        ("last used", last_use(connection)),
        ("last modified", ago(connection.last_modified)),
        *((f"seen: {name}", str(value)) for name, value in connection.state.items()),
        *((_label(shell.status), f"{at_work(shell)}, in {shell.directory}") for shell in shells),
    ]
    print_table(rows)


def _hosts_on_the_way(dialled: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield rows for the host that would be dialled, and for each host on the way to it."""
    if "error" in dialled:
        yield "dials", str(dialled["error"]["message"])
        return
    for at, host in enumerate(reversed(dialled["hosts"])):
        yield "through" if at else "dials", _login(host)
    for host in dialled["hosts"][-1:]:
        keys = [*host["identities"], *(["an ssh-agent's keys"] if host["agent"] else [])]
        yield "offers", ", ".join(keys) or "no key"


def _login(host: Mapping[str, Any]) -> str:
    name = f"[{host['host']}]" if ":" in host["host"] else host["host"]
    return f"{host['user']}@{name}:{host['port']}"


def _label(status: RunningShell) -> str:
    from connmgr.cli.sessions import shell_label

    _, user = split_elevation(status.connection)
    if status.session is None:
        return f"shell as {user}" if user else "shell"
    return f"shell {shell_label(status.session, user)}"


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in data.items():
        # A sealed secret, whose ciphertext says nothing to a person.
        if isinstance(value, Mapping) and "encryptedToken" in value:
            yield prefix + name, SECRET
        elif isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif value is not None:
            yield prefix + name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@click.group(cls=Group)
def category() -> None:
    """Look after the categories of connections."""


@category.command(name="ls")
@click.argument("pattern", metavar="[GLOB]", default="*")
@json_option
def list_categories(pattern: str, *, as_json: bool) -> None:
    """List categories."""
    client = connect()
    ids = client.category.query(pattern)
    if as_json:
        print_json(client.post("/category/info", categories=ids)["infos"])
        return
    rows = sorted(
        ("/".join(category.name[1:]) or category.name[0], ago(category.last_used))
        for category in client.category.info(ids)
    )
    if rows:
        print_table(rows)


@category.command(name="add")
@click.argument("path")
@json_option
def add_category(path: str, *, as_json: bool) -> None:
    """Add a category and its missing parents, and print its uuid."""
    client = connect()
    id = ROOT_CATEGORY
    for name in filter(None, path.split("/")):
        id = client.category.add(name, id)
    if id == ROOT_CATEGORY:
        raise click.UsageError("PATH names no category: write its name, such as customers/acme.")
    if as_json:
        print_json({"category": id})
    else:
        click.echo(id)


@category.command(name="rm")
@click.argument("path")
@click.option("--children", is_flag=True, help="Remove the categories below it too. Default: they move up.")
@click.option(
    "--contents", is_flag=True, help="Remove its connections too. Default: they move to the default category."
)
def remove_category(path: str, *, children: bool, contents: bool) -> None:
    """Remove a category. By default the categories and connections in it stay."""
    client = connect()
    client.category.remove([find_category(client, path)], children=children, contents=contents)


@click.command()
@click.argument("words", metavar="CONNECTION|GLOB... [LABEL=VALUE]...", type=ConnectionName(), nargs=-1)
@choosing
@click.option("--remove", metavar="LABEL", multiple=True, help="Take a label away; repeatable.")
@json_option
def label(words: tuple[str, ...], choice: Choice, remove: tuple[str, ...], *, as_json: bool) -> None:
    """Set, remove or show labels of connections.

    A word with = is a label to set, any other word a CONNECTION or GLOB. Other labels stay. Without a label to set or
    to remove, the labels are shown. --where chooses connections by their labels: --where 'env=prod and not canary'.

    A label's name has small letters, digits, _ and -. Its value is any text of up to 255 characters, and may be empty.
    """
    selectors = tuple(word for word in words if "=" not in word)
    labels = read_labels(word for word in words if "=" in word)
    require_some(selectors, choice)
    client = connect()
    names = select_connections(client, selectors, choice).names
    if labels or remove:
        changed = client.connection.label([name.id for name in names], labels, remove)
        if as_json:
            print_json({"changed": changed})
        else:
            click.echo(f"{plural(len(names), 'connection')}, {len(changed)} changed")
        return
    infos = client.connection.info([name.id for name in names])
    if as_json:
        print_json([{"connection": info.id, "name": list(info.name), "labels": dict(info.labels)} for info in infos])
    else:
        print_table([(full_path(info), shown_labels(info.labels) or "-") for info in infos])


@click.command()
@selecting
@click.option("--gather", is_flag=True, help="Ask the machines first, and store what they say.")
@click.option("--part", "parts", metavar="PART", multiple=True, help="With --gather: only this part; repeatable.")
@click.option(
    "--name",
    "patterns",
    metavar="GLOB",
    multiple=True,
    help="Only facts with such names, as in 'package.openssl*'; repeatable.  [default: all but packages]",
)
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(0, 600, min_open=True),
    default=SECONDS,
    show_default=True,
    help="With --gather: how long each machine may take.",
)
@jobs_option(default=32)
@json_option
def facts(
    selectors: tuple[str, ...],
    choice: Choice,
    parts: tuple[str, ...],
    patterns: tuple[str, ...],
    timeout: float,
    jobs: int,
    *,
    gather: bool,
    as_json: bool,
) -> None:
    """Show facts about machines, or gather them.

    Facts are about system, memory, disks, packages, and what plugins add. They are as old as their last --gather, and
    each part says when that was: `system`, `package`, and those of plugins. --where chooses connections by them in
    every command: connmgr exec --all '*' --where 'os.id=debian and package.openssl<3.0.17' -- CMD.

    With --gather the exit code is 1 if a machine could not be asked; its earlier facts stay.
    """
    require_some(selectors, choice)
    if parts and not gather:
        raise click.UsageError("--part needs --gather; --name chooses which facts are shown.")
    client = connect()
    names = select_connections(client, selectors, choice, usage="shell").names
    ids = [name.id for name in names]
    failed = _gather(client, ids, parts, timeout, jobs) if gather else []
    machines = client.fact.query(ids, names=patterns or None)
    labels = {name.id: full_path(name) for name in names}
    if as_json:
        errors = {outcome.connection: {"error": outcome.error} for outcome in failed}
        print_json([to_json(machine) | errors.get(machine.connection, {}) for machine in machines])
    else:
        _print(machines, labels)
    for outcome in failed:
        message = (outcome.error or {}).get("message", "")
        click.echo(f"connmgr: {visible(labels[outcome.connection])}: {visible(str(message))}", err=True)
    if failed:
        raise click.exceptions.Exit(FAILED)


def _gather(client: Client, ids: list[str], parts: tuple[str, ...], timeout: float, jobs: int) -> list[GatheredFacts]:
    """Ask the machines, and return the outcomes with an error."""
    outcomes: list[GatheredFacts] = []
    with waiting(f"asking {plural(len(ids), 'machine')}"):
        # The daemon asks so many machines with one request.
        for start in range(0, len(ids), MAX_GATHERED):
            some = ids[start : start + MAX_GATHERED]
            outcomes += client.fact.gather(some, parts=parts or None, parallel=jobs, timeout=timeout)
    return [outcome for outcome in outcomes if outcome.error is not None]


def _print(machines: list[MachineFacts], labels: dict[str, str]) -> None:
    for number, machine in enumerate(machines):
        if number:
            click.echo()
        click.echo(visible(labels[machine.connection]))
        rows = [(name, str(value)) for name, value in machine.facts.items()]
        rows += [(f"gathered: {part}", ago(time_from_json(at))) for part, at in sorted(machine.gathered.items())]
        print_table(rows or [("nothing was gathered yet", "`--gather` asks the machine")], indent="  ")
