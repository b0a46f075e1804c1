"""Jobs, commands that run on without a client: ``exec --detach`` starts them, ``connmgr job`` looks after them."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from connmgr.cli.connect import connect
from connmgr.cli.exits import FAILED, NOT_FOUND, NOT_RUN, TIMED_OUT, ExecCommand, Failure
from connmgr.cli.options import Group, states_option
from connmgr.cli.output import Duration, ago, json_option, lasting, print_json, print_list, print_table, tell_waiting
from connmgr.cli.plain import ensure_shell
from connmgr.cli.selection import MAX_COMPLETIONS, ConnectionName, Selection, offers, on_matching
from connmgr.cli.sessions import OK, own_session, shell_label
from connmgr.client import Client, ClientError
from connmgr.client.names import (
    MAX_CANDIDATES,
    UUID,
    did_you_mean,
    is_text,
    is_uuid,
    telling,
    with_beginning,
)
from connmgr.contract.job import UNDER_WAY
from connmgr.printable import gist, visible

if TYPE_CHECKING:
    from connmgr.cli.fan_out import Gathered
    from connmgr.client.jobs import Job, JobInfo, JobOutput, Orphan


STATES = ("starting", "running", "exited", "killed", "timed_out", "lost")


class JobName(click.types.StringParamType):
    """The name of a job. The shell completes it from the daemon's jobs; without a daemon it offers nothing."""

    name = "job"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in offers(ctx, lambda client: _names(client, incomplete))]


_job_argument = click.argument("name", metavar="JOB", type=JobName())


@click.group(cls=Group)
def job() -> None:
    """Look after jobs, which outlive their client.

    `connmgr exec --detach` begins one. Name a JOB by the name that it was given, or by its uuid. For info, logs and
    wait the first 8 digits of the uuid suffice.
    """


@job.command(name="ls")
@click.argument("pattern", metavar="[GLOB]", default="*")
@states_option("Only jobs", STATES)
@click.option("--all", "everyone", is_flag=True, help="Also the jobs that tokens, such as agents', have started.")
@json_option
def ls(pattern: str, states: tuple[str, ...], *, everyone: bool, as_json: bool) -> None:
    """List jobs of the connections that GLOB matches.

    The oldest come first, each with its state, its age and its command. Of jobs that tokens have started, only those
    are listed that wait for input; the others are counted at the end. --json prints all of them.
    """
    client = connect()
    filters: dict[str, Any] = {"states": list(states)} if states else {}
    answers = on_matching(client, pattern, client.post("/job/query", **filters)["jobs"])
    if as_json:
        print_json(answers)
        return
    from connmgr.client.jobs import JobInfo

    infos = [JobInfo.read(answer) for answer in answers]
    infos, others = (infos, []) if everyone else _without_others(client, infos)
    paths = {info.id: info.path for info in client.connection.info(sorted({info.connection for info in infos}))}
    if infos:
        print_table(
            [
                (info.id, info.name or "-", paths[info.connection], outcome(info), ago(info.created), gist(info.text))
                for info in infos
            ]
        )
    if others:
        under_way = sum(info.state in UNDER_WAY for info in others)
        click.echo(f"Jobs of tokens: {len(others)}, {under_way} under way. --all lists them.", err=True)


def _without_others(client: Client, infos: list[JobInfo]) -> tuple[list[JobInfo], list[JobInfo]]:
    """Return the jobs to list, and the jobs of other tokens than the caller's that do not wait for input."""
    if not any(info.token for info in infos):
        return infos, []
    own = client.token.info().id
    others = [info for info in infos if info.token not in (None, own) and info.waiting is None]
    left_out = {info.id for info in others}
    return [info for info in infos if info.id not in left_out], others


