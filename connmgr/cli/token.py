"""``connmgr token``: tokens for others."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import click

from connmgr.cli.daemon import connect
from connmgr.cli.duration import Duration
from connmgr.cli.exits import Failure
from connmgr.cli.output import json_option, print_json, print_table, visible
from connmgr.client import Client

DAY = 86400
MAX_DAYS = 90
KINDS = {"argv": "shell.argv", "read": "fs.read", "write": "fs.write", "command": "shell.argv"}
"""What ``--may`` begins with, and the scope that it gives."""

ANY_WORD, MORE_WORDS = "*", "..."
_NO_OPTION = {"re": "[^-].*"}
_RULE = "KIND:WHAT"


def _rule(effect: str, text: str) -> dict[str, Any]:
    kind, colon, rest = text.partition(":")
    if not colon or kind not in {*KINDS, "text"} or not rest.strip() or (kind == "text" and effect == "allow"):
        kinds = ", ".join(KINDS) + ("" if effect == "allow" else ", text")
        raise click.BadParameter(f"{text!r} does not begin with one of {kinds} and a colon.")
    if kind == "argv":
        return {"effect": effect, "argv": _elements(rest)}
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


@click.group(name="token")
def token() -> None:
    """Give others tokens, for just what they are for."""


@token.command(name="create")
@click.option("--for", "name", metavar="NAME", required=True, help="Who or what it is for.")
@click.option(
    "--expires",
    metavar="TIME",
    required=True,
    type=Duration(MAX_DAYS * DAY),
    help="When it expires, from now: 90s, 30m, 12h or 7d; at most 90d.",
)
@click.option("--only", metavar="FILTER", multiple=True, help="The connections that it sees.  [default: all]")
@click.option("--category", metavar="FILTER", multiple=True, help="The categories whose connections it sees.")
@click.option("--scope", "scopes", metavar="SCOPE", multiple=True, help="What it may do, such as connection.read.")
@click.option(
    "--may",
    metavar=_RULE,
    multiple=True,
    help="What it may run or touch: argv:PROGRAM WORD..., read:PATH, write:PATH, command:NAME. A word * stands for any "
    "that is no option, ... for any further words; in a path * stays within a directory, ** does not.",
)
@click.option("--ask", metavar=_RULE, multiple=True, help="What somebody has to approve first; also text:REGEX.")
@click.option("--deny", metavar=_RULE, multiple=True, help="What it may not do; also text:REGEX.")
@click.option(
    "--rules",
    "file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="A file with further rules, as JSON.",
)
@click.option("--quota", metavar="NUMBER", type=click.IntRange(1), help="Requests that it may send in a day.")
@click.option("--at-once", metavar="NUMBER", type=click.IntRange(1), help="Requests that may be under way at once.")
@click.option("--from", "networks", metavar="ADDRESS", multiple=True, help="Addresses that it may be used from.")
@json_option
def create(name: str, expires: float, scopes: tuple[str, ...], *, as_json: bool, **given: Any) -> None:
    """Create a token, and print it: this once.

    --may and --ask bring the scopes that they need. The token alone goes to stdout.
    """
    rules = [_rule(effect, one) for effect, key in _EFFECTS for one in given[key]]
    kinds = {one.partition(":")[0] for key in ("may", "ask") for one in given[key]} - {"text"}
    # Names of connections are looked up.
    of_rules = {KINDS[kind] for kind in kinds} | ({"connection.read"} if kinds else set())
    wanted: dict[str, Any] = {
        "name": name,
        "expires": expires,
        "scopes": sorted({*scopes, *of_rules}),
        "rules": [*rules, *(_read(given["file"]) if given["file"] else [])],
        "connections": list(given["only"]) or ["*"],
        "categories": list(given["category"]) or ["*"],
    }
    optional = {"quotaPerDay": given["quota"], "maxConcurrent": given["at_once"], "from": list(given["networks"])}
    created = connect().post("/token/create", **wanted, **{key: value for key, value in optional.items() if value})
    if as_json:
        print_json(created)
        return
    click.echo(created["token"])
    click.echo(f"{created['id'][:8]}  {visible(name)}, until {created['expires']}; it is not shown again", err=True)


_EFFECTS = (("deny", "deny"), ("ask", "ask"), ("allow", "may"))


@token.command(name="ls")
@json_option
def ls(*, as_json: bool) -> None:
    """List the tokens, those too that are no longer valid."""
    tokens = connect().post("/token/query")["tokens"]
    if as_json:
        print_json(tokens)
        return
    if tokens:
        print_table([_row(one) for one in tokens])


@token.command(name="revoke")
@click.argument("name", metavar="TOKEN")
def revoke(name: str) -> None:
    """Make a token invalid at once, with all that were made with it, and end what runs by them.

    TOKEN is its name, or its uuid or the beginning of that.
    """
    client = connect()
    client.post("/token/revoke", id=_find(client, name))


@token.command(name="renew")
@click.argument("name", metavar="TOKEN")
@click.option(
    "--expires",
    metavar="TIME",
    required=True,
    type=Duration(MAX_DAYS * DAY),
    help="When it expires, from now.",
)
def renew(name: str, expires: float) -> None:
    """Let a token expire later, or sooner."""
    client = connect()
    renewed = client.post("/token/renew", id=_find(client, name), expires=expires)
    click.echo(f"{renewed['id'][:8]}  {visible(renewed['name'])}, until {renewed['expires']}", err=True)


def _find(client: Client, name: str) -> str:
    """Return the uuid of a token by its name, or the beginning of its uuid.

    :raises Failure: there is none, or more than one that is valid.
    """
    tokens = client.post("/token/query")["tokens"]
    named = [one for one in tokens if one["name"] == name or one["id"].startswith(name.lower())]
    found = [one for one in named if one["state"] == "valid"] or named
    if len(found) == 1:
        return str(found[0]["id"])
    many = "are several tokens; name one by its uuid" if found else "is no token"
    raise Failure(f"{visible(name)} {many}: connmgr token ls.")


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    used = one["lastUsed"][:16].replace("T", " ") if one["lastUsed"] else "-"
    filters = ",".join(one["connections"])
    return (
        one["id"][:8],
        one["name"],
        one["state"],
        one["expires"][:16].replace("T", " "),
        used,
        filters,
        ",".join(one["scopes"]),
    )


def _read(path: str) -> list[Any]:
    try:
        rules = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise Failure(f"The rules in {path} cannot be read: {error}") from error
    if not isinstance(rules, list):
        raise Failure(f"{path} holds no list of rules.")
    return rules
