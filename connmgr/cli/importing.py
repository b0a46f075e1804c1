"""The common part of the imports: their options, and how they compare with the vault, show and add entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import click

from connmgr.cli.daemon import connect
from connmgr.cli.names import category_path
from connmgr.cli.output import json_option
from connmgr.cli.plan import Entry, carry_out, judge_import, ordered, show
from connmgr.cli.progress import waiting
from connmgr.cli.stored import Stored

Command = TypeVar("Command", bound=Callable[..., Any])


def import_options(command: Command) -> Command:
    """Give a command the options of an import, for :func:`run`."""
    command = json_option(command)
    command = click.option("--category", metavar="PATH", help="Where to put them; created if missing.")(command)
    update = "Change stored connections with other data, too."
    command = click.option("--update", is_flag=True, help=update)(command)
    return click.option("--apply", is_flag=True, help="Add them. Default: change nothing.")(command)


def run(read: Callable[[], Iterable[Entry]], *, apply: bool, update: bool, category: str | None, as_json: bool) -> None:
    """Compare the entries of ``read`` with the vault, show them, and with ``apply`` store them in one step."""
    client = connect()
    above = None if category is None else category_path(client, category)
    with waiting("reading and comparing"):
        entries = ordered(_placed(read(), above))
        judge_import(entries, Stored(client), update=update)
    if apply:
        carry_out(client, entries)
    does = "adds those that are new, and changes the others" if update else "adds those that are new"
    show(entries, as_json=as_json, advice=f"--apply {does}.")


def _placed(entries: Iterable[Entry], above: tuple[str, ...] | None) -> Iterator[Entry]:
    """Yield ``entries``, each in the category that it names below ``above``."""
    for entry in entries:
        if above is not None:
            entry.category = (*above, *(entry.category or ()))
        yield entry