@job.command(name="info")
@_job_argument
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

    details = JobInfo.read(answer)
    rows = [
        ("uuid", details.id),
        ("name", details.name),
        ("key", details.key),
        ("connection", client.connection.info([details.connection])[0].path),
        ("session", None if details.session is None else shell_label(details.session)),
        ("command", details.text),
        ("state", outcome(details)),
        (
            "waits for",
            " / ".join(details.waiting.lines[-3:]) if details.waiting is not None and details.waiting.lines else None,
        ),
        ("begun", ago(details.created)),
        ("ended", None if details.ended is None else ago(details.ended)),
        ("kept for", lasting(details.keep)),
        ("input", "open" if details.stdin_open else None),
    ]
    print_table([(title, value) for title, value in rows if value is not None])


@job.command(name="logs")
@_job_argument
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
    job = find_job(connect(), name, reads=True)
    pieces = _follow(job, stdout_offset, stderr_offset) if follow else _so_far(job, stdout_offset, stderr_offset)
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
        wait_for_all(client, names, file, everywhere=everywhere, as_json=as_json)
        return
    job = find_job(client, names[0], reads=True)
    if as_json:
        job.wait(retry_timeout=math.inf, on_retry=tell_waiting)
        print_json(client.post("/job/info", job=job.id))
    info = job.info()
    if info.ended is None:
        info = job.wait(retry_timeout=math.inf, on_retry=tell_waiting)
    if info.state == "timed_out":
        raise click.exceptions.Exit(TIMED_OUT)
    if info.exit_code is None:
        raise Failure(f"The job's exit code is unknown: it is {info.state}.", NOT_RUN)
    raise click.exceptions.Exit(info.exit_code)


@job.command(name="input")
@_job_argument
@click.option("--no-eof", is_flag=True, help="Leave the job's input open at the end.")
def input(name: str, *, no_eof: bool) -> None:
    """Send standard input to a job, and end the job's input.

    The job must have been begun with --open-input. Input that was sent reaches the job even if the daemon dies. If the
    job does not read, this command waits.
    """
    from connmgr.client.jobs import PIECE_BYTES

    job = find_job(connect(), name)
    # os.read() returns what a pipe has, so that input reaches the job as it comes.
    while piece := os.read(sys.stdin.fileno(), PIECE_BYTES):
        job.input(piece, retry_timeout=math.inf, on_retry=tell_waiting)
    if not no_eof:
        job.input(b"", eof=True, retry_timeout=math.inf, on_retry=tell_waiting)


@job.command(name="kill")
@_job_argument
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
@click.option("-f", "--force", is_flag=True, help="Kill running jobs first.")
def rm(names: tuple[str, ...], *, force: bool) -> None:
    """Remove jobs that have ended, on their machines too."""
    client = connect()
    # First all names are looked up, so that a wrong one removes nothing.
    jobs = {job.id: job for job in (find_job(client, name) for name in names)}
    for job in jobs.values():
        job.remove(force=force)


def _so_far(job: Job, stdout: int, stderr: int) -> Iterator[JobOutput]:
    while True:
        piece = job.output(stdout, stderr)
        yield piece
        if piece.stale:
            raise Failure("The job's machine does not answer now; --follow waits for it.", FAILED)
        if piece.ended or not (piece.stdout or piece.stderr):
            return
        stdout, stderr = piece.next_stdout, piece.next_stderr


def _follow(job: Job, stdout: int, stderr: int) -> Iterator[JobOutput]:
    # Asked once without patience: --follow waits for a daemon that goes away, not for one that was never there.
    job.info()
    return job.stream(stdout, stderr, retry_timeout=math.inf, on_retry=tell_waiting)


DOCTOR_SECONDS = 5.0
"""Time for all machines together; a machine that does not answer a request in it is not asked again."""


