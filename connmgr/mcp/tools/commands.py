"""Commands. Each runs as a job, so that it outlives the call that started it and can be read, fed and stopped later."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from connmgr.client import ClientError
from connmgr.client.jobs import OPEN, Job, JobInfo
from connmgr.client.names import escape
from connmgr.client.repeat import is_transient
from connmgr.contract.common import MAX_COMMAND
from connmgr.contract.job import ENDED, MIN_BYTES, UNDER_WAY, JobStartRequest
from connmgr.contract.message import NULLABLE
from connmgr.mcp.call import CallShell
from connmgr.mcp.outcome import Answer, From, derived, project
from connmgr.mcp.output import LOOK_SECONDS, Following, OpenQuestion, Ran, StreamBytes, text_of, whole_end
from connmgr.mcp.tool import Call, Session, System, tool
from connmgr.mcp.tools.terminals import TerminalScreen, screen_of, type_into
from connmgr.printable import visible

MAX_WAIT_SECONDS = 45
MAX_TEXT = MAX_COMMAND
"""Longest command or input, in characters."""

Wait = Annotated[
    int,
    Field(ge=0, le=MAX_WAIT_SECONDS, description="Seconds to wait for its end. 0: do not wait."),
]
MaxBytes = Annotated[
    int,
    Field(
        ge=256,
        le=262144,
        description="Most bytes of each of stdout and stderr; of longer output the beginning and the end are shown.",
    ),
]
Cwd = Annotated[
    str,
    Field(max_length=4096, description="The directory for this command only, absolute or relative to yours."),
]

MAX_ANSWER = 8192
_ID_OR_NONE = "^([0-9a-fA-F-]{36})?$"

COMMAND_CHARACTERS = 500
MAX_LISTED = 100

JobId = Annotated[str, Field(pattern="^[0-9a-fA-F-]{36}$", description="The uuid that run_command has answered.")]
Offset = Annotated[
    int | None, Field(ge=0, description="The first byte to show. Without both offsets: beginning and end.")
]
Signal = Literal["TERM", "INT", "HUP", "QUIT", "KILL", "STOP", "CONT", "USR1", "USR2", "ALRM"]


# Never null: the SDK parses the text of a parameter that may be null as JSON.
@tool("job.start", "job.output", runs=True, destroys=True)
def run_command(
    call: Call,
    system: System,
    command: Annotated[
        str, Field(max_length=MAX_TEXT, description="A text for the system's shell. This or argv.")
    ] = "",
    argv: Annotated[
        tuple[str, ...],
        derived(
            JobStartRequest,
            "argv",
            "A program and its words, which no shell reads: nothing needs quoting.",
            min_length=None,
        ),
    ] = (),
    session: Session = "",
    cwd: Cwd = "",
    env: Annotated[Mapping[str, str] | None, Field(description="Environment variables for this command only.")] = None,
    stdin: Annotated[str, Field(max_length=MAX_TEXT, description="Its whole input. Without it: none.")] = "",
    open_stdin: Annotated[bool, Field(description="True leaves its input open, for write_stdin.")] = False,
    timeout: Annotated[
        int | None,
        derived(
            JobStartRequest, "timeout", "Seconds after which the machine ends it. Without it: never.", gt=None, ge=1
        ),
    ] = None,
    wait: Wait = 20,
    max_bytes: MaxBytes = 16384,
) -> Ran:
    """Run a command on a system, and return its exit code and output.

    If it does not end within `wait` seconds, waits for input (`waiting`), or this call is cancelled, it runs on as a
    job: read_job shows its state and output. The directory that `command` changes to lasts for your next command, as in
    a shell; variables, aliases and functions do not: use `env`. Commands have no terminal: use open_terminal for
    programs that need one.
    """
    if cwd.startswith("~"):
        raise ClientError("cwd: ~ is not expanded here; write `cd ~/…` in the command.", "invalid_arguments", 0)
    if bool(command) == bool(argv):
        raise ClientError("Give either command or argv.", "invalid_arguments", 0)
    options: dict[str, Any] = {"argv": argv} if argv else {"command": command, "tell_directory": True}
    with call.shell(system, session) as shell:
        options |= {"cwd": shell.path(cwd) or None, "env": env, "timeout": timeout}
        return run(shell, options, stdin, moves=not cwd, opened=open_stdin, wait=wait, most=max_bytes)


def run(
    shell: CallShell, options: Mapping[str, Any], stdin: str, *, moves: bool, opened: bool, wait: float, most: int
) -> Ran:
    """Start a job and follow it for ``wait`` seconds; if it ``moves``, the next command begins where it ended."""
    call, bridge = shell.call, shell.call.bridge
    try:
        job = shell.start_job({**options, "stdin": OPEN if opened else stdin or None})
    except ClientError as error:
        if error.code == "no_such_directory" and moves:
            bridge.forget_directory(shell.place)
        raise
    following = Following(call, shell.client, job, most)
    call.partial_answer = following.answer()
    try:
        if opened and stdin:
            _feed(job, stdin)
        following.wait(wait)
        directory = following.last.directory if moves else None
        bridge.ended_in(shell.place, directory)
        return following.answer(directory or bridge.directory(shell.place))
    except ClientError as error:
        message = f"{error.message} The command is the job {job.id}."
        raise ClientError(message, error.code, error.status, error.details, error.retry_after) from error


def _feed(job: Job, text: str) -> None:
    try:
        job.input(text)
    except ClientError:
        # If the job has ended without reading, its output says more than this error.
        if job.output(max_bytes=MIN_BYTES).state not in ENDED:
            raise


@tool("job.output", reads=True)
def read_job(
    call: Call,
    job: JobId,
    stdout_from: Offset = None,
    stderr_from: Offset = None,
    wait: Wait = 0,
    max_bytes: MaxBytes = 16384,
) -> Ran:
    """Show the state and output of a job: the beginning and the end, or all output from the offsets on.

    With `wait` it waits for the job's end, or until it waits for input; with offsets it also returns when there is more
    output. Take the offsets from `next` of the previous answer. Reading does not consume the output.
    """
    with call.client() as client:
        followed = client.jobs.get(job)
        if stdout_from is None and stderr_from is None:
            following = Following(call, client, followed, max_bytes)
            following.wait(wait)
            return following.answer()
        return _from(call, followed, (stdout_from, stderr_from), wait, max_bytes)


def _from(call: Call, job: Job, offsets: tuple[int | None, int | None], wait: float, most: int) -> Ran:
    """Return the output from the offsets on; nothing of a stream without an offset."""
    size = job.output(max_bytes=MIN_BYTES)
    stdout = size.stdout_size if offsets[0] is None else offsets[0]
    stderr = size.stderr_size if offsets[1] is None else offsets[1]
    for seconds in call.waits(wait, LOOK_SECONDS):
        output = call.persist(partial(job.output, stdout, stderr, wait=seconds, max_bytes=most), is_transient)
        if output.stdout or output.stderr or output.ended or output.waiting:
            break
        call.news = f"The command is {output.state}."
    pieces = [piece if output.ended else whole_end(piece) for piece in (output.stdout, output.stderr)]
    after = StreamBytes(stdout=stdout + len(pieces[0]), stderr=stderr + len(pieces[1]))
    left = StreamBytes(stdout=output.stdout_size - after.stdout, stderr=output.stderr_size - after.stderr)
    return project(
        Ran,
        output,
        stdout=text_of(pieces[0]),
        stderr=text_of(pieces[1]),
        omitted=left,
        next=after,
        job=job.id,
        directory=None,
    )


class InputWritten(Answer):
    bytes: Annotated[int, "Bytes that were written."]


@tool("job.input", runs=True, destroys=True)
def write_stdin(
    call: Call,
    job: JobId,
    text: Annotated[str, Field(max_length=MAX_TEXT, description="The input; a line ends with a newline.")] = "",
    eof: Annotated[bool, Field(description="True ends the input after that.")] = False,
) -> InputWritten:
    """Send input to a job that run_command has started with openStdin."""
    with call.client() as client:
        client.jobs.get(job).input(text, eof=eof)
    return InputWritten(bytes=len(text.encode()))


class Answered(Answer):
    """What came after an answer: of a job or of a terminal."""

    ran: Annotated[Ran | None, NULLABLE, "Of a job: as read_job shows it."] = None
    screen: Annotated[TerminalScreen | None, NULLABLE, "Of a terminal: as read_screen shows it."] = None


@tool("job.input", "job.output", runs=True, destroys=True)
def answer_prompt(
    call: Call,
    question: Annotated[str, Field(max_length=64, description="`question` of the `waiting` that you answer.")],
    text: Annotated[str, Field(max_length=MAX_ANSWER, description="The answer, without the newline at its end.")],
    job: Annotated[str, Field(pattern=_ID_OR_NONE, description="The job that waits. This or terminal.")] = "",
    terminal: Annotated[str, Field(pattern=_ID_OR_NONE, description="The terminal that waits.")] = "",
    wait: Wait = 5,
) -> Answered:
    """Answer what a job or a terminal waits for, and show what comes after.

    Nothing is sent if it does not wait any more, or for another question. Secrets are never answered here: use a system
    whose password is stored, such as NAME/root, or ask the person to answer.
    """
    if bool(job) == bool(terminal):
        raise ClientError("Give either job or terminal.", "invalid_arguments", 0)
    with call.client() as client:
        if terminal:
            _require_question(screen_of(call, client, terminal, {"wait": 0}).waiting, question)
            return Answered(screen=type_into(call, client, terminal, f"{text}\r".encode(), {"wait": wait}))
        followed = client.jobs.get(job)
        waits = followed.output(max_bytes=MIN_BYTES).waiting
        _require_question(None if waits is None else project(OpenQuestion, waits), question)
        followed.input(f"{text}\n")
        following = Following(call, client, followed, MAX_ANSWER)
        following.wait(wait)
        return Answered(ran=following.answer())


def _require_question(waits: OpenQuestion | None, question: str) -> None:
    """Require that this very question waits, and that it does not ask for a secret."""
    if waits is None or waits.question != question:
        raise ClientError("This question is over, or another one waits. Nothing was sent.", "no_such_question", 0)
    if waits.secret:
        raise ClientError("It asks for a secret, which agents do not type. Nothing was sent.", "asks_for_secret", 0)


class Ended(Answer):
    source = JobInfo

    job: Annotated[str, From("id")]
    state: Annotated[str, "running, if it has not ended yet; else exited, killed, timed_out or lost."]
    exit_code: int | None


@tool("job.kill", "job.wait", destroys=True, repeats=True)
def stop_job(
    call: Call,
    job: JobId,
    signal: Annotated[Signal, Field(description="Sent to all processes of the job.")] = "TERM",
    grace: Annotated[
        int, Field(ge=0, le=30, description="Seconds after TERM, INT, HUP or QUIT until remaining processes get KILL.")
    ] = 5,
) -> Ended:
    """End a job with its child processes, or send it another signal. An ended job stays as it is."""
    ends = signal in ("TERM", "INT", "HUP", "QUIT", "KILL")
    with call.client() as client:
        followed = client.jobs.get(job)
        try:
            followed.kill(signal, grace)
        except ClientError as error:
            if error.code != "job_finished":
                raise
        info = followed.wait(grace + 5 if ends else 0)
    return project(Ended, info)


class JobSummary(Answer):
    """A job."""

    source = JobInfo

    job: Annotated[str, From("id"), "What read_job, write_stdin and stop_job take."]
    system: Annotated[str, "The path or the uuid of the system that it runs on."]
    command: Annotated[str, "What runs; the beginning of what is long."]
    state: Annotated[str, "starting, running, exited, killed, timed_out or lost."]
    exit_code: int | None
    waits: Annotated[bool, "Whether it waits for input: read_job shows for what."]
    age: Annotated[int, "Seconds since its start."]
    yours: Annotated[bool, "Whether you have started it since you were connected."]


class JobList(Answer):
    jobs: Annotated[list[JobSummary], "The newest first."]
    omitted: Annotated[int, "How many more there are."]


@tool("job.query", "connection.query", reads=True)
def list_jobs(
    call: Call,
    system: Annotated[str, Field(description="Only those of systems with this in their path.")] = "",
    ended: Annotated[bool, Field(description="True also lists ended jobs.")] = False,
) -> JobList:
    """List the jobs that you may see, including those of others."""
    states = None if ended else UNDER_WAY
    with call.client() as client:
        pattern = f"**{escape(system)}**" if system else "*"
        jobs = client.jobs.query(pattern, states=states)[::-1]
        paths = {name.id: name.path for name in client.connection.names()} if jobs else {}
    now = datetime.now(timezone.utc)
    shown = [
        project(
            JobSummary,
            job,
            system=paths.get(job.connection, job.connection),
            command=visible(job.text[:COMMAND_CHARACTERS], lines=True),
            waits=job.waiting is not None,
            age=max(0, int((now - job.created).total_seconds())),
            yours=job.name == call.bridge.session,
        )
        for job in jobs[:MAX_LISTED]
    ]
    return JobList(jobs=shown, omitted=max(0, len(jobs) - MAX_LISTED))
