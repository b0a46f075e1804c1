"""``connmgr token``, ``command`` and ``approve``: what others may do, and deciding about what they ask for."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from connmgr.cli.connect import connect
from connmgr.cli.exits import NOT_FOUND, Failure
from connmgr.cli.options import Group, require_once
from connmgr.cli.output import Duration, ago, check_new, json_option, print_json, print_list, print_table, write_private
from connmgr.client import Client, ClientError
from connmgr.client.names import did_you_mean, is_text, with_beginning
from connmgr.client.rights import described, quoted
from connmgr.contract.event import APPROVAL, STREAM
from connmgr.contract.token import MAX_DAYS
from connmgr.printable import gist, visible

Command = TypeVar("Command", bound=Callable[..., Any])

DAY = 86400

KINDS = {
    "argv": "shell.argv",
    "argv-any": "shell.argv",
    "read": "fs.read",
    "write": "fs.write",
    "command": "shell.argv",
}
"""The first words of a ``--may`` rule, and the scope that each needs."""

ANY_WORD, MORE_WORDS = "*", "..."
# No word that begins with -, which the program would take for an option.
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
    click.option(
        "--read-only",
        is_flag=True,
        help="It may only look: its commands run in a sandbox on their machine, by bubblewrap or unshare, and what "
        "changes anything is refused. A machine without either runs nothing for it.",
    ),
    click.option("--quota", metavar="NUMBER", type=click.IntRange(1), help="Most requests per day."),
    click.option("--at-once", metavar="NUMBER", type=click.IntRange(1), help="Most requests under way at once."),
    click.option("--from", "networks", metavar="ADDRESS", multiple=True, help="Addresses from which it may be used."),
)


def token_options(command: Command) -> Command:
    """Give a command the options for a token's rights; it passes its keyword arguments to :func:`token_members`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.group(name="token")
def token() -> None:
    """Give others limited access by tokens."""


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
    help="Let the token use secrets without reading them: those of the vault user whom you have unlocked (connmgr "
    "vault unlock), until that user is locked. See connmgr token lend.",
)
@click.option(
    "--lend-for",
    metavar="TIME",
    type=Duration(MAX_DAYS * DAY),
    help="End the loan of --lend-secrets after this time at the latest: 30m or 12h.",
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
    **flags: Any,
) -> None:
    """Create a token, and print it or write it into a file. It is never shown again.

    --may and --ask add the scopes that they need. Only the token goes to stdout. A filter that matches no connection
    now is reported.
    """
    if output is not None and as_json:
        raise click.UsageError("--json prints the token, --output does not: give only one of them.")
    if force and output is None:
        raise click.UsageError("--force needs --output.")
    if output is not None:
        check_new(output, force=force)
    members = {**_lending(lend_for, is_wanted=lend_secrets), **token_members(flags)}
    client = connect()
    created = client.token.create(name, expires, **members)
    report_unmatched(client, members)
    try:
        if as_json:
            print_json(created)
            return
        place = "it is not shown again"
        if output is None:
            click.echo(created["token"])
        else:
            write_private(output, f"{created['token']}\n", replaces=force)
            place = f"it is in {visible(str(output))}"
    except (Failure, OSError):
        # Nobody has its text: it could not be used, and would only stand in the list.
        client.token.revoke(created["id"])
        raise
    click.echo(f"{created['id']}  {visible(name)}, until {created['expires']}; {place}", err=True)
    if created["lent"]:
        click.echo(_loan(created["lent"]), err=True)


@token.command(name="info")
@click.argument("name", metavar="[TOKEN]", required=False)
@json_option
def info(name: str | None, *, as_json: bool) -> None:
    """Show what a token may do, and the tokens that were created with it.

    TOKEN is a name, a uuid or the first 8 digits of one. Without TOKEN it is the token that this command uses.
    """
    client = connect()
    # Tokens without this scope have created none.
    own = client.post("/token/info") if name is None else None
    lists = own is None or "token.query" in own["actions"]
    tokens = client.token.query() if lists else []
    rights = own if own is not None else _token_of(tokens, str(name), reads=True)
    below = [each for each in tokens if rights["id"] is not None and _comes_from(each, rights["id"], tokens)]
    if as_json:
        print_json({**rights, "descendants": [each["id"] for each in below]})
        return
    if rights["id"] is None:
        click.echo("No token: this command authenticates as the owner, who may do everything.")
        return
    print_table([(label, value) for label, value in _details(rights, below) if value])


@token.command(name="ls")
@json_option
def list_tokens(*, as_json: bool) -> None:
    """List the tokens, invalid ones too."""
    print_list(connect().token.query(), _token_row, as_json=as_json)


