"""``connmgr apply``: changes the vault to match a file, after it has shown the changes."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import click

from connmgr.cli.daemon import connect
from connmgr.cli.document import read
from connmgr.cli.exits import Failure
from connmgr.cli.export import categories
from connmgr.cli.output import counted, json_option
from connmgr.cli.plan import DIFFERENT, DONE, LEFT_OUT, PRESENT, Entry, carry_out, ordered, show
from connmgr.cli.progress import waiting
from connmgr.cli.reconcile import judge
from connmgr.cli.stored import Stored, folded
from connmgr.cli.yaml_file import load

UNCHANGED = "unchanged"


@click.command()
@click.option(
    "-f", "--file", "file", metavar="FILE", type=click.File("rb"), required=True, help="The file; - is stdin."
)
@click.option("--prune", is_flag=True, help="Remove the connections that are not in the file, too.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def apply(file: Any, *, prune: bool, yes: bool, as_json: bool) -> None:
    """Change the vault to match a file.

    connmgr export writes such a file. What would be added, and what would change in which fields, is shown first, and
    asked about. Without a terminal it changes nothing unless --yes is given. All changes are stored in one step, or
    none. Connections that the file does not name stay, unless --prune is given. Categories are never removed.

    `{secret: kept}` in the file stands for a secret that stays as it is, and so does a secret that the file omits;
    null removes it. A secret in plain text is refused.
    """
    client = connect()
    with waiting("reading and comparing"):
        stored = Stored(client)
        entries, paths = read(_content(file), stored)
        there = set(categories(client))
        made = [path for path in paths if folded(path) not in {*there, ("default",)}]
        entries = ordered(entries)
        going = judge(entries, stored, prune=prune)
    every = [*entries, *going]
    planned = made or any(one.outcome in DONE for one in every)
    if planned and not as_json:
        _show(every, made)
    agreed = bool(planned) and (yes or _agrees(as_json=as_json))
    if agreed:
        carry_out(client, entries, removals=going, categories=made)
    if as_json:
        show(every, as_json=True, advice="")
        return
    click.echo(_summary(every), err=not agreed and bool(planned))
    if planned and not agreed:
        click.echo("Nothing was changed; --yes applies it.", err=True)


def _content(file: Any) -> Any:
    text = file.read().decode("utf-8", "replace")
    if not text.lstrip().startswith("{"):
        return load(text, file.name)
    try:
        return json.loads(text)
    except ValueError as error:
        raise Failure(f"{file.name} is not valid JSON: {error}.") from None
    except RecursionError:
        raise Failure(f"{file.name} is nested too deeply.") from None


def _agrees(*, as_json: bool) -> bool:
    if as_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    click.confirm("Apply this?", abort=True, err=True)
    return True


def _show(entries: Sequence[Entry], made: Sequence[tuple[str, ...]]) -> None:
    shown = [Entry("/".join(path), note="a category") for path in made]
    show([*shown, *(one for one in entries if one.outcome != PRESENT)], as_json=False, advice="")


def _summary(entries: Sequence[Entry]) -> str:
    counts = Counter(UNCHANGED if one.outcome == PRESENT else one.outcome for one in entries)
    order = [*DONE.values(), *DONE, UNCHANGED, DIFFERENT, LEFT_OUT]
    parts = [f"{counts[outcome]} {outcome}" for outcome in order if counts[outcome]]
    return f"{counted(len(entries), 'connection')}: {', '.join(parts)}" if parts else "0 connections"