@job.command(name="orphans")
@click.argument("name", metavar="CONNECTION", type=ConnectionName())
@click.option("--remove", is_flag=True, help="Remove those that do not run.")
@click.option(
    "--min-age",
    metavar="TIME",
    type=Duration(least=0),
    default=0.0,
    help="Only jobs that began at least this long ago; a minute at the least.",
)
@json_option
def orphans(name: str, min_age: float, *, remove: bool, as_json: bool) -> None:
    """List jobs of a machine that the vault does not know.

    Each comes with its state and its age. A restored backup and a removed connection leave such jobs. If daemons of
    other vaults use the same account of the machine, their jobs are listed too, and --remove deletes the ended ones
    from their users.
    """
    client = connect()

    def row(orphan: Orphan) -> tuple[str, ...]:
        age = "-" if orphan.age is None else lasting(orphan.age)
        return orphan.job, orphan.state, age, "removed" if orphan.removed else ""

    orphans = client.jobs.orphans(client.connection.find(name), remove=remove, min_age=min_age)
    print_list(orphans, row, as_json=as_json)


def orphans_of_open(url: str, auth_file: Path) -> tuple[dict[str, int], int, int]:
    """Ask the machines on which the daemon at ``url`` has shells; no link is opened.

    Return the number of orphans by the path of each connection that has some, the number of connections asked, and the
    number of those not asked or without an answer. Without a running daemon all are empty.
    """
    end = time.monotonic() + DOCTOR_SECONDS
    numbers: dict[str, int] = {}
    reached = 0
    with Client(url, auth_file, timeout=DOCTOR_SECONDS) as client:
        try:
            shells = client.daemon.status().sessions
            open_now = dict.fromkeys(shell.connection for shell in shells if shell.state != "lost")
            paths = {connection.id: connection.path for connection in client.connection.info(list(open_now))}
        except ClientError:
            return {}, 0, 0
        for id, path in paths.items():
            # All machines share the time, so that `connmgr doctor` does not hang on one that is away.
            if time.monotonic() < end:
                with suppress(ClientError):
                    leftovers = client.jobs.orphans(id)
                    reached += 1
                    if leftovers:
                        numbers[path] = len(leftovers)
    return numbers, reached, len(paths) - reached


def find_job(client: Client, name: str, *, reads: bool = False) -> Job:
    """Return the job that ``name`` means: by its uuid or its whole name; if ``reads``, by the beginning of its uuid.

    :raises Failure: none matches, or several do, which are listed.
    """
    if is_uuid(name):
        return client.jobs.get(name.lower())
    # A whole name outranks the beginning of a uuid.
    matches = client.jobs.query(name=name) if is_text(name) else []
    if not matches and reads:
        every = {info.id: info for info in client.jobs.query()}
        matches = [every[id] for id in with_beginning(every, name)]
    if len(matches) == 1:
        return client.jobs.get(matches[0].id)
    if not matches:
        times = Counter(info.name for info in client.jobs.query() if info.name) if is_text(name) else {}
        hint = did_you_mean(name, {text: text for text, number in times.items() if number == 1})
        raise Failure(f"No job is called {name!r}.{hint} `connmgr job ls` lists them.", NOT_FOUND)
    raise Failure(_ambiguous(name, matches), NOT_FOUND)


def outcome(info: JobInfo) -> str:
    """Return the state of a job in a few words, such as ``exited 3``."""
    words = [info.state if info.waiting is None else "waiting for input"]
    if info.exit_code is not None:
        words.append(str(info.exit_code))
    if info.stale and info.ended is None:
        words.append("(seen last)")
    return " ".join(words)


def _ambiguous(name: str, matches: list[JobInfo]) -> str:
    # The newest job is the most likely one.
    candidates = matches[: -MAX_CANDIDATES - 1 : -1]
    lines = [
        f"  {info.id}  {visible(info.name or '')}  {outcome(info)}, begun {ago(info.created)}" for info in candidates
    ]
    if len(matches) > len(lines):
        lines.append(f"  and {len(matches) - len(lines)} more")
    return "\n".join([f"{name!r} may be any of {len(matches)} jobs:", *lines])


def _names(client: Client, incomplete: str) -> list[str]:
    infos = client.jobs.query()
    times = Counter(info.name for info in infos)
    names = sorted(info.name if info.name and times[info.name] == 1 else info.id for info in infos)
    return [name for name in names if name.startswith(incomplete)][:MAX_COMPLETIONS]


