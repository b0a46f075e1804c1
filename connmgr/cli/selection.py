"""Options that choose several connections: by names, category, type and an earlier run."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, NamedTuple, TypeVar

import click

from connmgr.cli.exits import NOT_FOUND, Failure
from connmgr.cli.names import suggested_category
from connmgr.cli.output import counted
from connmgr.client import Client, Name
from connmgr.client.names import is_text

Command = TypeVar("Command", bound=Callable[..., Any])

EVERYTHING = "*"


class Choice(NamedTuple):
    """The values of the options of :func:`choosing`; ``limit`` and ``failed`` are None if not given."""

    category: str
    kind: str
    failed: IO[str] | None
    limit: int | None

    @property
    def given(self) -> list[str]:
        """The names of the options that are given."""
        others = {"--failed": self.failed, "--limit": self.limit}
        return [*self.filters, *(name for name, value in others.items() if value is not None)]

    @property
    def filters(self) -> dict[str, str]:
        """The filters by their options, without those that match everything."""
        filters = {"--category": self.category, "--type": self.kind}
        return {name: value for name, value in filters.items() if value != EVERYTHING}


def choosing(command: Command) -> Command:
    """Give a command the options that choose connections, as its argument ``choice``, a :class:`Choice`."""
    options = [
        click.option("--category", metavar="GLOB", default=EVERYTHING, help="Only connections in a matching category."),
        click.option("--type", "kind", metavar="GLOB", default=EVERYTHING, help="Only connections of a matching type."),
        click.option(
            "--failed",
            "--retry-failed",
            "failed",
            metavar="FILE",
            type=click.File(encoding="utf-8"),
            help="Only connections that failed in an earlier run, whose --json output is in FILE; - is standard input.",
        ),
        click.option(
            "--limit",
            metavar="N",
            type=click.IntRange(1),
            help="Only the first N connections, in the order of `connmgr ls`.",
        ),
    ]

    @functools.wraps(command)
    def choose(
        *arguments: Any, category: str, kind: str, failed: IO[str] | None, limit: int | None, **more: Any
    ) -> Any:
        return command(*arguments, choice=Choice(category, kind, failed, limit), **more)

    for option in reversed(options):
        choose = option(choose)
    return choose  # type: ignore[return-value] # it takes other keywords than ``command``


def jobs_option(default: int, most: int) -> Callable[[Command], Command]:
    """Give a command the option ``--jobs``, the number of connections worked on at once, as its argument ``jobs``."""
    return click.option(
        "-j",
        "--jobs",
        "--parallel",
        "jobs",
        metavar="N",
        type=click.IntRange(1, most),
        default=default,
        show_default=True,
        help="With --all: how many at once.",
    )


class Chosen(NamedTuple):
    """The chosen connections, in the order of `connmgr ls`; ``of`` also counts those beyond the limit."""

    names: list[Name]
    of: int


def chosen(
    client: Client, patterns: Sequence[str], choice: Choice, *, usage: str | None = None, may_be_none: bool = False
) -> Chosen:
    """Return what names and patterns mean, narrowed by ``choice``; without ``patterns``, all that ``choice`` matches.

    ``usage`` excludes connections of other usages. With ``may_be_none`` filters alone may match nothing.
    :raises Failure: the filters match nothing, or ``failed`` is not the output of an earlier run.
    :raises ClientError: as :meth:`connmgr.client.endpoints.Connections.choose`.
    """
    selected = client.connection.choose(*patterns, category=choice.category, type=choice.kind, usage=usage)
    if not (selected or patterns or may_be_none):
        raise Failure(_unmatched(client, choice, usage), NOT_FOUND)
    found = {one.id: one for one in selected}
    if choice.failed is not None:
        failed = set(_failed(choice.failed))
        if not patterns and (gone := failed - found.keys()):
            click.echo(f"connmgr: {counted(len(gone), 'connection')} of the earlier run cannot be chosen", err=True)
        found = {id: one for id, one in found.items() if id in failed}
    names = list(found.values())
    return Chosen(names[: choice.limit], len(names))


def _unmatched(client: Client, choice: Choice, usage: str | None) -> str:
    """Return the message about filters that match nothing."""
    runs = " that runs commands" if usage == "shell" else ""
    said = f"No connection{runs} matches {' and '.join(map(' '.join, choice.filters.items())) or repr('*')}."
    if "--category" in choice.filters and is_text(choice.category) and not client.category.query(choice.category):
        return said + suggested_category(client, choice.category)
    return f"{said} `connmgr ls` lists them."


def _failed(lines: Iterable[str]) -> Iterator[str]:
    """Yield the connections on which an earlier run failed: with an error, or with another exit code than 0."""
    for number, line in enumerate(lines, 1):
        try:
            outcome = json.loads(line)
            if "error" in outcome or outcome["exitCode"]:
                yield outcome["connection"]
        except (ValueError, TypeError, KeyError):
            raise Failure(f"--failed: line {number} is none that `connmgr exec --all --json` prints.") from None
