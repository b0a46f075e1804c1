"""``connmgr approve``: decides about the requests of tokens."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

import click

from connmgr.cli.connect import connect
from connmgr.cli.exits import NOT_FOUND, Failure
from connmgr.cli.output import Duration, ago, json_option, print_json, print_table
from connmgr.client import Client
from connmgr.client.names import with_beginning
from connmgr.client.rights import described, quoted
from connmgr.contract.event import APPROVAL, STREAM
from connmgr.printable import visible

GIST_CHARACTERS = 60
NOTICE_SECONDS = 10.0


DAY = 86400


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
        _list(client.approval.query(), as_json=as_json)
    else:
        _decide(client, name, verdict, as_json=as_json)


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


def _decide(client: Client, name: str, verdict: _Verdict, *, as_json: bool) -> None:
    """Show the approval ``name``, and decide about it: as told, or as a person answers on the terminal."""
    decided = verdict.is_one
    every = client.approval.query(["pending", "once", "granted", "denied"])
    found = _find(every, name, reads=not decided)
    if not as_json:
        click.echo("\n".join(described(found, f", {_age(found)} ({found['state']})")), err=decided)
    if not decided and not as_json:
        verdict = _ask(found.get("pattern"))
    if verdict.is_one:
        found = verdict.carry_out(client, found["approval"])
    if as_json:
        print_json(found)


def _watch(client: Client, *, notify: bool, as_json: bool) -> None:
    """Show the pending requests, and all that come; after events were missed, what is pending then."""
    asking = client.clone()
    shown: set[str] = set()
    for event in client.events([APPROVAL]):
        if event.kind == STREAM or event.change == "requested":
            for one in asking.approval.query():
                if one["approval"] not in shown:
                    shown.add(one["approval"])
                    _show_request(one, notify=notify, as_json=as_json)
        elif event.id in shown and not as_json:
            click.echo(f"{event.id}  {event.state}")
        elif event.id in shown:
            print_json({"approval": event.id, "state": event.state}, indent=None)


def _show_request(approval: dict[str, Any], *, notify: bool, as_json: bool) -> None:
    if as_json:
        print_json(approval, indent=None)
    else:
        click.echo("\n".join(described(approval, f", {_age(approval)}")))
        click.echo(f"  decide: connmgr approve {approval['approval']}")
    if notify:
        # Without the command: every user of this machine sees the words of a program, and a screen may be shared.
        give_notice(f"{visible(approval['tokenName'])} asks for an approval.")


def give_notice(text: str) -> None:
    """Show a notice of the desktop; without its program, one of the terminal, if that knows the sequence for it."""
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


def _list(approvals: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(approvals)
        return
    print_table(
        [
            (
                approval["approval"],
                visible(approval["tokenName"]),
                _age(approval),
                ", ".join(approval["asked"]["names"]),
                _gist(approval["asked"]),
            )
            for approval in approvals
        ]
    )


def _find(approvals: list[dict[str, Any]], name: str, *, reads: bool) -> dict[str, Any]:
    """Return the approval ``name``; its beginning suffices if ``reads``: then a person sees the request first.

    :raises Failure: no approval is meant, or several are.
    """
    by_id = {approval["approval"]: approval for approval in approvals}
    found = [name.lower()] if name.lower() in by_id else with_beginning(by_id, name)
    if len(found) == 1 and (reads or found == [name.lower()]):
        return by_id[found[0]]
    if len(found) == 1:
        raise Failure(f"To decide without seeing the request first, give the whole uuid: {found[0]}.", NOT_FOUND)
    if found:
        raise Failure(
            "\n".join([f"{name!r} is the beginning of several uuids:", *(f"  {id}" for id in found)]), NOT_FOUND
        )
    raise Failure(
        f"No approval has the uuid {name!r}, or one that begins with these digits (8 at least). `connmgr approve` "
        "lists the pending ones.",
        NOT_FOUND,
    )


def _ask(pattern: Mapping[str, Any] | None) -> _Verdict:
    if not sys.stdin.isatty():
        raise click.UsageError("Give --once, --grant, --pattern or --deny: there is no terminal to ask on.")
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


def _age(one: Mapping[str, Any]) -> str:
    return ago(datetime.fromisoformat(one["created"].replace("Z", "+00:00")))


def _gist(asked: Mapping[str, Any]) -> str:
    what = asked.get("argv") or asked.get("command") or asked.get("path") or asked["action"]
    text = " ".join(map(quoted, what)) if isinstance(what, list) else quoted(str(what))
    return text if len(text) <= GIST_CHARACTERS else f"{text[: GIST_CHARACTERS - 1]}…"