@token.command(name="revoke")
@click.argument("name", metavar="TOKEN")
def revoke(name: str) -> None:
    """Revoke a token, and end what it runs.

    Tokens that were created with it are revoked too. TOKEN is its name or its uuid.
    """
    client = connect()
    client.token.revoke(_token_id(client, name))


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
    renewed = client.token.renew(_token_id(client, name), expires)
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
    loan = client.token.lend(_token_id(client, name), seconds, end=end)["lent"]
    click.echo(_loan(loan) if loan else "The token has no loan.", err=True)


def token_members(flags: dict[str, Any]) -> dict[str, Any]:
    """Return the members of ``/token/create`` for the options ``flags`` to a command.

    :raises click.BadParameter: a rule is malformed.
    :raises Failure: the file with rules cannot be read.
    """
    rules = [_rule(effect, rule) for effect, key in _EFFECTS for rule in flags[key]]
    kinds = {rule.partition(":")[0] for key in ("may", "ask") for rule in flags[key]} - {"text"}
    # Rules name connections, and whoever holds the token has to find them by their names first.
    of_rules = {KINDS[kind] for kind in kinds} | ({"connection.read"} if kinds else set())
    members: dict[str, Any] = {
        "scopes": sorted({*flags["scopes"], *of_rules}),
        "rules": [*rules, *(_read_rules(flags["rules_file"]) if flags["rules_file"] else [])],
        "connections": list(flags["only"]) or ["*"],
        "categories": list(flags["category"]) or ["*"],
    }
    optional = {
        "readOnly": flags["read_only"],
        "quotaPerDay": flags["quota"],
        "maxConcurrent": flags["at_once"],
        "from": list(flags["networks"]),
    }
    return members | {key: value for key, value in optional.items() if value}


def report_unmatched(client: Client, members: dict[str, Any]) -> None:
    """Tell on stderr which filters of a new token match nothing now; later connections may match."""
    categories = members["categories"]
    try:
        unmatched = [
            *(
                ("--only", connection)
                for connection in members["connections"]
                if not any(client.connection.query(connection, category=each) for each in categories)
            ),
            *(("--category", category) for category in categories if not client.connection.query(category=category)),
        ]
    except ClientError as error:
        # A token may create one that sees more than its own scopes let it look up.
        if error.code != "scope_denied":
            raise
        return
    for option, pattern in unmatched:
        click.echo(f"connmgr: {option} {shlex.quote(visible(pattern))} matches no connection now.", err=True)


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
    # Only * is special in a word; all else is meant as it is written.
    return {"re": "[^/]*".join(map(re.escape, word.split(ANY_WORD)))}


def _read_rules(path: str) -> list[Any]:
    try:
        rules = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise Failure(f"Cannot read the rules in {path}: {error}") from error
    if not isinstance(rules, list):
        raise Failure(f"{path} is not a JSON list of rules.")
    if not rules:
        raise Failure(f"{path} has no rules, so the scopes alone would decide. Leave out --rules if you want that.")
    return rules


def _lending(seconds: float | None, *, is_wanted: bool) -> dict[str, Any]:
    """Return the member of ``/token/create`` for ``--lend-secrets`` and ``--lend-for``."""
    if not is_wanted:
        if seconds is not None:
            raise click.UsageError("--lend-for needs --lend-secrets.")
        return {}
    _refuse_single_unlock("--lend-secrets")
    return {"lendSecrets": True if seconds is None else {"seconds": seconds}}


def _refuse_single_unlock(what: str) -> None:
    """Refuse ``--unlock``: its session ends with the command, so nobody could lock the user and end the loan."""
    user = click.get_current_context().find_root().params.get("unlock")
    if user is not None:
        raise click.UsageError(
            f"{what} cannot be combined with --unlock: the loan would last, and you could not end it by connmgr vault "
            f"lock. Run connmgr vault unlock {user} first."
        )


def _loan(loan: dict[str, Any]) -> str:
    return f"It may use the secrets of {visible(loan['user'])} until {loan['until']}, or until connmgr vault lock."


def _token_id(client: Client, name: str) -> str:
    """Return the uuid of a token; otherwise as :func:`_of`."""
    return str(_token_of(client.token.query(), name)["id"])


