"""``connmgr label`` and ``facts``: what connections are for, and what their machines say about themselves."""

from __future__ import annotations

import click

from connmgr.cli.commands.connections import shown_labels
from connmgr.cli.connect import connect
from connmgr.cli.exits import FAILED
from connmgr.cli.output import ago, counted, json_option, print_json, print_table
from connmgr.cli.progress import waiting
from connmgr.cli.selection import (
    Choice,
    ConnectionName,
    choosing,
    chosen,
    jobs_option,
    read_labels,
    require_some,
    selecting,
)
from connmgr.client import Client
from connmgr.client.names import qualified
from connmgr.contract.fact import MAX_GATHERED, SECONDS, GatheredFacts, MachineFacts
from connmgr.contract.message import time_from_json, to_json
from connmgr.printable import visible


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
    given = read_labels(word for word in words if "=" in word)
    require_some(selectors, choice)
    client = connect()
    names = chosen(client, selectors, choice).names
    if given or remove:
        changed = client.connection.label([name.id for name in names], given, remove)
        if as_json:
            print_json({"changed": changed})
        else:
            click.echo(f"{counted(len(names), 'connection')}, {len(changed)} changed")
        return
    infos = client.connection.info([name.id for name in names])
    if as_json:
        print_json([{"connection": info.id, "name": list(info.name), "labels": dict(info.labels)} for info in infos])
    else:
        print_table([(qualified(info), shown_labels(info.labels) or "-") for info in infos])


@click.command()
@selecting
@click.option("--gather", is_flag=True, help="Ask the machines first, and store what they say.")
@click.option("--part", "parts", metavar="PART", multiple=True, help="With --gather: only this part; repeatable.")
@click.option(
    "--name",
    "wanted",
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
    wanted: tuple[str, ...],
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
    names = chosen(client, selectors, choice, usage="shell").names
    ids = [name.id for name in names]
    failed = _gathered(client, ids, parts, timeout, jobs) if gather else []
    machines = client.fact.query(ids, names=wanted or None)
    labels = {name.id: qualified(name) for name in names}
    if as_json:
        errors = {one.connection: one.error for one in failed}
        print_json([to_json(machine) | _error(errors.get(machine.connection)) for machine in machines])
    else:
        _print(machines, labels)
    for one in failed:
        message = (one.error or {}).get("message", "")
        click.echo(f"connmgr: {visible(labels[one.connection])}: {visible(str(message))}", err=True)
    if failed:
        raise click.exceptions.Exit(FAILED)


def _gathered(client: Client, ids: list[str], parts: tuple[str, ...], timeout: float, jobs: int) -> list[GatheredFacts]:
    """Ask the machines, and return the outcomes with an error."""
    outcomes: list[GatheredFacts] = []
    with waiting(f"asking {counted(len(ids), 'machine')}"):
        for start in range(0, len(ids), MAX_GATHERED):
            some = ids[start : start + MAX_GATHERED]
            outcomes += client.fact.gather(some, parts=parts or None, parallel=jobs, timeout=timeout)
    return [outcome for outcome in outcomes if outcome.error is not None]


def _error(error: object) -> dict[str, object]:
    return {} if error is None else {"error": error}


def _print(machines: list[MachineFacts], labels: dict[str, str]) -> None:
    for number, one in enumerate(machines):
        if number:
            click.echo()
        click.echo(visible(labels[one.connection]))
        rows = [(name, str(value)) for name, value in one.facts.items()]
        rows += [(f"gathered: {part}", ago(time_from_json(at))) for part, at in sorted(one.gathered.items())]
        print_table(rows or [("nothing was gathered yet", "`--gather` asks the machine")], indent="  ")
