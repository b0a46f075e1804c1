"""Commands. Each runs as a job, so that it survives the loss of its caller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from connmgr.client import Client, ClientError
from connmgr.client.jobs import OPEN, Job
from connmgr.mcp.bridge import AgentShell
from connmgr.mcp.following import ENDED, MIN_BYTES, Following, Ran
from connmgr.mcp.starting import path_in, start
from connmgr.mcp.tool import Call, Session, System, tool

MAX_WAIT_SECONDS = 45
MAX_TEXT = 1 << 20
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
        Field(max_length=10000, description="A program and its words, which no shell reads: nothing needs quoting."),
    ] = (),
    session: Session = "",
    cwd: Cwd = "",
    env: Annotated[Mapping[str, str] | None, Field(description="Environment variables for this command only.")] = None,
    stdin: Annotated[str, Field(max_length=MAX_TEXT, description="Its whole input. Without it: none.")] = "",
    open_stdin: Annotated[bool, Field(description="True leaves its input open, for write_stdin.")] = False,
    timeout: Annotated[
        int | None,
        Field(ge=1, le=365 * 86400, description="Seconds after which the machine ends it. Without it: never."),
    ] = None,
    wait: Wait = 20,
    max_bytes: MaxBytes = 16384,
) -> Ran:
    """Run a command on a system, and return its exit code and output.

    If it does not end within `wait` seconds, or if this call is cancelled, it runs on as a job: read_job shows its
    state and output. The directory that `command` changes to lasts for your next command, as in a shell; variables,
    aliases and functions do not: use `env`. Commands have no terminal: use open_terminal for programs that need one.
    """
    if cwd.startswith("~"):
        raise ClientError("cwd: ~ is not expanded here; write `cd ~/…` in the command.", "invalid_arguments", 0)
    if bool(command) == bool(argv):
        raise ClientError("Either command or argv says what to run.", "invalid_arguments", 0)
    place = call.place(system, session)
    options: dict[str, Any] = {"argv": argv} if argv else {"command": command, "tell_directory": True}
    options |= {"cwd": path_in(call.bridge, place, cwd) or None, "env": env, "timeout": timeout}
    with call.client() as client:
        return run(call, client, place, options, stdin, moves=not cwd, opened=open_stdin, wait=wait, most=max_bytes)


def run(
    call: Call,
    client: Client,
    place: AgentShell,
    options: Mapping[str, Any],
    stdin: str,
    *,
    moves: bool,
    opened: bool,
    wait: float,
    most: int,
) -> Ran:
    """Start a job and follow it for ``wait`` seconds; if it ``moves``, the next command begins where it ended."""
    given: str | None = stdin or None
    try:
        job = start(call, client, place, {**options, "stdin": OPEN if opened else given})
    except ClientError as error:
        if error.code == "no_such_directory" and moves:
            call.bridge.forget_directory(place)
        raise
    following = Following(call, client, job, most)
    call.known = following.shown()
    try:
        if opened and given:
            _feed(job, given)
        following.wait(wait)
        directory = following.last.directory if moves else None
        call.bridge.ended_in(place, directory)
        return following.shown(directory or call.bridge.directory(place))
    except ClientError as error:
        told = f"{error.message} The command is the job {job.id}."
        raise ClientError(told, error.code, error.status, error.details, error.retry_after) from error


def _feed(job: Job, text: str) -> None:
    try:
        job.input(text)
    except ClientError:
        # If the job has ended without reading, its output says more than this error.
        if job.output(max_bytes=MIN_BYTES).state not in ENDED:
            raise
