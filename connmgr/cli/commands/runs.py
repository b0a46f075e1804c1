"""``connmgr run`` and ``schedule``: one command on many connections, which goes on without this program."""

from __future__ import annotations

import base64
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from connmgr.cli.connect import connect
from connmgr.cli.exits import FAILED, INTERRUPTED, NOT_FOUND, Failure
from connmgr.cli.fan_out import Gathered
from connmgr.cli.options import Group, WithCommand, read_assignments, states_option
from connmgr.cli.output import (
    Duration,
    ago,
    command_text,
    json_option,
    lasting,
    plural,
    print_json,
    print_list,
    print_table,
    tell_waiting,
)
from connmgr.cli.plain import sent_environment
from connmgr.cli.selection import Choice, choosing, require_some, select_connections
from connmgr.cli.sessions import OK, WithSudo, fresh_option, session_of, session_option, sudo_option
from connmgr.client import Client, ClientError
from connmgr.client.names import did_you_mean, is_pattern, is_uuid
from connmgr.client.repeat import RETRY_TIMEOUT, Retry, is_transient
from connmgr.contract.message import Message, to_json
from connmgr.contract.run import (
    DONE,
    ENDED,
    JOB,
    RETRIED,
    SHELL,
    STARTING,
    STOPPED,
    TARGET_STATES,
    UNDER_WAY,
    UNREACHABLE,
    WAITING,
)
from connmgr.contract.run import (
    FAILED as FAILED_STATE,
)
from connmgr.contract.schedule import EVERY_ONE, LATEST, NONE, QUEUE, SKIP
from connmgr.printable import gist, visible

if TYPE_CHECKING:
    from connmgr.contract.run import RunGroup, RunInfo, RunTarget
    from connmgr.contract.schedule import ScheduleInfo


DRAW_SECONDS = 0.5
SHOWN_FAILURES = 8
UUID_START = re.compile(r"[0-9a-f]{8}[0-9a-f-]*\Z")


