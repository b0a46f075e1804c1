"""The choice of several connections, by names, GLOBs, category, type and an earlier run; and what many need: a yes."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, NamedTuple, TypeVar

import click

from connmgr.cli.address import reach, read
from connmgr.cli.exits import NOT_FOUND, Failure
from connmgr.cli.names import ConnectionName, suggested_category
from connmgr.cli.output import counted, print_table
from connmgr.client import Client, Name
from connmgr.client.names import UUID, is_pattern, is_text

Command = TypeVar("Command", bound=Callable[..., Any])

EVERYTHING = "*"


class Choice(NamedTuple):
    """The values of the options of :func:`choosing`; ``limit`` and ``failed`` are None if not given."""

    category: str
    kind: str
    failed: IO[str] | None
    limit: int | None

    @property
    def reads_stdin(self) -> bool:
        """Whether ``failed`` is standard input."""
        return self.failed is not None and self.failed.fileno() == 0

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


def choosing(command: Command, category: str = "--category") -> Command:
    """Give a command the options that choose connections, as its argument ``choice``, a :class:`Choice`.

    ``category`` is the option for categories of a command whose ``--category`` is another.
    """
    options = [
        click.option(
            category, "category", metavar="GLOB", default=EVERYTHING, help="Only connections in a matching category."
        ),
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


def selecting(command: Command) -> Command:
    """Give a command its CONNECTION arguments, as ``selectors``, and the options of :func:`choosing`."""
    named = click.argument("selectors", metavar="CONNECTION|GLOB...", type=ConnectionName(), nargs=-1)
    everywhere = click.option(
        "--all", is_flag=True, expose_value=False, help="As for `connmgr exec`, where a GLOB needs it; here none does."
    )
    return named(everywhere(choosing(command)))


all_option = click.option(
    "--all", "everywhere", is_flag=True, help="Do it for all that match; each CONNECTION is then a name or a GLOB."
)
"""For commands that otherwise take one connection."""


def consent(command: Command) -> Command:
    """Give a command that changes many connections ``--yes`` and ``--dry-run``."""
    command = click.option("--dry-run", is_flag=True, help="Change nothing; show what would be done.")(command)
    return click.option("--yes", is_flag=True, help="Do not ask.")(command)


def agreed(rows: Sequence[Sequence[str]], question: str, *, yes: bool, dry_run: bool, asks: bool = True) -> bool:
    """Return whether to do what ``rows`` show: with ``asks`` only after ``--yes`` or a yes on the terminal.

    :raises click.UsageError: there is no terminal to ask on.
    """
    if dry_run:
        print_table(rows)
        click.echo("Nothing was changed: --dry-run.", err=True)
        return False
    if yes or not asks:
        return True
    if not sys.stdin.isatty():
        raise click.UsageError("There is no terminal to ask on: give --yes; --dry-run shows what would be done.")
    print_table(rows, err=True)
    click.confirm(question, abort=True, err=True)
    return True


def means_many(patterns: Sequence[str], choice: Choice) -> bool:
    """Whether a choice is more than one name, so that what it means should be shown before it is changed."""
    return len(patterns) != 1 or is_pattern(patterns[0]) or bool(choice.given)


def require_some(patterns: Sequence[str], choice: Choice) -> None:
    """Raise UsageError if nothing is chosen: no names, and no filters that could stand alone."""
    if not patterns and choice.given in ([], ["--limit"]):
        raise click.UsageError("Say on which connections: give names or GLOBs, or '*' for all.")


def jobs_option(default: int = 16, most: int = 128) -> Callable[[Command], Command]:
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
        help="How many connections at once.",
    )


brief_option = click.option(
    "--brief", is_flag=True, help="With --all: one line for each connection, as soon as it is done."
)


def check_brief(*, brief: bool, everywhere: bool, as_json: bool) -> None:
    """Raise UsageError if ``--brief`` stands without ``--all`` or beside ``--json``."""
    if brief and not everywhere:
        raise click.UsageError("--brief goes with --all.")
    if brief and as_json:
        raise click.UsageError("Give --brief or --json.")


class Chosen(NamedTuple):
    """The chosen connections, in the order of `connmgr ls`; ``of`` also counts those beyond the limit."""

    names: list[Name]
    of: int


def chosen(
    client: Client,
    patterns: Sequence[str],
    choice: Choice,
    *,
    usage: str | None = None,
    may_be_none: bool = False,
    addresses: bool = False,
) -> Chosen:
    """Return what names and patterns mean, narrowed by ``choice``; without ``patterns``, all that ``choice`` matches.

    ``usage`` excludes connections of other usages. With ``may_be_none`` filters alone may match nothing.
    With ``addresses`` one of ``patterns`` may be that of a machine without a stored connection.
    :raises Failure: the filters match nothing, or ``failed`` is not the output of an earlier run.
    :raises ClientError: as :meth:`connmgr.client.endpoints.Connections.choose`.
    """
    # Connections to addresses are not listed; a uuid may be that of one.
    direct = [one for one in patterns if addresses and not is_pattern(one) and (UUID.fullmatch(one) or read(one))]
    rest = [one for one in patterns if one not in direct or (UUID.fullmatch(one) and choice.filters)]
    selected = [_at(client, one) for one in direct if one not in rest]
    if rest or not patterns:
        selected += client.connection.choose(*rest, category=choice.category, type=choice.kind, usage=usage)
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


def _at(client: Client, address: str) -> Name:
    [one] = client.connection.info([reach(client, address)])
    return Name(one.id, one.category, one.name, one.type, one.usage)


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
            raise Failure(f"--failed: line {number} is not one that `connmgr exec --all --json` prints.") from None
