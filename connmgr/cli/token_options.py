"""The rights of a new token, as options of the commands that create tokens."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from connmgr.cli.exits import Failure
from connmgr.client import Client, ClientError
from connmgr.printable import visible

Command = TypeVar("Command", bound=Callable[..., Any])

KINDS = {
    "argv": "shell.argv",
    "argv-any": "shell.argv",
    "read": "fs.read",
    "write": "fs.write",
    "command": "shell.argv",
}
"""The first words of a ``--may`` rule, and the scope that each needs."""

ANY_WORD, MORE_WORDS = "*", "..."
_NO_OPTION = {"re": "[^-].*"}
_RULE = "KIND:WHAT"
_EFFECTS = (("deny", "deny"), ("ask", "ask"), ("allow", "may"))

_OPTIONS = (
    click.option("--only", metavar="FILTER", multiple=True, help="The connections that it sees.  [default: all]"),
    click.option("--category", metavar="FILTER", multiple=True, help="The categories whose connections it sees."),
    click.option(
        "--scope",
        "scopes",
        metavar="SCOPE",
        multiple=True,
        help="A kind of action that it may use, such as connection.read.",
    ),
    click.option(
        "--may",
        metavar=_RULE,
        multiple=True,
        help="What it may run or touch: argv:PROGRAM WORD..., read:PATH, write:PATH, command:NAME. A word * stands "
        "for any word that is not an option, ... for any further words; in a path * stays within a directory, ** "
        "does not. Words with * or ... need a program that only prints, such as ls; argv-any:PROGRAM WORD... allows "
        "them for any program, and so what it can do with any word: write files, run other programs.",
    ),
    click.option(
        "--ask", metavar=_RULE, multiple=True, help="What needs somebody's approval each time; also text:REGEX."
    ),
    click.option("--deny", metavar=_RULE, multiple=True, help="What it may not do; also text:REGEX."),
    click.option(
        "--rules",
        "rules_file",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False),
        help="A file with further rules, as JSON.",
    ),
    click.option("--quota", metavar="NUMBER", type=click.IntRange(1), help="Most requests per day."),
    click.option("--at-once", metavar="NUMBER", type=click.IntRange(1), help="Most requests under way at once."),
    click.option("--from", "networks", metavar="ADDRESS", multiple=True, help="Addresses from which it may be used."),
)


def token_options(command: Command) -> Command:
    """Give a command the options for a token's rights; it passes its keyword arguments to :func:`wanted`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def wanted(given: dict[str, Any]) -> dict[str, Any]:
    """Return the members of ``/token/create`` for the options ``given`` to a command.

    :raises click.BadParameter: a rule is malformed.
    :raises Failure: the file with rules cannot be read.
    """
    rules = [_rule(effect, one) for effect, key in _EFFECTS for one in given[key]]
    kinds = {one.partition(":")[0] for key in ("may", "ask") for one in given[key]} - {"text"}
    # These tokens must be able to look up names of connections.
    of_rules = {KINDS[kind] for kind in kinds} | ({"connection.read"} if kinds else set())
    members: dict[str, Any] = {
        "scopes": sorted({*given["scopes"], *of_rules}),
        "rules": [*rules, *(_read(given["rules_file"]) if given["rules_file"] else [])],
        "connections": list(given["only"]) or ["*"],
        "categories": list(given["category"]) or ["*"],
    }
    optional = {"quotaPerDay": given["quota"], "maxConcurrent": given["at_once"], "from": list(given["networks"])}
    return members | {key: value for key, value in optional.items() if value}


def report_unmatched(client: Client, members: dict[str, Any]) -> None:
    """Tell on stderr which filters of a new token match nothing now; later connections may match."""
    categories = members["categories"]
    try:
        unmatched = [
            *(
                ("--only", one)
                for one in members["connections"]
                if not any(client.connection.query(one, category=each) for each in categories)
            ),
            *(("--category", one) for one in categories if not client.connection.query(category=one)),
        ]
    except ClientError as error:
        # A token may create one that sees more than its own scopes let it look up.
        if error.code != "scope_denied":
            raise
        return
    for option, one in unmatched:
        click.echo(f"connmgr: {option} {shlex.quote(visible(one))} matches no connection now.", err=True)


def _rule(effect: str, text: str) -> dict[str, Any]:
    kind, colon, rest = text.partition(":")
    if not colon or kind not in {*KINDS, "text"} or not rest.strip() or (kind == "text" and effect == "allow"):
        kinds = ", ".join(KINDS) + ("" if effect == "allow" else ", text")
        raise click.BadParameter(f"{text!r} does not begin with one of {kinds} and a colon.")
    if kind in ("argv", "argv-any"):
        return {"effect": effect, "argv": _elements(rest), **({"mayRunOthers": True} if kind == "argv-any" else {})}
    if kind in ("read", "write"):
        return {"effect": effect, "path": rest, "action": f"fs.{kind}"}
    return {"effect": effect, kind: rest}


def _elements(words: str) -> list[Any]:
    try:
        split = shlex.split(words)
    except ValueError as error:
        raise click.BadParameter(f"{words!r}: {error}.") from None
    elements: list[Any] = [_element(word) for word in split]
    if split and split[-1] == MORE_WORDS:
        elements[-1] = {"rest": {"re": ".*"}}
    return elements


def _element(word: str) -> Any:
    if word == ANY_WORD:
        return _NO_OPTION
    if ANY_WORD not in word:
        return word
    return {"re": "[^/]*".join(map(re.escape, word.split(ANY_WORD)))}


def _read(path: str) -> list[Any]:
    try:
        rules = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise Failure(f"The rules in {path} cannot be read: {error}") from error
    if not isinstance(rules, list):
        raise Failure(f"{path} is not a list of rules.")
    if not rules:
        raise Failure(f"{path} has no rules, so that the scopes alone would decide: leave out --rules for that.")
    return rules