class _Runs(Group):
    """Begins a run where no subcommand is named: ``connmgr run 'web*' -- uptime``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # `connmgr run stop -- uptime` runs uptime on the connection `stop`: only a command to run has a --.
        is_run = bool(args) and (args[0] not in self.commands or ("--" in args and args[0] != "start"))
        if is_run and args[0] not in ctx.help_option_names:
            args = ["start", *args]
        return super().parse_args(ctx, args)


class _Start(WithCommand, WithSudo):
    """Takes the words after ``--`` as ``command``, and an option that may lack its value."""


def _waves(_context: click.Context, _option: click.Parameter, text: str | None) -> list[int | str] | None:
    return None if text is None else [read_share(word.strip()) for word in text.split(",")]


def _stop_after(_context: click.Context, _option: click.Parameter, text: str | None) -> int | str | None:
    return None if text is None else read_share(text.strip())


def read_share(word: str) -> int | str:
    if word.isdecimal():
        return int(word)
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?%", word):
        raise click.BadParameter(f"{word!r} is neither a number of targets nor a share such as 10%.")
    return word


waves_option = click.option(
    "--waves",
    metavar="N|N%,...",
    callback=_waves,
    help="Go in waves: 1,10%,100% is one target, then up to 10%, then all.",
)
stop_after_option = click.option(
    "--stop-after",
    metavar="N|N%",
    callback=_stop_after,
    help="Stop when this many targets, or this share of them, have failed.",
)
facts_option = click.option(
    "--facts",
    metavar="PART",
    multiple=True,
    help="Gather facts in place of a command: `all`, `system`, `package` or a plugin's. May be given several times.",
)


@click.group(cls=_Runs)
def run() -> None:
    """Run a command on many connections, in waves.

    `connmgr run GLOB... -- COMMAND` begins a run, as `connmgr run start` does, and shows how it goes. A run is kept by
    the daemon: it goes on without this program, and a restarted daemon goes on with it. Name a RUN by its name, or by
    its uuid or the first 8 digits of that.
    """


@run.command(name="start", cls=_Start)
@click.argument("selectors", metavar="CONNECTION|GLOB...", nargs=-1)
@choosing
@waves_option
@click.option("--pause", "wave_pause", metavar="TIME", type=Duration(), help="Wait this long between two waves.")
@click.option(
    "--approve-waves",
    "wave_approval",
    is_flag=True,
    default=None,
    help="Wait for `connmgr run resume` between two waves.",
)
@stop_after_option
@click.option("--retries", metavar="N", type=click.IntRange(0, 10), help="Try failed and unreachable targets again.")
@click.option(
    "--retry-delay", metavar="TIME", type=Duration(least=0), help="Wait this long before each retry, 10s by default."
)
@click.option(
    "-j",
    "--jobs",
    "--parallel",
    "parallel",
    metavar="N",
    type=click.IntRange(1, 500),
    help="How many at once, 100 by default.",
)
@click.option("--timeout", metavar="TIME", type=Duration(), help="Kill each command after this time.")
@click.option("--run-timeout", metavar="TIME", type=Duration(), help="Stop the whole run after this time.")
@click.option(
    "--as",
    "manner",
    metavar="|".join((SHELL, JOB)),
    type=click.Choice([SHELL, JOB]),
    help="Run each command in the open shell of its connection, or as a job, which outlives the daemon. By default a "
    "job if --timeout is more than 10 minutes.",
)
@click.option("--cwd", metavar="DIR", help="Run in this directory.")
@click.option("--env", metavar="NAME=VALUE", multiple=True, help="Set a variable for the command.")
@click.option(
    "--script", metavar="FILE", help="Run this script of this machine there; the words after -- are its arguments."
)
@click.option("--argv", "as_argv", is_flag=True, help="The words after -- are a program and its arguments.")
@click.option("--saved", metavar="COMMAND", help="Run a saved command; the words after -- are its arguments.")
@facts_option
@session_option
@fresh_option
@sudo_option
@click.option("--name", metavar="NAME", help="A name to find the run by.")
@click.option("--key", metavar="KEY", help="Begin no run if there is already one with this key.")
@click.option(
    "--keep", metavar="TIME", type=Duration(least=1), help="How long it is kept after its end, 30d by default."
)
@click.option("--stdin", "reads", is_flag=True, help="Pass all of standard input to each command; at most 11 MiB.")
@click.option("-n", "--no-stdin", "no_input", is_flag=True, help="Leave standard input unread.")
@click.option("--dry-run", is_flag=True, help="Run nothing; show what is selected, and the waves.")
@click.option("--detach", is_flag=True, help="Print the run's uuid, and do not wait for its end.")
@json_option
def start(
    selectors: tuple[str, ...],
    command: tuple[str, ...],
    *,
    choice: Choice,
    env: tuple[str, ...],
    script: str | None,
    as_argv: bool,
    saved: str | None,
    facts: tuple[str, ...],
    session: str | None,
    fresh: bool,
    sudo: str | None,
    manner: str | None,
    reads: bool,
    no_input: bool,
    dry_run: bool,
    detach: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Begin a run on the connections that match, and show how it goes until it has ended.

    The selection is frozen at the beginning; --dry-run shows it. The words after -- are joined by blanks into one
    command of each shell's language. A machine that cannot be reached is unreachable, which is not failed: it counts
    neither for --stop-after nor as a failure of the run.

    Ctrl-C asks whether to stop the run or to leave it running. Without a terminal, or with --detach, it is
    left running. The exit code is 0 if the run is done and has reached every machine, and otherwise 1.

    Input on standard input is an error without --stdin, unless -n says to leave it unread.
    """
    require_some(selectors, choice)
    input_of_others = script == "-" or choice.reads_stdin
    if reads and (no_input or input_of_others):
        raise click.UsageError("Give --stdin alone: nothing else may leave or read standard input.")
    request = what_runs(command, script=script, as_argv=as_argv, saved=saved, facts=facts)
    client = connect()
    selected = select_connections(client, selectors, choice, usage="shell")
    ids = [name.id for name in selected.names]
    fields = {
        **options,
        "env": read_assignments(env, "--env") or None,
        "session": session_of(session, fresh=fresh) if fresh or session is not None else None,
        "fresh": fresh or None,
        "as_": manner,
        "dry_run": dry_run or None,
        **_input(reads=reads, leaves=no_input or input_of_others or dry_run),
        "send_env": sent_environment(client, connections=ids),
    }
    if sudo is not None:
        from connmgr.contract.common import Elevate

        fields["elevate"] = Elevate(user=sudo)
    answer = client.runs.start(connections=ids, **request, **{n: v for n, v in fields.items() if v is not None})
    if answer.warning is not None:
        click.echo(visible(answer.warning), err=True)
    if answer.run is None:
        _show_plan(answer, as_json=as_json)
        return
    if answer.is_kept:
        kept = client.runs.info(answer.run)
        click.echo(f"Nothing was begun: the run of {ago(kept.submitted)} has this key, {_command(kept)!r}.", err=True)
    if detach:
        click.echo(answer.run)
        return
    _follow(client, answer.run, as_json=as_json)