def _token_of(tokens: Sequence[dict[str, Any]], name: str, *, reads: bool = False) -> dict[str, Any]:
    """Return a token by its whole name or uuid, or if ``reads`` by the beginning of its uuid.

    Of several tokens with the name it is the valid one.

    :raises Failure: no token is meant, or several are.
    """
    matches = [token for token in tokens if name == token["name"] or name.lower() == token["id"]]
    if not matches and reads:
        begins = with_beginning((token["id"] for token in tokens), name)
        matches = [token for token in tokens if token["id"] in begins]
    candidates = [token for token in matches if token["state"] == "valid"] or matches
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        lines = [f"  {token['id']}  {token['state']}, until {token['expires']}" for token in candidates]
        raise Failure("\n".join([f"{visible(name)!r} means {len(candidates)} tokens; give the uuid:", *lines]))
    times = Counter(token["name"] for token in tokens if token["state"] == "valid") if is_text(name) else {}
    hint = did_you_mean(name, {text: text for text, number in times.items() if number == 1})
    raise Failure(f"No token has the name or the uuid {visible(name)!r}.{hint} `connmgr token ls` lists them.")


def _token_row(token: dict[str, Any]) -> tuple[str, ...]:
    last_use = token["lastUsed"][:16].replace("T", " ") if token["lastUsed"] else "-"
    return (
        token["id"],
        token["name"],
        token["state"],
        token["expires"][:16].replace("T", " "),
        last_use,
        _filters(token["connections"]),
        _filters(token["categories"]),
        ",".join(token["scopes"]) or "no scopes",
        _counted_rules(token["rules"]) + (f"; secrets of {token['lent']['user']}" if token["lent"] else ""),
    )


def _filters(filters: Sequence[str]) -> str:
    return ",".join(filters) or "nothing"


def _counted_rules(rules: Sequence[dict[str, Any]]) -> str:
    """Return the number of rules of each effect, as ``allow 2, deny 1``."""
    counts = Counter(str(rule.get("effect")) for rule in rules)
    return ", ".join(f"{effect} {number}" for effect, number in sorted(counts.items())) or "no rules"


def _comes_from(token: dict[str, Any], ancestor: str, tokens: Sequence[dict[str, Any]]) -> bool:
    parents = {each["id"]: each["parent"] for each in tokens}
    above = token["parent"]
    while above is not None and above != ancestor:
        above = parents.get(above)
    return above is not None


def _details(token: dict[str, Any], below: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    quota = token.get("quotaPerDay")
    yield "name", str(token["name"])
    yield "uuid", str(token["id"])
    yield "state", str(token.get("state", ""))
    yield "expires", str(token["expires"])
    yield "created", str(token.get("created") or "")
    yield "created with", f"the token {token['parent']}, whose limits apply too" if token.get("parent") else ""
    yield "last used", str(token.get("lastUsed") or "")
    yield "scopes", ", ".join(token["scopes"]) or "none: it may only ask about itself"
    yield "connections", ", ".join(token["connections"]) or "none"
    yield "categories", ", ".join(token["categories"]) or "none"
    for number, rule in enumerate(token["rules"]):
        yield f"rule {number}", json.dumps(rule, ensure_ascii=False)
    if not token["rules"]:
        yield "rules", "none: the scopes decide"
    yield "read only", "yes: it may only look, and its commands run in a sandbox" if token.get("readOnly") else ""
    yield "quota", f"{token.get('usedToday', 0)} of {quota} requests used today" if quota else "no limit per day"
    if loan := token.get("lent"):
        yield "secrets", f"those of {loan['user']}, until {loan['until']} or connmgr vault lock"
    yield "at once", f"at most {token['maxConcurrent']} requests" if token.get("maxConcurrent") else "no limit"
    yield "from", ", ".join(token.get("from") or ()) or "any address"
    for each in below:
        yield "descendant", f"{each['id']}  {each['name']}  {each['state']}"


_VALUE_KINDS = ("re", "in", "integer", "path")
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
    help="Let rules of tokens name this command although a parameter takes any words, with which its program may write "
    "files or run other programs.",
)
def save_command(
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
        name, list(map(_word, argv)), parameters=_parameters(parameters), replace=replace, **options
    )
    if warning:
        click.echo(f"connmgr: saved, but no rule can allow it to a token. {visible(warning)}", err=True)


@command.command(name="ls")
@json_option
def list_commands(*, as_json: bool) -> None:
    """List the saved commands."""

    def row(command: dict[str, Any]) -> tuple[str, ...]:
        return command["name"], _words(command), visible(command["description"])

    print_list(connect().command.query(), row, as_json=as_json)


@command.command(name="rm")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def remove_command(names: tuple[str, ...]) -> None:
    """Remove saved commands."""
    client = connect()
    for name in names:
        client.command.remove(name)


def _word(text: str) -> Any:
    if whole := _WHOLE.fullmatch(text):
        return {"parameter": whole[1]}
    return {"text": text} if "{" in text or "}" in text else text


