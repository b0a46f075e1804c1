"""``connmgr exec``: run a command on a connection, or on many."""

from __future__ import annotations

import errno
import math
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from connmgr.cli import exits
from connmgr.cli.daemon import connect
from connmgr.cli.names import ConnectionName, find
from connmgr.cli.output import json_option
from connmgr.client import Client, ClientError, RawResult
from connmgr.errors import ConnmgrError

Returned = TypeVar("Returned")

JOBS = 16
KILLED = "command_timeout"
"""The code of the error that holds what a command has printed until its time was over."""


class ExecCommand(click.Command):
    """Sets its own failures apart from those of the command that it runs, by their exit code."""

    def make_context(self, *arguments: Any, **more: Any) -> click.Context:
        try:
            return super().make_context(*arguments, **more)
        except click.UsageError as error:
            raise exits.coded(error, exits.NOT_RUN) from error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ClientError as error:
            code = exits.TIMED_OUT if error.code == KILLED else exits.NOT_RUN
            raise exits.coded(exits.failure(error), code) from error
        except click.ClickException as error:
            raise exits.coded(error, exits.NOT_RUN) from error
        except ConnmgrError as error:
            raise exits.Failure(error.message, exits.NOT_RUN) from error
        except (OSError, UnicodeError) as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                # Whoever reads the output has seen enough, which click knows to be no fault.
                raise
            raise exits.coded(exits.io_failure(error), exits.NOT_RUN) from error


def _finite(_: click.Context, __: click.Parameter, seconds: float | None) -> float | None:
    if seconds is not None and not math.isfinite(seconds):
        raise click.BadParameter("Not a finite number.")
    return seconds


@click.command(cls=ExecCommand)
@click.argument("connection", type=ConnectionName())
@click.argument("command", metavar="-- COMMAND...", nargs=-1, required=True)
@click.option("--all", "everywhere", is_flag=True, help="CONNECTION is a GLOB: run it on all that it matches.")
@click.option(
    "-j",
    "--jobs",
    metavar="N",
    type=click.IntRange(1, 64),
    default=JOBS,
    show_default=True,
    help="With --all: how many at once.",
)
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(0, min_open=True),
    callback=_finite,
    help="Kill it after so long.",
)
@click.option("--cwd", metavar="DIR", help="Run in this directory.")
@click.option("--env", metavar="NAME=VALUE", multiple=True, help="Set a variable for the command.")
@click.option("--stdin", "reads", is_flag=True, help="Give it this command's standard input, read to its end.")
@json_option
def exec(
    connection: str,
    command: tuple[str, ...],
    env: tuple[str, ...],
    *,
    everywhere: bool,
    jobs: int,
    timeout: float | None,
    cwd: str | None,
    reads: bool,
    as_json: bool,
) -> None:
    """Run a command in the shell of a connection, which is started where it does not run, and stays.

    The words after -- are joined by blanks and make one command of that shell's language, as with ssh: quote what the
    far shell is to see as one word. Output is printed when the command has ended, byte by byte as it came, and the
    exit code is the command's own. A command that is killed for its time has printed what it had until then. Ctrl-C
    kills the command.

    With --all one line is printed for each connection as it finishes, then a summary, and the exit code is 1 where any
    failed. With --json each line is an object that holds the whole output.
    """
    options: dict[str, Any] = {"timeout": timeout, "cwd": cwd, "env": _variables(env)}
    if reads:
        options["stdin"] = sys.stdin.buffer.read()
    client = connect()
    joined = " ".join(command)
    if everywhere:
        from connmgr.cli.fan_out import run_everywhere

        run_everywhere(client, connection, joined, options, jobs, as_json=as_json)
        return
    id = find(client, connection)
    try:
        result = in_shell(client, id, lambda: client.shell.exec_bytes(id, joined, **options))
    except ClientError as error:
        if until := printed_until(error):
            _print(until, as_object(error) if as_json else None)
        raise
    _print(result, as_object(result) if as_json else None)
    raise click.exceptions.Exit(result.exit_code)


def in_shell(client: Client, connection: str, work: Callable[[], Returned]) -> Returned:
    """Do ``work`` in a connection's shell, which is started first where it does not run."""
    try:
        return work()
    except ClientError as error:
        if error.code != "no_shell":
            raise
    client.shell.start(connection)
    return work()


def printed_until(error: ClientError) -> RawResult | None:
    """Return what a command has printed that was killed for its time; None where ``error`` tells of something else."""
    return RawResult.read({**error.details, "exitCode": exits.TIMED_OUT}) if error.code == KILLED else None


def as_object(outcome: RawResult | ClientError) -> dict[str, Any]:
    """Return an outcome for JSON: the exit code, or an error's code and message, and output where there is any.

    Output is text without its final newline.
    """
    if isinstance(outcome, ClientError):
        head: dict[str, Any] = {"error": {"code": outcome.code, "message": outcome.message}}
        until = printed_until(outcome)
        return head if until is None else {**head, **_texts(until)}
    return {"exitCode": outcome.exit_code, **_texts(outcome)}


def _texts(result: RawResult) -> dict[str, Any]:
    texts = {
        name: output.decode(errors="replace").removesuffix("\n")
        for name, output in (("stdout", result.stdout), ("stderr", result.stderr))
    }
    return {**texts, **({"truncated": True} if result.truncated else {})}


def _print(result: RawResult, shown: dict[str, Any] | None) -> None:
    """Write ``result`` as it came, or the JSON object ``shown`` in its place."""
    if shown is None:
        write(result)
        return
    from connmgr.cli.output import print_json

    print_json(shown)


def write(result: RawResult, *, whole_lines: bool = False) -> None:
    """Write output to where the command wrote it, byte by byte; with ``whole_lines`` each stream ends a line."""
    for stream, output in ((sys.stdout, result.stdout), (sys.stderr, result.stderr)):
        stream.buffer.write(output)
        if whole_lines and output and not output.endswith(b"\n"):
            stream.buffer.write(b"\n")
        stream.flush()
    if result.truncated:
        click.echo("connmgr: output beyond the daemon's max-output is missing", err=True)


def _variables(assignments: tuple[str, ...]) -> dict[str, str] | None:
    for assignment in assignments:
        if "=" not in assignment:
            raise click.BadParameter(f"{assignment!r} is not of the form NAME=VALUE.", param_hint="--env")
    return dict(one.split("=", 1) for one in assignments) or None