def _input(*, reads: bool, leaves: bool) -> dict[str, str]:
    """Return the members of a request that say what each command reads.

    :raises Failure: there is input that nobody would read, or too much of it.
    """
    # Imported here, for it takes a while, and most runs need nothing else of it.
    from connmgr.cli.commands.exec import read_whole_input, refuse_unread_input

    if not reads:
        if not leaves:
            refuse_unread_input("a run")
        return {}
    content = read_whole_input(why="a run keeps its input", instead="Copy it there by `connmgr cp --all`.")
    return {"stdin": base64.b64encode(content).decode(), "encoding": "base64"}


def what_runs(
    words: tuple[str, ...], *, script: str | None, as_argv: bool, saved: str | None, facts: tuple[str, ...]
) -> dict[str, Any]:
    """Return the members of a request that say what runs, by the words after ``--``."""
    if facts:
        if words or script is not None or as_argv or saved is not None:
            raise click.UsageError("Give either --facts or a command.")
        return {"facts": [] if "all" in facts else list(facts)}
    if sum((as_argv, saved is not None, script is not None)) > 1:
        raise click.UsageError("Give one of --argv, --saved and --script.")
    if saved is not None:
        from connmgr.contract.common import Saved

        return {"saved": Saved(name=saved, arguments=read_assignments(words, "an argument"))}
    if script is not None:
        from connmgr.contract.run import Script

        text = sys.stdin.read() if script == "-" else Path(script).read_text(encoding="utf-8")
        return {"script": Script(text=text, arguments=list(words))}
    if not words:
        raise click.UsageError("Say what to run, after --.")
    return {"argv": list(words)} if as_argv else {"command": " ".join(words)}


