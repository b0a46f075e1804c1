"""``connmgr job``: commands that run on without a client."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

import click

from connmgr.cli.daemon import connect
from connmgr.cli.duration import Duration
from connmgr.cli.exec import ExecCommand
from connmgr.cli.exits import FAILED, NOT_RUN, TIMED_OUT, Failure
from connmgr.cli.group import Group
from connmgr.cli.job_names import JobName, find_job, outcome
from connmgr.cli.names import on_matching
from connmgr.cli.orphans import orphans
from connmgr.cli.outcome import shell_label
from connmgr.cli.output import ago, json_option, lasting, print_json, print_table
from connmgr.client import ClientError
from connmgr.printable import visible

if TYPE_CHECKING:
    from connmgr.client.jobs import Job, JobInfo, JobOutput

STATES = ("starting", "running", "exited", "killed", "timed_out", "lost")
GIST_CHARACTERS = 60
"""Longest part of a command in a line."""

_named = click.argument("name", metavar="JOB", type=JobName())


@click.group(cls=Group)
def job() -> None:
    """Look after jobs: commands that run on alone.

    `connmgr exec --detach` begins one. Name a JOB by the name that it was given, or by its uuid. For info, logs and
    wait the first 8 digits of the uuid suffice.
    """


@job.command(name="ls")
@click.argument("pattern", metavar="[GLOB]", default="*")
@click.option(
    "--state",
    "states",
    metavar="STATE",
    type=click.Choice(STATES),
    multiple=True,
    help=f"Only jobs in this state: {', '.join(STATES)}. May be given several times.",
)
@json_option
def ls(pattern: str, states: tuple[str, ...], *, as_json: bool) -> None:
    """List jobs of the connections that GLOB matches.

    The oldest come first, each with its state, its age and its command.
    """
    client = connect()
    wanted: dict[str, Any] = {"states": list(states)} if states else {}
    answers = on_matching(client, pattern, client.post("/job/query", **wanted)["jobs"])
    if as_json:
        print_json(answers)
        return
    from connmgr.client.jobs import JobInfo

    found = [JobInfo.read(one) for one in answers]
    paths = {one.id: one.path for one in client.connection.info(sorted({one.connection for one in found}))}
    if found:
        rows = [(one.id, one.name or "-", paths[one.connection], outcome(one), *_details(one)) for one in found]
        print_table(rows)


@job.command(name="info")
@_named
@json_option
def info(name: str, *, as_json: bool) -> None:
    """Show a job as it is now."""
    client = connect()
    id = find_job(client, name, reads=True).id
    answer = client.post("/job/info", job=id)
    if as_json:
        print_json(answer)
        return
    from connmgr.client.jobs import JobInfo

    one = JobInfo.read(answer)
    rows = [
        ("uuid", one.id),
        ("name", one.name),
        ("key", one.key),
        ("connection", client.connection.info([one.connection])[0].path),
        ("session", None if one.session is None else shell_label(one.session)),
        ("command", one.text),
        ("state", outcome(one)),
        ("begun", ago(one.created)),
        ("ended", None if one.ended is None else ago(one.ended)),
        ("kept for", lasting(one.keep)),
        ("input", "open" if one.stdin_open else None),
    ]
    print_table([(title, value) for title, value in rows if value is not None])


@job.command(name="logs")
@_named
@click.option(
    "-f", "--follow", is_flag=True, help="Continue until the job has ended, even across restarts of the daemon."
)
@click.option(
    "--stdout-offset",
    metavar="BYTES",
    type=click.IntRange(0),
    default=0,
    help="Skip this many bytes of its standard output.",
)
@click.option(
    "--stderr-offset", metavar="BYTES", type=click.IntRange(0), default=0, help="The same for its standard error."
)
def logs(name: str, stdout_offset: int, stderr_offset: int, *, follow: bool) -> None:
    """Print the output of a job.

    Standard output and standard error stay separate, byte by byte. With --follow it waits when the daemon or the
    machine is unreachable for a time, and then continues. Ctrl-C ends it, and the job runs on.
    """
    found = find_job(connect(), name, reads=True)
    pieces = _followed(found, stdout_offset, stderr_offset) if follow else _so_far(found, stdout_offset, stderr_offset)
    truncated = False
    for piece in pieces:
        for stream, content in ((sys.stdout, piece.stdout), (sys.stderr, piece.stderr)):
            if content:
                stream.buffer.write(content)
                stream.flush()
        truncated = piece.truncated
    if truncated:
        click.echo("connmgr: output beyond the daemon's job-output is missing", err=True)


@job.command(name="wait", cls=ExecCommand)
@click.argument("names", metavar="JOB...", type=JobName(), nargs=-1)
@click.option("--all", "everywhere", is_flag=True, help="Each JOB is a name or a key, and means all jobs that have it.")
@click.option(
    "--from",
    "file",
    metavar="FILE",
    type=click.File(encoding="utf-8"),
    help="Wait for the jobs in FILE, lines of uuids or of `connmgr exec --all --detach`; - is standard input.",
)
@json_option
def wait(names: tuple[str, ...], file: IO[str] | None, *, everywhere: bool, as_json: bool) -> None:
    """Wait until a job has ended, and exit with its exit code.

    The exit code is 124 if its timeout has ended it, and 125 if it is unknown how it ended. It waits on when the daemon
    or the machine is unreachable for a time. Ctrl-C ends it, and the job runs on.

    Several jobs, --all and --from print a line for each job as it ends, and then a summary. The exit code is 1 if any
    of them did not exit with 0, or was not begun.
    """
    if not names and file is None:
        raise click.UsageError("Missing argument 'JOB...'.")
    client = connect()
    if len(names) > 1 or everywhere or file is not None:
        from connmgr.cli.job_wait import wait_for_all

        wait_for_all(client, names, file, everywhere=everywhere, as_json=as_json)
        return
    found = find_job(client, names[0], reads=True)
    if as_json:
        found.wait(retry_timeout=math.inf, on_retry=_tell)
        print_json(client.post("/job/info", job=found.id))
    one = found.info()
    if one.ended is None:
        one = found.wait(retry_timeout=math.inf, on_retry=_tell)
    if one.state == "timed_out":
        raise click.exceptions.Exit(TIMED_OUT)
    if one.exit_code is None:
        raise Failure(f"Nobody knows how the job ended: it is {one.state}.", NOT_RUN)
    raise click.exceptions.Exit(one.exit_code)


@job.command(name="input")
@_named
@click.option("--no-eof", is_flag=True, help="Leave the job's input open at the end.")
def input(name: str, *, no_eof: bool) -> None:
    """Send standard input to a job, and end the job's input.

    The job must have been begun with --open-input. Input that was sent reaches the job even if the daemon dies. If the
    job does not read, this command waits.
    """
    from connmgr.client.jobs import PIECE_BYTES

    found = find_job(connect(), name)
    while piece := os.read(sys.stdin.fileno(), PIECE_BYTES):
        found.input(piece, retry_timeout=math.inf, on_retry=_tell)
    if not no_eof:
        found.input(b"", eof=True, retry_timeout=math.inf, on_retry=_tell)


@job.command(name="kill")
@_named
@click.option(
    "-s", "--signal", metavar="SIGNAL", default="TERM", show_default=True, help="Such as INT, HUP, USR1, KILL."
)
@click.option(
    "--grace",
    metavar="TIME",
    type=Duration(3600, least=0),
    default="5s",
    show_default=True,
    help="Time after TERM, INT, HUP or QUIT until the remaining processes get KILL.",
)
def kill(name: str, signal: str, grace: float) -> None:
    """Send a signal to all processes of a job. It does not wait for their end."""
    find_job(connect(), name).kill(signal.upper().removeprefix("SIG"), grace)


@job.command(name="rm")
@click.argument("names", metavar="JOB...", type=JobName(), nargs=-1, required=True)
@click.option("-f", "--force", is_flag=True, help="Kill those that run.")
def rm(names: tuple[str, ...], *, force: bool) -> None:
    """Remove jobs that have ended, on their machines too."""
    client = connect()
    found = {one.id: one for one in (find_job(client, name) for name in names)}
    for one in found.values():
        one.remove(force=force)


job.add_command(orphans)


def _so_far(found: Job, stdout: int, stderr: int) -> Iterator[JobOutput]:
    while True:
        piece = found.output(stdout, stderr)
        yield piece
        if piece.stale:
            raise Failure("The job's machine does not answer now; --follow waits for it.", FAILED)
        if piece.ended or not (piece.stdout or piece.stderr):
            return
        stdout, stderr = piece.next_stdout, piece.next_stderr


def _followed(found: Job, stdout: int, stderr: int) -> Iterator[JobOutput]:
    # A job or daemon that is not there now is not waited for.
    found.info()
    return found.stream(stdout, stderr, retry_timeout=math.inf, on_retry=_tell)


def _tell(error: ClientError) -> None:
    click.echo(f"connmgr: {visible(error.message)} Waiting.", err=True)


def _details(one: JobInfo) -> tuple[str, str]:
    lines = one.text.splitlines() or [""]
    gist = visible(lines[0])
    cut = len(lines) > 1 or len(gist) > GIST_CHARACTERS
    return ago(one.created), f"{gist[: GIST_CHARACTERS - 1]}…" if cut else gist