def _parameters(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    parameters = list(map(_parameter, texts))
    require_once(name for name, _ in parameters)
    return dict(parameters)


def _parameter(text: str) -> tuple[str, dict[str, Any]]:
    name, _, value = text.partition("=")
    kind, colon, rest = value.partition(":")
    if not colon or kind not in _VALUE_KINDS:
        raise click.BadParameter(
            f"{text!r} is not of the form NAME=KIND:VALUE, with KIND one of {', '.join(_VALUE_KINDS)}."
        )
    if kind == "integer":
        bounds = _RANGE.fullmatch(rest)
        if bounds is None:
            raise click.BadParameter(f"{rest!r} is not of the form MIN..MAX, such as 1..100.")
        return name, {
            kind: {end: int(bound) for end, bound in zip(("min", "max"), bounds.groups(), strict=True) if bound}
        }
    return name, {kind: rest.split(",") if kind == "in" else rest}


def _words(command: dict[str, Any]) -> str:
    """Return the words of a command as ``save`` takes them."""
    words = (
        word if isinstance(word, str) else word.get("text", f"{{{word.get('parameter')}}}") for word in command["argv"]
    )
    return shlex.join(words)


NOTICE_SECONDS = 10.0


@click.command()
@click.argument("name", metavar="[APPROVAL]", required=False)
@click.option("--once", is_flag=True, help="Approve it for one request.")
@click.option(
    "--grant", metavar="TIME", type=Duration(DAY), help="Approve it repeatedly for this time: 90s, 30m, 1h, 1d."
)
@click.option(
    "--pattern",
    metavar="TIME",
    type=Duration(DAY),
    help="Approve the pattern that is proposed beside it, as a rule of the token for this time.",
)
@click.option("--deny", is_flag=True, help="Deny it, for ten minutes.")
@click.option("--watch", is_flag=True, help="Show requests as they come, until Ctrl-C.")
@click.option("--notify", is_flag=True, help="With --watch: also a notice of the desktop or terminal for each request.")
@json_option
def approve(
    name: str | None,
    grant: float | None,
    pattern: float | None,
    *,
    once: bool,
    deny: bool,
    watch: bool,
    notify: bool,
    as_json: bool,
) -> None:
    """Decide about requests of tokens, or list them.

    Without APPROVAL it lists the pending requests. APPROVAL is a uuid; the command shows the whole request. Without
    --once, --grant, --pattern or --deny it then asks on the terminal, and the first 8 digits of the uuid suffice.

    --watch shows each request whole as it comes, and what was decided. The notice of --notify names only the token.
    """
    if sum((once, grant is not None, pattern is not None, deny)) > 1:
        raise click.UsageError("Give one of --once, --grant, --pattern and --deny.")
    verdict = _Verdict(once, grant, pattern, deny)
    decided = verdict.is_one
    if name is None and decided:
        raise click.UsageError("Name the APPROVAL to decide about; `connmgr approve` lists those that are pending.")
    if watch and (name is not None or decided):
        raise click.UsageError("--watch cannot be combined with an APPROVAL or a decision; decide in another terminal.")
    if notify and not watch:
        raise click.UsageError("--notify needs --watch.")
    client = connect()
    if watch:
        _watch(client, notify=notify, as_json=as_json)
    elif name is None:
        print_list(client.approval.query(), _approval_row, as_json=as_json)
    else:
        _decide_one(client, name, verdict, as_json=as_json)


class _Verdict(NamedTuple):
    """A decision as options gave it; without any of them, the person is asked."""

    once: bool = False
    grant: float | None = None
    pattern: float | None = None
    deny: bool = False

    @property
    def is_one(self) -> bool:
        return self != _Verdict()

    def carry_out(self, client: Client, approval: str) -> dict[str, Any]:
        """Decide, and return the approval as it is then."""
        if self.once or self.deny:
            return client.approval.decide(approval, "once" if self.once else "deny")
        if self.pattern is not None:
            return client.approval.decide(approval, "pattern", self.pattern)
        return client.approval.decide(approval, "grant", self.grant)


def _decide_one(client: Client, name: str, verdict: _Verdict, *, as_json: bool) -> None:
    """Show the approval ``name``, and decide about it: by the options, or as a person answers on the terminal."""
    decided = verdict.is_one
    every = client.approval.query(["pending", "once", "granted", "denied"])
    approval = _approval_of(every, name, reads=not decided)
    if not as_json:
        click.echo("\n".join(described(approval, f", {_asked_ago(approval)} ({approval['state']})")), err=decided)
    if not decided and not as_json:
        verdict = _ask(approval.get("pattern"))
    if verdict.is_one:
        approval = verdict.carry_out(client, approval["approval"])
    if as_json:
        print_json(approval)


def _watch(client: Client, *, notify: bool, as_json: bool) -> None:
    """Show the pending requests, and each one that comes; after missed events, show what is pending then."""
    asking = client.clone()
    ids: set[str] = set()
    for event in client.events([APPROVAL]):
        if event.kind == STREAM or event.change == "requested":
            for approval in asking.approval.query():
                if approval["approval"] not in ids:
                    ids.add(approval["approval"])
                    _show_request(approval, notify=notify, as_json=as_json)
        elif event.id in ids and not as_json:
            click.echo(f"{event.id}  {event.state}")
        elif event.id in ids:
            print_json({"approval": event.id, "state": event.state}, indent=None)


def _show_request(approval: dict[str, Any], *, notify: bool, as_json: bool) -> None:
    if as_json:
        print_json(approval, indent=None)
    else:
        click.echo("\n".join(described(approval, f", {_asked_ago(approval)}")))
        click.echo(f"  decide: connmgr approve {approval['approval']}")
    if notify:
        # Without the command: every user of this machine sees the words of a program, and a screen may be shared.
        give_notice(f"{visible(approval['tokenName'])} asks for an approval.")


def give_notice(text: str) -> None:
    """Show a notice of the desktop; without its program, one of the terminal, if that knows the sequence for it."""
    # Imported here, because nothing else in this module starts a program.
    import shutil
    import subprocess

    program = shutil.which("notify-send")
    if program is not None:
        # As the summary, which has no markup.
        argv = [program, "--", f"connmgr: {text}"]
        try:
            if not subprocess.run(argv, capture_output=True, timeout=NOTICE_SECONDS, check=False).returncode:  # noqa: S603
                return
        except (OSError, subprocess.TimeoutExpired):
            # As without a desktop.
            pass
    if sys.stderr.isatty():
        # OSC 9, as iTerm2 has introduced it; other terminals show nothing.
        sys.stderr.write(f"\x1b]9;{text}\x07")
        sys.stderr.flush()


def _approval_row(approval: dict[str, Any]) -> tuple[str, ...]:
    request = approval["asked"]
    names = ", ".join(request["names"])
    return approval["approval"], visible(approval["tokenName"]), _asked_ago(approval), names, _request_gist(request)


def _approval_of(approvals: list[dict[str, Any]], name: str, *, reads: bool) -> dict[str, Any]:
    """Return the approval ``name``; its beginning suffices if ``reads``: then a person sees the request first.

    :raises Failure: no approval is meant, or several are.
    """
    by_id = {approval["approval"]: approval for approval in approvals}
    ids = [name.lower()] if name.lower() in by_id else with_beginning(by_id, name)
    if len(ids) == 1 and (reads or ids == [name.lower()]):
        return by_id[ids[0]]
    if len(ids) == 1:
        raise Failure(f"To decide without seeing the request first, give the whole uuid: {ids[0]}.", NOT_FOUND)
    if ids:
        raise Failure(
            "\n".join([f"{name!r} is the beginning of several uuids:", *(f"  {id}" for id in ids)]), NOT_FOUND
        )
    raise Failure(
        f"No approval has the uuid {name!r}, or one that begins with these digits (8 at least). `connmgr approve` "
        "lists the pending ones.",
        NOT_FOUND,
    )


def _ask(pattern: Mapping[str, Any] | None) -> _Verdict:
    if not sys.stdin.isatty():
        raise click.UsageError(
            "Cannot ask: standard input is not a terminal. Give --once, --grant, --pattern or --deny."
        )
    ways = ["once", "a time such as 1h", *(["pattern"] if pattern else []), "deny", "nothing"]
    question = f"Approve this? ({', '.join(ways)})"
    answer = click.prompt(question, default="nothing", show_default=False, err=True).strip()
    if answer in ("nothing", "n", "no", ""):
        return _Verdict()
    if answer in ("once", "deny"):
        return _Verdict(once=answer == "once", deny=answer == "deny")
    if answer == "pattern" and pattern:
        return _Verdict(pattern=pattern["seconds"])
    return _Verdict(grant=Duration(DAY).convert(answer, None, None))


def _asked_ago(approval: Mapping[str, Any]) -> str:
    return ago(datetime.fromisoformat(approval["created"].replace("Z", "+00:00")))


def _request_gist(request: Mapping[str, Any]) -> str:
    what = request.get("argv") or request.get("command") or request.get("path") or request["action"]
    text = " ".join(map(quoted, what)) if isinstance(what, list) else quoted(str(what))
    return gist(text)