def _show_plan(answer: Any, *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    names, at = list(answer.names or ()), 0
    for number, size in enumerate(answer.waves, 1):
        part = names[at : at + size]
        at += size
        rest = f" and {len(part) - 20} more" if len(part) > 20 else ""
        click.echo(f"wave {number}: {plural(size, 'target')}: {', '.join(map(visible, part[:20]))}{rest}")
    for id in answer.locked or ():
        click.echo(f"locked: {id}: its secrets cannot be opened", err=True)
    click.echo(f"Each command runs {'as a job' if answer.as_ == JOB else 'in a shell'}: {answer.why}.", err=True)
    click.echo("Nothing was begun: --dry-run.", err=True)


_run_argument = click.argument("name", metavar="RUN")


@run.command(name="ls")
@states_option("Only runs", (*UNDER_WAY, *ENDED))
@json_option
def ls(states: tuple[str, ...], *, as_json: bool) -> None:
    """List runs, the newest first."""
    client = connect()
    answer = client.post("/run/query", **({"states": list(states)} if states else {}))["runs"]
    if as_json:
        print_json(answer)
        return
    from connmgr.contract.run import RunInfo

    rows = [
        (info.run, info.name or "-", info.state, _tally(info), ago(info.submitted), _command(info))
        for info in map(RunInfo.read, answer)
    ]
    print_table(rows)


@run.command(name="show")
@_run_argument
@states_option("List the targets", TARGET_STATES)
@json_option
def show(name: str, states: tuple[str, ...], *, as_json: bool) -> None:
    """Show a run, and its targets in some states; by default those that did not succeed."""
    client = connect()
    info = find_run(client, name)
    selection = states or RETRIED
    if as_json:
        print_json({**to_json(info), "listed": list(client.runs.targets(info.run, selection))})
        return
    rows = [
        ("uuid", info.run),
        ("name", info.name),
        ("command", _command(info)),
        ("state", info.state),
        ("why", info.reason),
        ("targets", _tally(info)),
        ("wave", f"{info.wave} of {len(info.waves)}"),
        ("runs as", f"{info.as_}: {info.why}"),
        ("retry of", info.retry_of),
        ("begun", ago(info.submitted)),
        ("ended", None if info.ended is None else ago(info.ended)),
        ("rate", None if info.rate is None else f"{info.rate:.1f} targets a second"),
        ("time left", _left(info)),
        ("daemons", ", ".join(info.daemons) or None),
    ]
    print_table([(title, value) for title, value in rows if value is not None])
    listed = [_target_row(target) for target in client.runs.targets(info.run, selection)]
    if listed:
        click.echo()
        print_table(listed)


@run.command(name="watch")
@_run_argument
@json_option
def watch(name: str, *, as_json: bool) -> None:
    """Show how a run goes until it has ended; exits as `connmgr run start`."""
    client = connect()
    _follow(client, find_run(client, name).run, as_json=as_json)


@run.command(name="output")
@_run_argument
@click.argument("connection", metavar="[CONNECTION]", required=False)
@json_option
def output(name: str, connection: str | None, *, as_json: bool) -> None:
    """Print what the targets of a run have printed, equal outputs once; or what one has printed."""
    client = connect()
    id = find_run(client, name).run
    of = None if connection is None else client.connection.find(connection)
    groups = client.runs.output(id, of)
    if as_json:
        print_json(groups)
    else:
        _print_groups(groups)


@run.command(name="pause")
@_run_argument
def pause(name: str) -> None:
    """Pause a run: it begins no more targets until `connmgr run resume`."""
    client = connect()
    client.runs.pause(find_run(client, name).run)


@run.command(name="resume")
@_run_argument
def resume(name: str) -> None:
    """Go on with a paused run, or let the next wave begin."""
    client = connect()
    client.runs.resume(find_run(client, name).run)


@run.command(name="stop")
@_run_argument
@click.option("--kill", is_flag=True, help="Kill the commands that run; otherwise they end by themselves.")
def stop(name: str, *, kill: bool) -> None:
    """Begin no more targets, and end the run."""
    client = connect()
    client.runs.stop(find_run(client, name).run, kill=kill)


@run.command(name="retry")
@_run_argument
@states_option("Only targets", RETRIED)
@click.option("--detach", is_flag=True, help="Print the new run's uuid, and do not wait for its end.")
@json_option
def retry(name: str, states: tuple[str, ...], *, detach: bool, as_json: bool) -> None:
    """Run the command again where it did not succeed, as a new run."""
    client = connect()
    answer = client.runs.retry(find_run(client, name).run, states or RETRIED)
    if detach or answer.run is None:
        click.echo(answer.run)
        return
    _follow(client, answer.run, as_json=as_json)


@run.command(name="rm")
@_run_argument
def rm(name: str) -> None:
    """Remove a run that has ended, with what its targets have printed."""
    client = connect()
    client.runs.remove(find_run(client, name).run)


def find_run(client: Client, name: str) -> RunInfo:
    """Return the run that a name, a uuid or the beginning of one means; of several of a name, the newest.

    :raises Failure: there is none.
    """
    if is_uuid(name):
        return client.runs.info(name.lower())
    runs = client.runs.query(limit=1000)
    # A name need not be unique: the newest run of that name is meant, and the list begins with the newest.
    for info in runs:
        if info.name == name:
            return info
    matches = [info for info in runs if UUID_START.match(name.lower()) and info.run.startswith(name.lower())]
    if len(matches) == 1:
        return matches[0]
    names = {info.name: info.name for info in runs if info.name is not None}
    raise Failure(f"No run is called {name!r}.{did_you_mean(name, names)} `connmgr run ls` lists them.", NOT_FOUND)


def _follow(client: Client, id: str, *, as_json: bool) -> None:
    """Show how a run goes, and exit by its end; Ctrl-C asks whether to stop it. The daemon may restart meanwhile."""
    draws = not as_json and sys.stderr.isatty()
    retry = Retry(RETRY_TIMEOUT, tell_waiting, is_transient)
    try:
        with _drawing(client, id) if draws else _telling(id, quiet=as_json) as draw:
            while True:
                # The wait ends early at the run's end, so that a short run is not half a second longer.
                info = retry.call(partial(client.runs.wait, id, DRAW_SECONDS))
                retry.succeeded()
                draw(info)
                if info.state in ENDED:
                    break
    except KeyboardInterrupt:
        _on_interrupt(client, id)
        raise click.exceptions.Exit(INTERRUPTED) from None
    except ClientError as error:
        if is_transient(error):
            _tell_how_to_return(id)
        raise
    if as_json:
        print_json(info)
    else:
        _print_groups(client.runs.output(id))
        seconds = (info.ended - info.submitted).total_seconds() if info.ended is not None else 0.0
        why = f" {info.reason}" if info.reason else ""
        click.echo(f"{info.state}: {_tally(info)} in {seconds:.1f} s.{visible(why)}", err=True)
    # Unreachable is not failed, but whoever goes on after exit code 0 relies on every machine.
    if info.state != DONE or info.counts[UNREACHABLE]:
        raise click.exceptions.Exit(FAILED)


def _on_interrupt(client: Client, id: str) -> None:
    """Ask what becomes of the run; without a terminal it goes on."""
    answer = "leave"
    if sys.stdin.isatty() and sys.stderr.isatty():
        click.echo(err=True)
        try:
            answer = click.prompt(
                "Stop the run, kill what runs, or leave it running?",
                type=click.Choice(["stop", "kill", "leave"]),
                default="leave",
                err=True,
            )
        except click.Abort:
            answer = "leave"
    if answer == "leave":
        _tell_how_to_return(id)
    else:
        client.runs.stop(id, kill=answer == "kill")
        click.echo("The run was stopped.", err=True)


def _tell_how_to_return(id: str) -> None:
    click.echo(
        f"The run goes on: `connmgr run watch {id[:8]}` shows it, `connmgr run stop {id[:8]}` ends it.", err=True
    )


Draw = Callable[["RunInfo"], None]


@contextmanager
def _telling(id: str, *, quiet: bool) -> Iterator[Draw]:
    """Yield what prints a line on stderr for each change of wave or state."""
    last: tuple[Any, ...] = ()

    def draw(info: RunInfo) -> None:
        nonlocal last
        now = (info.state, info.wave, info.reason)
        if now != last and not quiet and info.state not in ENDED:
            why = f": {info.reason}" if info.reason else ""
            click.echo(f"{id[:8]} {info.state}, wave {info.wave} of {len(info.waves)}{visible(why)}", err=True)
        last = now

    yield draw


@contextmanager
def _drawing(client: Client, id: str) -> Iterator[Draw]:
    """Yield what draws the run on the terminal: how far it is, what runs, and the last failures."""
    # Imported here, because it takes as long as most commands.
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    console = Console(stderr=True)

    def table(info: RunInfo, running: Iterable[RunTarget], failed: Iterable[RunTarget]) -> Table:
        grid = Table.grid(padding=(0, 2))
        over = info.targets - info.counts[WAITING] - info.counts[STARTING]
        width = 30
        filled = width * over // max(1, info.targets)
        left = _left(info)
        grid.add_row(
            Text(info.state, "bold"),
            Text("█" * filled + "░" * (width - filled)),
            Text(
                f"{over} of {info.targets}, wave {info.wave} of {len(info.waves)}" + (f", {left} left" if left else "")
            ),
        )
        if info.reason:
            grid.add_row("", Text(visible(info.reason), "yellow"), "")
        grid.add_row("", Text(_tally(info)), "")
        for target in running:
            grid.add_row("", Text(visible(target.name or target.connection)), Text("runs", "dim"))
        for target in failed:
            grid.add_row("", Text(visible(target.name or target.connection), "red"), Text(_target_row(target)[-1]))
        return grid

    with Live(console=console, transient=True, auto_refresh=False) as live:

        def draw(info: RunInfo) -> None:
            # Two small requests for each picture, because a run may have 100,000 targets.
            running = _some(client, id, (STARTING,))
            failed = _some(client, id, [state for state in RETRIED if state != STOPPED])
            live.update(table(info, running, failed), refresh=True)

        yield draw


def _some(client: Client, id: str, states: Sequence[str]) -> list[RunTarget]:
    from connmgr.contract.run import RunTargetsResponse

    page = {"states": list(states), "limit": SHOWN_FAILURES, "output": 60}
    return RunTargetsResponse.read(client.post("/run/targets", run=id, **page)).targets


def _tally(info: RunInfo) -> str:
    """Return how many targets are in each state that any is in."""
    return ", ".join(f"{count} {state}" for state, count in info.counts.items() if count) or "no targets"


def _left(info: RunInfo) -> str | None:
    return None if info.left is None or info.state in ENDED else lasting(info.left)


def _command(info: RunInfo) -> str:
    return gist(command_text(info.command or ""))


def _verdict(state: str, exit_code: int | None) -> str:
    if state == DONE:
        return OK
    return f"exit {exit_code}" if state == FAILED_STATE and exit_code is not None else state


def _target_row(target: RunTarget) -> tuple[str, str, str]:
    message = "" if target.error is None else str(target.error["message"])
    text = message or target.stderr or target.stdout or ""
    last = visible(text.strip().splitlines()[-1]) if text.strip() else ""
    return (target.name or target.connection, _verdict(target.state, target.exit_code), last[:100])


def _print_groups(groups: Sequence[RunGroup]) -> None:
    """Print outputs as `connmgr exec --all` does."""
    names = [(name or id) for group in groups for id, name in zip(group.connections, group.names, strict=True)]
    with Gathered(names) as gathered:
        for group in groups:
            if group.error is not None:
                message = str(group.error["message"])
            else:
                message = "not begun" if group.state == STOPPED else ""
            stdout, stderr = (text.encode() + b"\n" if text else b"" for text in (group.stdout, group.stderr))
            for id, name in zip(group.connections, group.names, strict=True):
                gathered.add(name or id, _verdict(group.state, group.exit_code), stdout, stderr, message)
        gathered.show()


@click.group(cls=Group)
def schedule() -> None:
    """Begin runs by a calendar, or at an interval.

    The daemon keeps schedules in the vault. Name a SCHEDULE by its name or uuid. Each of its times is a run, as
    `connmgr run` begins one: `connmgr run ls` lists them.
    """


zone_option = click.option(
    "--timezone", metavar="ZONE", default="UTC", show_default=True, help="The time zone of --cron."
)


@schedule.command(name="add", cls=WithCommand)
@click.argument("name")
@click.argument("selectors", metavar="CONNECTION|GLOB...", nargs=-1)
@choosing
@click.option("--cron", metavar="EXPRESSION", help="Minute, hour, day, month, weekday; or six, with seconds first.")
@click.option("--every", metavar="TIME", type=Duration(), help="In place of --cron: at this interval, such as 15m.")
@zone_option
@click.option("--jitter", metavar="TIME", type=Duration(least=0), help="Delay each time at random, by at most this.")
@click.option(
    "--overlap",
    metavar="skip|queue",
    type=click.Choice([SKIP, QUEUE]),
    default=SKIP,
    show_default=True,
    help="If the previous run is still under way: skip this time, or begin when that run has ended.",
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
@waves_option
@stop_after_option
@click.option("--timeout", metavar="TIME", type=Duration(), help="Kill each command after this time.")
@click.option("--parallel", metavar="N", type=click.IntRange(1, 500), help="How many at once.")
@json_option
def add_schedule(
    name: str,
    selectors: tuple[str, ...],
    choice: Choice,
    command: tuple[str, ...],
    *,
    as_argv: bool,
    script: str | None,
    saved: str | None,
    facts: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Add a schedule: connmgr schedule add NAME GLOB --cron '30 2 * * *' -- COMMAND.

    One GLOB without a /, or the filters alone (--where, --category, --type), choose anew at each time. Names, several
    words and a GLOB with a / choose now, and each time goes to the same connections. The words after -- are joined by
    blanks into one command, as by `connmgr run`.
    """
    what = what_runs(command, script=script, as_argv=as_argv, saved=saved, facts=facts)
    if (options["cron"] is None) == (options["every"] is None):
        raise click.UsageError("Give --cron or --every.")
    if choice.failed is not None or choice.limit is not None:
        raise click.UsageError("--failed and --limit are for one run, not for a schedule.")
    require_some(selectors, choice)
    client = connect()
    run: dict[str, Any] = _selection(client, selectors, choice)
    run |= {field: to_json(value) if isinstance(value, Message) else value for field, value in what.items()}
    # What is left of the options are the schedule's own: the times, and what becomes of times that passed.
    for field, option in _OF_RUN.items():
        if (value := options.pop(option)) is not None:
            run[field] = value
    times = {_OF_SCHEDULE.get(option, option): value for option, value in options.items() if value is not None}
    added = client.schedules.add(name, run=run, **times)
    if as_json:
        print_json(added)
    else:
        if added.locked is not None:
            count = plural(len(added.locked), "connection")
            click.echo(f"The secrets of {count} are sealed to vault users alone: its runs fail there.", err=True)
        if added.warning is not None:
            click.echo(visible(added.warning), err=True)
        click.echo(f"{added.schedule}  next {_ahead(added.next)}")


_OF_RUN = {"waves": "waves", "stopAfter": "stop_after", "timeout": "timeout", "parallel": "parallel"}
_OF_SCHEDULE = {"catch_up": "catchUp"}


def _selection(client: Client, selectors: Sequence[str], choice: Choice) -> dict[str, Any]:
    filters = {"categoryFilter": choice.category, "typeFilter": choice.kind}
    fields: dict[str, Any] = {name: value for name, value in filters.items() if value != "*"}
    fields |= {} if choice.where is None else {"where": choice.where}
    if not selectors:
        return fields
    [first, *others] = selectors
    # The daemon can apply only such a pattern anew at each time; everything else is resolved here, once.
    if not others and is_pattern(first) and "/" not in first:
        return {**fields, "connectionFilter": first if first == "*" else f"**/{first}"}
    names = select_connections(client, selectors, choice, usage="shell").names
    click.echo(
        f"Each time goes to {plural(len(names), 'connection')}, chosen now; one GLOB without / chooses anew.", err=True
    )
    return {"connections": [name.id for name in names]}


def _ahead(moment: datetime | None) -> str:
    if moment is None:
        return "-"
    seconds = (moment - datetime.now(timezone.utc)).total_seconds()
    return f"in {lasting(seconds)}" if seconds >= 0 else f"{lasting(-seconds)} ago"


@schedule.command(name="ls")
@json_option
def list_schedules(*, as_json: bool) -> None:
    """List schedules: when each fires next, how its last run ended, and what runs."""

    def row(schedule: ScheduleInfo) -> tuple[str, ...]:
        return schedule.name, _when(schedule), _schedule_state(schedule), _last_run(schedule), _what_runs(schedule.run)

    print_list(connect().schedules.query(), row, as_json=as_json)


def _when(schedule: ScheduleInfo) -> str:
    if schedule.every is not None:
        return f"every {lasting(schedule.every)}"
    return f"{schedule.cron} {schedule.timezone}"


def _schedule_state(schedule: ScheduleInfo) -> str:
    if schedule.paused is not None:
        return f"paused: {schedule.paused}"
    if schedule.next is None:
        return "ended"
    return f"{'overdue' if schedule.overdue else 'next'} {_ahead(schedule.next)}"


def _last_run(schedule: ScheduleInfo) -> str:
    if schedule.last_error is not None:
        return f"not started: {schedule.last_error}"
    return "-" if schedule.last_run is None else f"{schedule.last_state or 'removed'} {schedule.last_run[:8]}"


@schedule.command(name="show")
@click.argument("name", metavar="SCHEDULE")
@json_option
def show_schedule(name: str, *, as_json: bool) -> None:
    """Show a schedule: what it runs, where, when, and who is told."""
    schedules = connect().schedules.query()
    named = [schedule for schedule in schedules if name in (schedule.name, schedule.schedule)]
    # As the daemon finds it: by the uuid, or else among several of one name the owner's.
    named.sort(key=lambda schedule: (schedule.schedule != name, schedule.token is not None))
    schedule = next(iter(named), None)
    if schedule is None:
        near = did_you_mean(name, {other.name: other.name for other in schedules})
        raise Failure(f"No schedule is called {name!r}.{near} `connmgr schedule ls` lists them.", NOT_FOUND)
    if as_json:
        print_json(schedule)
        return
    run = schedule.run
    more = {field: run[field] for field in _BESIDE if run.get(field)}
    rows = [
        ("uuid", schedule.schedule),
        ("name", schedule.name),
        ("fires", _when(schedule)),
        ("state", _schedule_state(schedule)),
        ("until", None if schedule.until is None else schedule.until.isoformat()),
        ("jitter", lasting(schedule.jitter) if schedule.jitter else None),
        ("overlap", schedule.overlap),
        ("catch up", schedule.catch_up),
        ("runs", _what_runs(run)),
        ("on", _where(run)),
        *((field, json.dumps(value, ensure_ascii=False)) for field, value in more.items()),
        ("by", "the owner" if schedule.token is None else f"the token {schedule.token}"),
        ("tells", None if schedule.notify is None else json.dumps(schedule.notify, ensure_ascii=False)),
        ("last", _last_run(schedule)),
        ("left out", plural(schedule.skipped, "time") if schedule.skipped else None),
    ]
    print_table([(title, value) for title, value in rows if value is not None])


_BESIDE = ("waves", "stopAfter", "timeout", "parallel", "retries", "cwd", "env", "elevate", "as", "key")


def _what_runs(run: Mapping[str, Any]) -> str:
    """Return what a run of these fields runs."""
    if run.get("script") is not None:
        return f"a script of {plural(len(run['script']['text'].splitlines()), 'line')}"
    if run.get("facts") is not None:
        return f"gather facts: {', '.join(run['facts']) or 'all'}"
    if run.get("saved") is not None:
        return f"the saved command {run['saved']['name']}"
    return str(run["command"]) if run.get("command") is not None else shlex.join(run["argv"])


def _where(run: Mapping[str, Any]) -> str:
    """Return where a run of these fields runs, as the options of ``connmgr run`` say it."""
    if run.get("connections") is not None:
        return f"{plural(len(run['connections']), 'connection')}, always the same"
    words = [run.get("connectionFilter", "*").removeprefix("**/")]
    for option, field in (("--category", "categoryFilter"), ("--type", "typeFilter"), ("--where", "where")):
        if run.get(field) not in (None, "*"):
            words += [option, run[field]]
    return f"{shlex.join(words)}, chosen anew each time"


@schedule.command(name="rm")
@click.argument("names", metavar="SCHEDULE...", nargs=-1, required=True)
def remove_schedules(names: tuple[str, ...]) -> None:
    """Remove schedules; their runs stay."""
    client = connect()
    for name in names:
        client.schedules.remove(name)


@schedule.command(name="pause")
@click.argument("name", metavar="SCHEDULE")
@click.option("--reason", metavar="TEXT", help="Why; shown with the schedule.")
def pause_schedule(name: str, reason: str | None) -> None:
    """Keep a schedule from firing until `connmgr schedule resume`."""
    connect().schedules.pause(name, reason)


@schedule.command(name="resume")
@click.argument("name", metavar="SCHEDULE")
def resume_schedule(name: str) -> None:
    """Let a paused schedule fire again, from its next time on."""
    connect().schedules.resume(name)


@schedule.command(name="trigger")
@click.argument("name", metavar="SCHEDULE")
@json_option
def trigger_schedule(name: str, *, as_json: bool) -> None:
    """Start a schedule's run now, and print the run."""
    run = connect().schedules.trigger(name)
    if as_json:
        print_json({"run": run})
    else:
        click.echo(run)


@schedule.command(name="next")
@click.argument("name", metavar="SCHEDULE", required=False)
@click.option("--cron", metavar="EXPRESSION", help="In place of a SCHEDULE: an expression to try.")
@zone_option
@click.option(
    "--count", metavar="N", type=click.IntRange(1, 1000), default=5, show_default=True, help="How many times."
)
@json_option
def next_times(name: str | None, cron: str | None, timezone: str, count: int, *, as_json: bool) -> None:
    """Print the next times of a schedule, or of an expression, in UTC."""
    if (name is None) == (cron is None):
        raise click.UsageError("Give a SCHEDULE or --cron.")
    times = connect().schedules.next(name, cron=cron, timezone=timezone, count=count)
    texts = [moment.isoformat(timespec="seconds").replace("+00:00", "Z") for moment in times]
    if as_json:
        print_json(texts)
    elif texts:
        click.echo("\n".join(texts))