WAITS = 64
"""Requests that wait at a time; a job that ended meanwhile answers at once."""

_FAILED_START = re.compile(r"(?P<name>\S.*?) {2,}(?P<code>[a-z]+(?:_[a-z]+)*) {2,}(?P<message>.*)")


class Ended(NamedTuple):
    """How a job has ended; ``job`` is empty if it was not begun."""

    job: str
    info: JobInfo | None = None
    raw: dict[str, Any] | None = None
    error: tuple[str, str] | None = None
    """Code and message, in place of the other two."""

    name: str = ""

    @property
    def verdict(self) -> str:
        if self.info is None:
            return self.error[0] if self.error else "unknown"
        if self.info.state != "exited" or self.info.exit_code is None:
            return self.info.state
        return f"exit {self.info.exit_code}" if self.info.exit_code else OK


def wait_for_all(
    client: Client, names: Sequence[str], file: IO[str] | None, *, everywhere: bool, as_json: bool
) -> None:
    """Wait for all jobs that are named or stand in ``file``, and print a line for each.

    :raises Failure: a name means no job, or with ``everywhere`` none has it; or a line of ``file`` is of no job.
    :raises click.exceptions.Exit: with 1, one of them has failed.
    """
    from connmgr.cli.fan_out import sum_up

    began = time.monotonic()
    failed, ids = _read(file) if file is not None else ([], [])
    ids += [id for name in names for id in (_ids_of(client, name) if everywhere else [find_job(client, name).id])]
    verdicts = []
    for end in (*failed, *_ends(client, list(dict.fromkeys(ids)))):
        verdicts.append(end.verdict)
        if as_json:
            print_json(_object(end), indent=None)
        else:
            click.echo(_line(client, end))
    sum_up(verdicts, len(verdicts), time.monotonic() - began, noun="job")


def _ids_of(client: Client, name: str) -> list[str]:
    if is_uuid(name):
        return [name.lower()]
    ids = [info.id for info in client.jobs.query() if name in (info.name, info.key)]
    if not ids:
        raise Failure(f"No job has the name or key {name!r}. `connmgr job ls` lists them.", NOT_FOUND)
    return ids


def _read(lines: Iterable[str]) -> tuple[list[Ended], list[str]]:
    """Return the starts that failed, and the uuids of the jobs that were begun."""
    failed, ids = [], []
    for number, line in enumerate(lines, 1):
        try:
            # A line of `exec --all --detach --json`; without --json the uuid is the last one in the line.
            content = json.loads(line)
            if "error" in content:
                failed.append(
                    Ended("", error=(content["error"]["code"], content["error"]["message"]), name=content["name"])
                )
            else:
                ids.append(str(content["job"]))
        except (ValueError, TypeError, KeyError):
            if (start := _failed_start(line)) is not None:
                failed.append(start)
                continue
            uuids = [match[0] for match in re.finditer(UUID, line)]
            if line.strip() and not uuids:
                raise Failure(f"--from: line {number} has no uuid of a job: {visible(line.strip())}") from None
            ids += [uuid.lower() for uuid in uuids[-1:]]
    return failed, ids


def _failed_start(line: str) -> Ended | None:
    """Return what a line of `exec --all --detach` without `--json` says of a job that was not begun."""
    parts = _FAILED_START.fullmatch(line.rstrip("\n"))
    if parts is None or is_uuid(parts["name"]):
        return None
    return Ended("", error=(parts["code"], parts["message"]), name=parts["name"])


def _ends(client: Client, ids: Sequence[str]) -> Iterator[Ended]:
    from connmgr.cli.fan_out import in_threads
    from connmgr.client.jobs import JobInfo

    def end(own: Client, id: str) -> Ended:
        try:
            job = own.jobs.get(id)
            if job.info().ended is None:
                job.wait(retry_timeout=math.inf)
            raw = own.post("/job/info", job=id)
        except ClientError as error:
            return Ended(id, error=(error.code, error.message))
        return Ended(id, JobInfo.read(raw), raw)

    return in_threads(client, ids, end, WAITS)


