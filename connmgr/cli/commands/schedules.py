"""``connmgr schedule``: runs that begin by themselves."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from connmgr.cli.commands.runs import facts_option, read_share, what_runs
from connmgr.cli.connect import connect
from connmgr.cli.exits import NOT_FOUND, Failure
from connmgr.cli.group import Group, WithCommand
from connmgr.cli.output import Duration, counted, json_option, lasting, print_json, print_table
from connmgr.cli.selection import Choice, choosing, chosen, require_some
from connmgr.client import Client
from connmgr.client.names import did_you_mean, is_pattern
from connmgr.contract.message import Message, to_json
from connmgr.contract.schedule import EVERY_ONE, LATEST, NONE, QUEUE, SKIP

if TYPE_CHECKING:
    from connmgr.contract.schedule import ScheduleInfo


@click.group(cls=Group)
def schedule() -> None:
    """Begin runs by a calendar, or every so often.

    The daemon keeps schedules in the vault. Name a SCHEDULE by its name or uuid. Each of its times is a run, as
    `connmgr run` begins one: `connmgr run ls` lists them.
    """


@schedule.command(name="add", cls=WithCommand)
@click.argument("name")
@click.argument("selectors", metavar="CONNECTION|GLOB...", nargs=-1)
@choosing
@click.option("--cron", metavar="EXPRESSION", help="Minute, hour, day, month, weekday; or six, with seconds first.")
@click.option("--every", metavar="TIME", type=Duration(), help="In place of --cron: every so often, such as 15m.")
@click.option("--timezone", "zone", metavar="ZONE", default="UTC", show_default=True, help="The time zone of --cron.")
@click.option("--jitter", metavar="TIME", type=Duration(least=0), help="Add up to so much to each time, at random.")
@click.option(
    "--overlap",
    metavar="skip|queue",
    type=click.Choice([SKIP, QUEUE]),
    default=SKIP,
    show_default=True,
    help="While the previous run is under way: skip the time, or let one wait.",
)
@click.option(
    "--catch-up",
    metavar="none|latest|all",
    type=click.Choice([NONE, LATEST, EVERY_ONE]),
    default=NONE,
    show_default=True,
    help="If times passed while no daemon ran: fire for none of them, once, or for each.",
)
@click.option("--until", metavar="TIME", help="Do not fire after this time, such as 2027-01-01T00:00:00Z.")
@click.option("--argv", "as_argv", is_flag=True, help="The words after -- are a program and its arguments.")
@click.option("--script", metavar="FILE", help="Run this script of this machine; the words after -- are its arguments.")
@click.option("--saved", metavar="COMMAND", help="Run a saved command; the words after -- are its arguments.")
@facts_option
@click.option("--waves", metavar="N|N%,...", help="As for `connmgr run`.")
@click.option("--stop-after", metavar="N|N%", help="As for `connmgr run`.")
@click.option("--timeout", metavar="TIME", type=Duration(), help="Kill each command after this time.")
@click.option("--parallel", metavar="N", type=click.IntRange(1, 500), help="How many at once.")
@json_option
def add(
    name: str,
    selectors: tuple[str, ...],
    choice: Choice,
    command: tuple[str, ...],
    cron: str | None,
    every: float | None,
    zone: str,
    jitter: float | None,
    overlap: str,
    catch_up: str,
    until: str | None,
    as_argv: bool,
    script: str | None,
    saved: str | None,
    facts: tuple[str, ...],
    waves: str | None,
    stop_after: str | None,
    timeout: float | None,
    parallel: int | None,
    *,
    as_json: bool,
) -> None:
    """Add a schedule: connmgr schedule add NAME GLOB --cron '30 2 * * *' -- COMMAND.

    One GLOB without a /, or the filters alone (--where, --category, --type), choose anew at each time. Names, several
    words and a GLOB with a / choose now, and each time goes to the same connections. The words after -- are joined by
    blanks into one command, as by `connmgr run`.
    """
    what = what_runs(command, script=script, as_argv=as_argv, saved=saved, facts=facts)
    if (cron is None) == (every is None):
        raise click.UsageError("Give --cron or --every.")
    if choice.failed is not None or choice.limit is not None:
        raise click.UsageError("--failed and --limit choose for one run, and not for a schedule.")
    require_some(selectors, choice)
    client = connect()
    run: dict[str, Any] = _selected(client, selectors, choice)
    run |= {field: to_json(value) if isinstance(value, Message) else value for field, value in what.items()}
    more = {"timeout": timeout, "parallel": parallel}
    more["waves"] = None if waves is None else [read_share(word.strip()) for word in waves.split(",")]  # type: ignore[assignment]
    more["stopAfter"] = None if stop_after is None else read_share(stop_after.strip())  # type: ignore[assignment]
    run |= {field: value for field, value in more.items() if value is not None}
    times: dict[str, Any] = {"cron": cron, "every": every, "jitter": jitter, "until": until}
    times = {field: value for field, value in times.items() if value is not None}
    added = client.schedules.add(name, run=run, timezone=zone, overlap=overlap, catchUp=catch_up, **times)
    if as_json:
        print_json(to_json(added))
    else:
        click.echo(f"{added.schedule}  next {_ahead(added.next)}")


def _selected(client: Client, selectors: Sequence[str], choice: Choice) -> dict[str, Any]:
    filters = {"categoryFilter": choice.category, "typeFilter": choice.kind}
    fields: dict[str, Any] = {name: value for name, value in filters.items() if value != "*"}
    fields |= {} if choice.where is None else {"where": choice.where}
    if not selectors:
        return fields
    [first, *others] = selectors
    if not others and is_pattern(first) and "/" not in first:
        return {**fields, "connectionFilter": first if first == "*" else f"**/{first}"}
    names = chosen(client, selectors, choice, usage="shell").names
    click.echo(f"Each time goes to these {counted(len(names), 'connection')}; a GLOB without / chooses anew.", err=True)
    return {"connections": [one.id for one in names]}


def _ahead(moment: datetime | None) -> str:
    if moment is None:
        return "-"
    seconds = (moment - datetime.now(timezone.utc)).total_seconds()
    return f"in {lasting(seconds)}" if seconds >= 0 else f"{lasting(-seconds)} ago"


@schedule.command(name="ls")
@json_option
def list_schedules(*, as_json: bool) -> None:
    """List schedules: when each fires next, how its last run ended, and what runs."""
    found = connect().schedules.query()
    if as_json:
        print_json([to_json(one) for one in found])
        return
    print_table([(one.name, _when(one), _state(one), _last(one), _what(one.run)) for one in found])


def _when(one: ScheduleInfo) -> str:
    if one.every is not None:
        return f"every {lasting(one.every)}"
    return f"{one.cron} {one.timezone}"


def _state(one: ScheduleInfo) -> str:
    if one.paused is not None:
        return f"paused: {one.paused}"
    if one.next is None:
        return "ended"
    return f"{'overdue' if one.overdue else 'next'} {_ahead(one.next)}"


def _last(one: ScheduleInfo) -> str:
    if one.last_error is not None:
        return f"not started: {one.last_error}"
    return "-" if one.last_run is None else f"{one.last_state or 'removed'} {one.last_run[:8]}"


@schedule.command(name="show")
@click.argument("name", metavar="SCHEDULE")
@json_option
def show(name: str, *, as_json: bool) -> None:
    """Show a schedule: what it runs, where, when, and who is told."""
    found = connect().schedules.query()
    one = next((one for one in found if name in (one.name, one.schedule)), None)
    if one is None:
        near = did_you_mean(name, {one.name: one.name for one in found})
        raise Failure(f"No schedule is called {name!r}.{near} `connmgr schedule ls` lists them.", NOT_FOUND)
    if as_json:
        print_json(to_json(one))
        return
    run = one.run
    shown = {field: run[field] for field in _BESIDE if run.get(field)}
    rows = [
        ("uuid", one.schedule),
        ("name", one.name),
        ("fires", _when(one)),
        ("state", _state(one)),
        ("until", None if one.until is None else one.until.isoformat()),
        ("jitter", lasting(one.jitter) if one.jitter else None),
        ("overlap", one.overlap),
        ("catch up", one.catch_up),
        ("runs", _what(run)),
        ("on", _where(run)),
        *((field, json.dumps(value, ensure_ascii=False)) for field, value in shown.items()),
        ("by", "the owner" if one.token is None else f"the token {one.token}"),
        ("tells", None if one.notify is None else json.dumps(one.notify, ensure_ascii=False)),
        ("last", _last(one)),
        ("left out", counted(one.skipped, "time") if one.skipped else None),
    ]
    print_table([(title, value) for title, value in rows if value is not None])


_BESIDE = ("waves", "stopAfter", "timeout", "parallel", "retries", "cwd", "env", "elevate", "as", "key")


def _what(run: Mapping[str, Any]) -> str:
    """Return what a run of these fields runs."""
    if run.get("script") is not None:
        return f"a script of {counted(len(run['script']['text'].splitlines()), 'line')}"
    if run.get("facts") is not None:
        return f"gather facts: {', '.join(run['facts']) or 'all'}"
    if run.get("saved") is not None:
        return f"the saved command {run['saved']['name']}"
    return str(run["command"]) if run.get("command") is not None else shlex.join(run["argv"])


def _where(run: Mapping[str, Any]) -> str:
    """Return where a run of these fields runs, as the options of ``connmgr run`` say it."""
    if run.get("connections") is not None:
        return f"{counted(len(run['connections']), 'connection')}, always the same"
    words = [run.get("connectionFilter", "*").removeprefix("**/")]
    for option, field in (("--category", "categoryFilter"), ("--type", "typeFilter"), ("--where", "where")):
        if run.get(field) not in (None, "*"):
            words += [option, run[field]]
    return f"{shlex.join(words)}, chosen anew each time"


@schedule.command(name="rm")
@click.argument("names", metavar="SCHEDULE...", nargs=-1, required=True)
def remove(names: tuple[str, ...]) -> None:
    """Remove schedules; their runs stay."""
    client = connect()
    for name in names:
        client.schedules.remove(name)


@schedule.command(name="pause")
@click.argument("name", metavar="SCHEDULE")
@click.option("--reason", metavar="TEXT", help="Why; shown with the schedule.")
def pause(name: str, reason: str | None) -> None:
    """Keep a schedule from firing until `connmgr schedule resume`."""
    connect().schedules.pause(name, reason)


@schedule.command(name="resume")
@click.argument("name", metavar="SCHEDULE")
def resume(name: str) -> None:
    """Let a paused schedule fire again, from its next time on."""
    connect().schedules.resume(name)


@schedule.command(name="trigger")
@click.argument("name", metavar="SCHEDULE")
@json_option
def trigger(name: str, *, as_json: bool) -> None:
    """Start a schedule's run now, and print the run."""
    run = connect().schedules.trigger(name)
    if as_json:
        print_json({"run": run})
    else:
        click.echo(run)


@schedule.command(name="next")
@click.argument("name", metavar="SCHEDULE", required=False)
@click.option("--cron", metavar="EXPRESSION", help="In place of a SCHEDULE: an expression to try.")
@click.option("--timezone", "zone", metavar="ZONE", default="UTC", show_default=True, help="The time zone of --cron.")
@click.option(
    "--count", metavar="N", type=click.IntRange(1, 1000), default=5, show_default=True, help="How many times."
)
@json_option
def next_times(name: str | None, cron: str | None, zone: str, count: int, *, as_json: bool) -> None:
    """Print the next times of a schedule, or of an expression, in UTC."""
    if (name is None) == (cron is None):
        raise click.UsageError("Give a SCHEDULE or --cron.")
    times = connect().schedules.next(name, cron=cron, timezone=zone, count=count)
    texts = [moment.isoformat(timespec="seconds").replace("+00:00", "Z") for moment in times]
    if as_json:
        print_json(texts)
    elif texts:
        click.echo("\n".join(texts))
