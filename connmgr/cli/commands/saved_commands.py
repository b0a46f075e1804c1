"""``connmgr command``: commands with parameters that are stored in the vault."""

from __future__ import annotations

import re
from typing import Any

import click

from connmgr.cli.connect import connect
from connmgr.cli.group import Group
from connmgr.cli.output import json_option, print_json, print_table
from connmgr.printable import visible

_KINDS = ("re", "in", "integer", "path")
_WHOLE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_RANGE = re.compile(r"(-?[0-9]{1,18})?\.\.(-?[0-9]{1,18})?")


@click.group(cls=Group)
def command() -> None:
    """Manage saved commands.

    `connmgr exec --saved` runs one. A rule of a token can allow one by its name.
    """


@command.command(name="save")
@click.argument("name", metavar="NAME")
@click.argument("argv", metavar="-- ARGV...", nargs=-1, required=True)
@click.option(
    "--parameter",
    "parameters",
    metavar="NAME=KIND:VALUE",
    multiple=True,
    help="The values that a parameter accepts. May be given several times.",
)
@click.option("--description", metavar="TEXT", help="What the command is for.")
@click.option("--replace", is_flag=True, help="Replace the command of this name.")
@click.option(
    "--may-run-others",
    is_flag=True,
    help="Let rules of tokens name it although a parameter takes free words for a program that does more than print, "
    "and so may write files or run other programs.",
)
def save(
    name: str,
    argv: tuple[str, ...],
    parameters: tuple[str, ...],
    description: str | None,
    *,
    replace: bool,
    may_run_others: bool,
) -> None:
    r"""Save a command with parameters.

    ARGV is a program and its words, which no shell reads. {service} in a word stands for the argument of that name; {{
    and }} stand for braces. Each parameter takes what a --parameter says: `service=re:[\w-]+`, a regular expression for
    all of it; `service=in:nginx,redis`, one of these; `lines=integer:1..100`; `file=path:/srv/**`, a path by a pattern.
    """
    options: dict[str, Any] = {} if description is None else {"description": description}
    if may_run_others:
        options["mayRunOthers"] = True
    warning = connect().command.save(
        name, list(map(_word, argv)), parameters=dict(map(_parameter, parameters)), replace=replace, **options
    )
    if warning:
        click.echo(f"connmgr: saved, but no rule can allow it to a token. {visible(warning)}", err=True)


@command.command(name="ls")
@json_option
def ls(*, as_json: bool) -> None:
    """List the saved commands."""
    commands = connect().command.query()
    if as_json:
        print_json(commands)
        return
    print_table([(one["name"], _words(one), visible(one["description"])) for one in commands])


@command.command(name="rm")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def rm(names: tuple[str, ...]) -> None:
    """Remove saved commands."""
    client = connect()
    for name in names:
        client.command.remove(name)


def _word(text: str) -> Any:
    if whole := _WHOLE.fullmatch(text):
        return {"parameter": whole[1]}
    return {"text": text} if "{" in text or "}" in text else text


def _parameter(given: str) -> tuple[str, dict[str, Any]]:
    name, _, value = given.partition("=")
    kind, colon, rest = value.partition(":")
    if not colon or kind not in _KINDS:
        raise click.BadParameter(f"{given!r} is not of the form NAME=KIND:VALUE, with KIND one of {', '.join(_KINDS)}.")
    if kind == "integer":
        bounds = _RANGE.fullmatch(rest)
        if bounds is None:
            raise click.BadParameter(f"{rest!r} is not of the form MIN..MAX, such as 1..100.")
        return name, {
            kind: {end: int(bound) for end, bound in zip(("min", "max"), bounds.groups(), strict=True) if bound}
        }
    return name, {kind: rest.split(",") if kind == "in" else rest}


def _words(one: dict[str, Any]) -> str:
    """Return the words of a command as ``save`` takes them."""
    import shlex

    words = (
        word if isinstance(word, str) else word.get("text", f"{{{word.get('parameter')}}}") for word in one["argv"]
    )
    return shlex.join(words)