def _object(end: Ended) -> dict[str, Any]:
    if end.raw is not None:
        return end.raw
    code, message = end.error or ("unknown", "")
    about = {"job": end.job} if end.job else {"job": None, "name": end.name}
    return {**about, "error": {"code": code, "message": message}}


def _line(client: Client, end: Ended) -> str:
    if end.info is None:
        code, message = end.error or ("unknown", "")
        return f"{visible(end.job or end.name)}  {code}  {visible(message)}"
    path = client.connection.info([end.info.connection])[0].path
    return f"{end.job}  {visible(path)}  {outcome(end.info)}"


def start_job(client: Client, connection: str, path: str, /, *, fresh: bool, as_json: bool, **options: Any) -> None:
    """Start a command as a job beside the shell of the connection ``path``, and print the job's uuid."""
    started = _start(client, connection, path, fresh=fresh, **options)
    _warn(started, "connmgr")
    if as_json:
        print_json(started.members)
    else:
        click.echo(started.job)


def start_everywhere(
    client: Client,
    selection: Selection,
    options: dict[str, Any],
    jobs: int,
    *,
    as_json: bool,
) -> None:
    """Start a command as a job on each of the chosen connections, ``jobs`` at a time; print a line for each.

    :raises click.exceptions.Exit: with 1, it failed on some.
    """
    from connmgr.cli.fan_out import in_threads, report

    labels = {id: visible(name) for id, name in telling(selection.names).items()}
    sudo = options.pop("sudo")

    def start(own: Client, id: str) -> Started:
        try:
            on = id if sudo is None else own.connection.elevate(id, sudo)
            return _start(own, on, labels[id], **options)._replace(connection=id)
        except ClientError as error:
            return Started(id, failure=error)

    def work(ids: Sequence[str]) -> Iterator[Started]:
        for started in in_threads(client, ids, start, jobs):
            _warn(started, labels[started.connection])
            yield started

    report(client, selection, sudo, work, as_json=as_json, brief=True)


class Started(NamedTuple):
    """The start of a job on a connection: the job's uuid and a warning of its machine, or why it failed."""

    connection: str
    job: str = ""
    warning: str | None = None
    failure: ClientError | None = None

    @property
    def verdict(self) -> str:
        return OK if self.failure is None else self.failure.code

    def as_object(self) -> dict[str, Any]:
        """Return it for JSON, without its connection."""
        if self.failure is not None:
            return {"error": {"code": self.failure.code, "message": self.failure.message}}
        # Like an outcome that is not known yet, which has not failed.
        return {**self.members, "exitCode": None}

    @property
    def members(self) -> dict[str, Any]:
        return {"job": self.job} | ({} if self.warning is None else {"warning": self.warning})

    def show(self, name: str, width: int) -> None:
        failure = self.failure
        click.echo(f"{name:<{width}}  {self.job if failure is None else f'{failure.code}  {visible(failure.message)}'}")

    def gather(self, gathered: Gathered, name: str) -> None:
        message = "" if self.failure is None else self.failure.message
        gathered.add(name, self.verdict, self.job.encode(), message=message)


def _start(
    client: Client,
    connection: str,
    path: str,
    /,
    *,
    fresh: bool,
    session: str | None,
    open_input: bool | None,
    **more: Any,
) -> Started:
    if open_input:
        from connmgr.client.jobs import OPEN

        more["stdin"] = OPEN
    with own_session(client, connection) if fresh else nullcontext(session) as shell_session:
        ensure_shell(client, connection, shell_session, path)
        started = client.jobs.start(connection, session=shell_session, **more)
    return Started(connection, started.id, started.warning)


def _warn(started: Started, who: str) -> None:
    if started.warning is not None:
        click.echo(f"{who}: {visible(started.warning)}", err=True)
