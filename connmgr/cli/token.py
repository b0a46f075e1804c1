"""``connmgr token``: tokens for others."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from connmgr.cli.connect import connect
from connmgr.cli.exits import Failure
from connmgr.cli.output import Duration, check_new, json_option, print_json, print_table, write_private
from connmgr.cli.token_options import report_unmatched, token_options, wanted
from connmgr.client import Client
from connmgr.client.names import did_you_mean, is_text, with_beginning
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
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the token into the new FILE, which only you can read, instead of standard output. If the token is "
    "refused, there is no FILE; > would leave an empty one.",
)
@click.option("--force", is_flag=True, help="Let --output overwrite FILE if it exists.")
@click.option(
    "--lend-secrets",
    is_flag=True,
    help="Let it use, though never read, the secrets that the vault user unlocked by connmgr vault unlock can open, "
    "until that user is locked. See connmgr token lend.",
)
@click.option(
    "--lend-for",
    metavar="TIME",
    type=Duration(MAX_DAYS * DAY),
    help="End --lend-secrets after this time, too: 30m or 12h.",
)
@token_options
@json_option
def create(
    name: str,
    expires: float,
    output: Path | None,
    *,
    force: bool,
    lend_secrets: bool,
    lend_for: float | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Create a token, and print it or write it into a file. It is never shown again.

    --may and --ask add the scopes that they need. Only the token goes to stdout. A filter that matches no connection
    now is reported.
    """
    if output is not None and as_json:
        raise click.UsageError("--json prints the token, and --output does not: give one of them.")
    if force and output is None:
        raise click.UsageError("--force is for --output.")
    if output is not None:
        check_new(output, force=force)
    members = {**_lending(lend_for, is_wanted=lend_secrets), **wanted(given)}
    client = connect()
    created = client.post("/token/create", name=name, expires=expires, **members)
    report_unmatched(client, members)
    if as_json:
        print_json(created)
        return
    place = "it is not shown again"
    if output is None:
        click.echo(created["token"])
    else:
        try:
            write_private(output, f"{created['token']}\n", replace=force)
        except Failure:
            # Nobody has its text.
            client.token.revoke(created["id"])
            raise
        place = f"it is in {visible(str(output))}"
    click.echo(f"{created['id']}  {visible(name)}, until {created['expires']}; {place}", err=True)
    if created["lent"]:
        click.echo(_loan(created["lent"]), err=True)


@token.command(name="info")
@click.argument("name", metavar="[TOKEN]", required=False)
@json_option
def info(name: str | None, *, as_json: bool) -> None:
    """Show what a token may do, and the tokens that were created with it.

    TOKEN is its name or its uuid, of which the first 8 digits suffice; without TOKEN it is the token of this command.
    """
    client = connect()
    # Tokens without this scope have created none.
    own = client.post("/token/info") if name is None else None
    lists = own is None or "token.query" in own["actions"]
    tokens = client.token.query() if lists else []
    one = own if own is not None else _of(tokens, str(name), reads=True)
    below = [each for each in tokens if one["id"] is not None and _comes_from(each, one["id"], tokens)]
    if as_json:
        print_json({**one, "descendants": [each["id"] for each in below]})
        return
    if one["id"] is None:
        click.echo("No token: this command authenticates as the owner, who may do everything.")
        return
    print_table([(label, value) for label, value in _described(one, below) if value])


@token.command(name="ls")
@json_option
def ls(*, as_json: bool) -> None:
    """List the tokens, invalid ones too."""
    tokens = connect().token.query()
    if as_json:
        print_json(tokens)
        return
    if tokens:
        print_table([_row(one) for one in tokens])


