"""``connmgr token``: tokens for others."""

from __future__ import annotations

from typing import Any

import click

from connmgr.cli.daemon import connect
from connmgr.cli.duration import Duration
from connmgr.cli.exits import Failure
from connmgr.cli.output import json_option, print_json, print_table
from connmgr.cli.token_options import token_options, wanted
from connmgr.client import Client
from connmgr.printable import visible

DAY = 86400
MAX_DAYS = 90


@click.group(name="token")
def token() -> None:
    """Give others tokens, for just what they are for."""


@token.command(name="create")
@click.option("--for", "name", metavar="NAME", required=True, help="Who or what the token is for.")
@click.option(
    "--expires",
    metavar="TIME",
    required=True,
    type=Duration(MAX_DAYS * DAY),
    help="When it expires, from now: 30m, 12h or 7d; at most 90d.",
)
@token_options
@json_option
def create(name: str, expires: float, *, as_json: bool, **given: Any) -> None:
    """Create a token, and print it. It is never shown again.

    --may and --ask add the scopes that they need. Only the token goes to stdout.
    """
    created = connect().post("/token/create", name=name, expires=expires, **wanted(given))
    if as_json:
        print_json(created)
        return
    click.echo(created["token"])
    click.echo(f"{created['id'][:8]}  {visible(name)}, until {created['expires']}; it is not shown again", err=True)


@token.command(name="ls")
@json_option
def ls(*, as_json: bool) -> None:
    """List the tokens, invalid ones too."""
    tokens = connect().post("/token/query")["tokens"]
    if as_json:
        print_json(tokens)
        return
    if tokens:
        print_table([_row(one) for one in tokens])


@token.command(name="revoke")
@click.argument("name", metavar="TOKEN")
def revoke(name: str) -> None:
    """Revoke a token, and end what it runs.

    Tokens that were created with it are revoked too. TOKEN is its name, or its uuid or the beginning of that.
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
    """Change the time when a token expires."""
    client = connect()
    renewed = client.post("/token/renew", id=_find(client, name), expires=expires)
    click.echo(f"{renewed['id'][:8]}  {visible(renewed['name'])}, until {renewed['expires']}", err=True)


def _find(client: Client, name: str) -> str:
    """Return the uuid of a token by its name, or the beginning of its uuid.

    :raises Failure: there is none, or more than one valid one.
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