@token.command(name="revoke")
@click.argument("name", metavar="TOKEN")
def revoke(name: str) -> None:
    """Revoke a token, and end what it runs.

    Tokens that were created with it are revoked too. TOKEN is its name or its uuid.
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
    click.echo(f"{renewed['id']}  {visible(renewed['name'])}, until {renewed['expires']}", err=True)


@token.command(name="lend")
@click.argument("name", metavar="TOKEN")
@click.option(
    "--for",
    "seconds",
    metavar="TIME",
    type=Duration(MAX_DAYS * DAY),
    help="How long: 30m or 12h.  [default: until the token expires]",
)
@click.option("--end", is_flag=True, help="End the loan, and what the token runs by it.")
def lend(name: str, seconds: float | None, *, end: bool) -> None:
    """Let a token use the secrets that you have unlocked, without reading them.

    The vault user that connmgr vault unlock has unlocked lends. The token can then use all connections that it sees and
    this user can open. The loan ends by connmgr vault lock, with the time, the token and the daemon, and by --end.
    TOKEN is its name or its uuid.
    """
    if end and seconds is not None:
        raise click.UsageError("--for and --end exclude each other.")
    if not end:
        _refuse_single_unlock("connmgr token lend")
    client = connect()
    lent = client.token.lend(_find(client, name), seconds, end=end)["lent"]
    click.echo(_loan(lent) if lent else "Nothing is lent to it.", err=True)


def _lending(seconds: float | None, *, is_wanted: bool) -> dict[str, Any]:
    """Return the member of ``/token/create`` for ``--lend-secrets`` and ``--lend-for``."""
    if not is_wanted:
        if seconds is not None:
            raise click.UsageError("--lend-for is for --lend-secrets.")
        return {}
    _refuse_single_unlock("--lend-secrets")
    return {"lendSecrets": True if seconds is None else {"seconds": seconds}}


def _refuse_single_unlock(what: str) -> None:
    """Refuse ``--unlock``, after which nobody could lock the user again."""
    user = click.get_current_context().find_root().params.get("unlock")
    if user is not None:
        raise click.UsageError(
            f"{what} holds as long as a user stays unlocked, and --unlock keeps no session in which you could lock it: "
            f"run connmgr vault unlock {user} first."
        )


def _loan(lent: dict[str, Any]) -> str:
    return f"It may use the secrets of {visible(lent['user'])} until {lent['until']}, or until connmgr vault lock."


def _find(client: Client, name: str) -> str:
    """Return the uuid of a token; otherwise as :func:`_of`."""
    return str(_of(client.token.query(), name)["id"])


def _of(tokens: Sequence[dict[str, Any]], name: str, *, reads: bool = False) -> dict[str, Any]:
    """Return a token by its whole name or uuid, or if ``reads`` by the beginning of its uuid.

    Of tokens with one name it is the only valid one.
    :raises Failure: there is none, or more than one.
    """
    named = [one for one in tokens if name == one["name"] or name.lower() == one["id"]]
    if not named and reads:
        begins = with_beginning((one["id"] for one in tokens), name)
        named = [one for one in tokens if one["id"] in begins]
    found = [one for one in named if one["state"] == "valid"] or named
    if len(found) == 1:
        return found[0]
    if found:
        lines = [f"  {one['id']}  {one['state']}, until {one['expires']}" for one in found]
        raise Failure("\n".join([f"{visible(name)!r} means {len(found)} tokens; give the uuid:", *lines]))
    times = Counter(one["name"] for one in tokens if one["state"] == "valid") if is_text(name) else {}
    hint = did_you_mean(name, {one: one for one, number in times.items() if number == 1})
    raise Failure(f"No token has the name or the uuid {visible(name)!r}.{hint} `connmgr token ls` lists them.")


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    used = one["lastUsed"][:16].replace("T", " ") if one["lastUsed"] else "-"
    return (
        one["id"],
        one["name"],
        one["state"],
        one["expires"][:16].replace("T", " "),
        used,
        _filters(one["connections"]),
        _filters(one["categories"]),
        ",".join(one["scopes"]) or "no scopes",
        _counted_rules(one["rules"]) + (f"; secrets of {one['lent']['user']}" if one["lent"] else ""),
    )


def _filters(filters: Sequence[str]) -> str:
    return ",".join(filters) or "nothing"


def _counted_rules(rules: Sequence[dict[str, Any]]) -> str:
    """Return the number of rules of each effect, as ``allow 2, deny 1``."""
    counts = Counter(str(rule.get("effect")) for rule in rules)
    return ", ".join(f"{effect} {number}" for effect, number in sorted(counts.items())) or "no rules"


def _comes_from(one: dict[str, Any], ancestor: str, tokens: Sequence[dict[str, Any]]) -> bool:
    parents = {each["id"]: each["parent"] for each in tokens}
    above = one["parent"]
    while above is not None and above != ancestor:
        above = parents.get(above)
    return above is not None


def _described(one: dict[str, Any], below: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    quota = one.get("quotaPerDay")
    yield "name", str(one["name"])
    yield "uuid", str(one["id"])
    yield "state", str(one.get("state", ""))
    yield "expires", str(one["expires"])
    yield "created", str(one.get("created") or "")
    yield "created with", f"the token {one['parent']}, whose limits apply too" if one.get("parent") else ""
    yield "last used", str(one.get("lastUsed") or "")
    yield "scopes", ", ".join(one["scopes"]) or "none: it may only ask about itself"
    yield "connections", ", ".join(one["connections"]) or "none"
    yield "categories", ", ".join(one["categories"]) or "none"
    for number, rule in enumerate(one["rules"]):
        yield f"rule {number}", json.dumps(rule, ensure_ascii=False)
    if not one["rules"]:
        yield "rules", "none: the scopes decide"
    yield "quota", f"{one.get('usedToday', 0)} of {quota} requests used today" if quota else "no limit per day"
    if lent := one.get("lent"):
        yield "secrets", f"those of {lent['user']}, until {lent['until']} or connmgr vault lock"
    yield "at once", f"at most {one['maxConcurrent']} requests" if one.get("maxConcurrent") else "no limit"
    yield "from", ", ".join(one.get("from") or ()) or "any address"
    for each in below:
        yield "descendant", f"{each['id']}  {each['name']}  {each['state']}"
