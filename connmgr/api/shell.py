"""``/shell``: a shell on a connection, and the commands that run in it."""

from __future__ import annotations

import base64
import codecs
import contextlib
import shlex
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import flask

from connmgr import errors
from connmgr.api.answer import LINES, as_lines, as_result
from connmgr.api.body import BYTES, INPUT
from connmgr.api.connection_data import locked_ones
from connmgr.api.context import (
    ROOM,
    RequestContext,
    caller,
    cancellation,
    detail,
    ground_of,
    note_forwarding,
    request_context,
)
from connmgr.api.endpoint import Group
from connmgr.api.errors import note_error
from connmgr.api.keeping import settler, snapshot_before
from connmgr.api.running import DETACHING, EXAMPLE, OPENING, command_of, detached, printed_until, with_words
from connmgr.api.services import services
from connmgr.contract.message import message_of
from connmgr.contract.shell import (
    SHOWN_CHARACTERS,
    ExecLine,
    ExecRequest,
    ExecResponse,
    ListedShell,
    ListRequest,
    RunningCommandInfo,
    ShellInfo,
    ShellListResponse,
    StartRequest,
    StopRequest,
)
from connmgr.engine.envelope import Command
from connmgr.engine.running import Room, RunningCommand
from connmgr.errors import CommandCancelled, NoSuchDirectory
from connmgr.fs.bodies import ArrivingBody, ArrivingInput
from connmgr.rights.actions import Action, always, stops_others
from connmgr.shell.commands import CommandStart, begin_command
from connmgr.shell.shells import ShellActivity, ShellRef

JSON = "application/json"
NAMES = ("stdout", "stderr")

Line = dict[str, Any]
Burst = list[Line]
EncodePiece = Callable[[bytes, bool], str]
"""Encodes output as text; keeps an incomplete character back, except in the last piece."""

group = Group(
    "shell",
    "Shells that stay open between requests. Each connection has its own shell, which requests without "
    "`session` use, and may have further shells with names. Each shell has its own directory, variables and "
    "queue of commands; all share the link. A connection has at most 16 shells.",
)


@group.endpoint(
    "/start",
    about=("connection", "session"),
    raises=[*OPENING, errors.ShellLost, errors.ShellBusy, errors.SessionLimit],
    waits=True,
    example={"connection": EXAMPLE},
    answer={
        "shellDialect": 1,
        "osType": "linux",
        "osName": "Debian GNU/Linux 12 (bookworm)",
        "ttyState": "none",
        "temp": "/tmp",  # noqa: S108 - of a far machine, and an example
    },
)
def start(request: StartRequest) -> ShellInfo:
    """Start a shell of a connection and describe it.

    A shell that already runs is only described.
    """
    started = services().shells.start(request.connection, caller().access, request.session, cancellation())
    restarted = (started.restarted and request.tell_restarted) or None
    return message_of(ShellInfo, started.info, dialect=started.info.shell_dialect, restarted=restarted)


@group.endpoint(
    "/exec",
    lines=ExecLine,
    has_content=True,
    action=Action("shell.exec", runs=True, in_shell=always),
    suspends=True,
    about=("connection", "session", "command", "argv"),
    selects=with_words,
    raises=[
        *OPENING,
        errors.UnknownCommand,
        errors.NoShell,
        errors.NoSuchDirectory,
        errors.ShellLost,
        errors.ReadOnlyUnavailable,
        errors.ShellStopped,
        errors.CommandTimeout,
        errors.CommandCancelled,
        errors.ShellBusy,
        errors.SessionLimit,
        *DETACHING,
    ],
    waits=True,
    example={"connection": EXAMPLE, "command": "uname -s; ls /nowhere", "timeout": 10},
    answer={
        "exitCode": 2,
        "stdout": "Linux",
        "stderr": "ls: cannot access '/nowhere': No such file or directory",
    },
)
def execute(request: ExecRequest) -> flask.Response | ExecResponse:
    """Run a command in a shell of a connection and return its output.

    A command that fails is not an error: the answer is 200 with its exit code. Commands in one shell run one after the
    other. The working directory and exported variables last from one to the next. A client that closes its connection
    kills the command, or if it still waits for its turn, drops it.

    An `argv` is executed as by execve(2), without a shell. It runs in the directory and with the exported variables of
    the shell, and changes neither. Exit code 127 means no such program, 126 not executable.

    With `Accept: application/x-ndjson` the answer is lines of JSON, sent while the command prints. The last line has
    the exit code or the error. An error that prevents the command from beginning is answered without lines.

    A body of type `application/octet-stream` is this request as one line of JSON, and after its newline the command's
    input, of any length. It reaches the command while it arrives, as fast as the command reads; the end of the body is
    the end of the input. Input that the command does not read is dropped when it ends. A body that breaks off kills the
    command. With lines, the first one then has `begun`, once the command has begun and before any input is taken.

    With `start` the daemon starts a shell that does not run, or that was lost while idle. After a loss the answer has
    `restarted`: as its first line, or as a member of the answer or error. A command that may have been sent is never
    run again: the answer is `shell_lost`.

    With `detachAfter` the command runs as a job beside the shell, and does not change the shell's state. If it ends in
    time, it is answered like any other, and the job is removed. Otherwise the answer has `job` instead of `exitCode`,
    with the output so far, and the command runs on, even if the client leaves or the shell ends.
    """
    encoding = request.encoding
    if request.detach_after is not None:
        return detached(request, request.detach_after)
    arriving = None if request.input is None else _arriving()
    command = command_of(request, arriving)
    if command.stdin:
        detail(stdinBytes=len(command.stdin))
    if (snapshot := snapshot_before(request.connection)) is not None:
        # Called when the command has ended, also if its output is still being sent.
        request_context().resources.callback(settler(snapshot))
    if _wants_lines():
        running, restarted = request_context().resources.enter_context(_begin(request, command))
        note_forwarding(running.transport)
        return _live_response(running, encoding, restarted=restarted, begins=arriving is not None)
    with _begin(request, command) as (running, restarted):
        note_forwarding(running.transport)
        try:
            result = running.result()
        except errors.CommandTimeout as error:
            error.details = printed_until(error, encoding)
            raise
    detail(exitCode=result.exit_code, stdoutBytes=len(result.stdout), stderrBytes=len(result.stderr))
    return as_result(result, encoding, restarted=restarted)


def _wants_lines() -> bool:
    """Whether the client asks for lines: it accepts their media type, and does not prefer JSON."""
    accepted: str = flask.request.environ.get("HTTP_ACCEPT", "")
    # Most clients do not mention the type, and parsing takes longer than this.
    if LINES not in accepted.lower():
        return False
    qualities = dict.fromkeys((LINES, JSON), 0.0)
    for value, quality in flask.request.accept_mimetypes:
        kind = value.partition(";")[0].strip().lower()
        if kind in qualities:
            qualities[kind] = max(qualities[kind], quality)
    return 0 < qualities[LINES] >= qualities[JSON]


def _live_response(running: RunningCommand, encoding: str, *, restarted: bool, begins: bool) -> flask.Response:
    """Return the response with the output of ``running`` as it comes, and its exit code or error.

    If the shell was ``restarted``, or the command ``begins`` while its input is yet to come, the first line says so.
    :raises NoSuchDirectory: the command did not begin.
    """
    room: Room = flask.request.environ.get(ROOM, lambda _: True)
    lines = _live_lines(running, encoding, room, request_context(), debug=services().settings.debug, begins=begins)
    first: Burst = [{"restarted": True}] if restarted else []
    if begins:
        # The client may wait for it before it reads its own input.
        return as_lines(_with_first([*first, {"begun": True}], lines))
    # The header is sent with the first line anyway, so waiting for it loses nothing.
    return as_lines(_with_first([*first, *next(lines)], lines))


def _with_first(first: Burst, lines: Iterator[Burst]) -> Iterator[Burst]:
    yield first
    yield from lines


def _live_lines(
    running: RunningCommand, encoding: str, room: Room, context: RequestContext, *, debug: bool, begins: bool
) -> Iterator[Burst]:
    printed = dict.fromkeys(NAMES, 0)
    encoders = {name: _encoder(encoding) for name in NAMES}
    last: Line
    try:
        for piece in running.events(room):
            for name, data in zip(NAMES, piece, strict=True):
                printed[name] += len(data)
                if data and (text := encoders[name](data, False)):
                    yield [{name: text}]
        last = {"exitCode": running.exit_code}
        context.details.update(last)
    except GeneratorExit:
        context.code = CommandCancelled.code
        raise
    except BaseException as error:
        if isinstance(error, NoSuchDirectory) and not (begins or any(printed.values())):
            raise
        # A plugin may raise any exception, and the status of the answer is already sent.
        _, body = note_error(error, context, debug=debug)
        last = body if "error" in body else {"error": body}
    finally:
        context.details.update({f"{name}Bytes": size for name, size in printed.items()})
    rest = [{name: text} for name, encode in encoders.items() if (text := encode(b"", True))]
    yield [*rest, last]


def _encoder(encoding: str) -> EncodePiece:
    if encoding == "base64":
        return lambda data, _: base64.b64encode(data).decode()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return lambda data, final: decoder.decode(data, final=final)


@group.endpoint(
    "/list",
    reads=True,
    about=("connection",),
    raises=[errors.UnknownConnection],
    example={"connection": EXAMPLE},
    answer={
        "shells": [
            {
                "connection": EXAMPLE,
                "session": "build",
                "state": "busy",
                "pid": 4711,
                "directory": "/srv/app",
                "since": "2025-01-31T08:15:00.000000Z",
                "uptime": 3600.2,
                "idle": 0.0,
                "waiting": 1,
                "runningSince": "2025-01-31T09:15:00.000000Z",
                "running": {"command": "make -j4 all", "client": "connmgr"},
            }
        ]
    },
)
def list_(request: ListRequest) -> ShellListResponse:
    """Describe the running shells of all connections or of one. No machine is asked."""
    shells = visible_shells(request.connection)
    hidden = locked_ones(shell.connection for shell in shells if shell.running is not None)
    return ShellListResponse(
        shells=[
            message_of(
                ListedShell, shell, running=None if shell.connection in hidden else _visible_command(shell.running)
            )
            for shell in shells
        ]
    )


@group.endpoint(
    "/stop",
    action=Action("shell.stop", limits=[stops_others]),
    about=("connection", "session"),
    raises=[errors.UnknownConnection, errors.NoShell, errors.SecretLocked, errors.ShellBusy],
    waits=True,
    stops=True,
    example={"connection": EXAMPLE},
)
def stop(request: StopRequest) -> None:
    """Stop one shell of a connection, or all its shells and terminals. The answer comes when they have exited.

    A running command is killed with its child processes. Background processes of earlier commands run on, with or
    without `nohup`, as after a logout from ssh. With `all` the link is not used again: the next shell logs in. A token
    that may only look stops the shells with a name that it has started.
    """
    shells = services().shells
    if request.all:
        detail(all=True)
        closed = services().terminals.close_all(request.connection, caller().access)
        with contextlib.suppress(*([errors.NoShell] if closed else [])):
            shells.stop_all(request.connection, caller().access)
    else:
        grant = caller().grant
        only_own = grant is not None and grant.read_only
        shells.stop(request.connection, caller().access, request.session, only_own=only_own)


def _arriving() -> ArrivingInput:
    """Return the rest of this request's body, as input of its command.

    :raises InvalidRequest: the body is only JSON.
    """
    body, context = flask.request.environ["wsgi.input"], request_context()
    if not isinstance(body, ArrivingBody):
        raise errors.InvalidRequest(f"{INPUT}: Needs a body of type {BYTES}: this request's line, then the input.")
    arriving = ArrivingInput(body)

    def close() -> None:
        arriving.close()
        context.details["stdinBytes"] = arriving.size

    context.resources.callback(close)
    return arriving


def _begin(request: ExecRequest, command: Command) -> AbstractContextManager[CommandStart]:
    timeout = services().settings.command_timeout if request.timeout is None else request.timeout
    return begin_command(
        services().shells,
        ShellRef(request.connection, request.session),
        caller().access,
        command,
        timeout,
        cancellation(),
        start=request.start,
        fresh=request.fresh,
        ground=ground_of(request.connection),
    )


def visible_shells(connection: str | None = None) -> list[ShellActivity]:
    """Return the states of all shells that the caller may see, or of those of one connection."""
    shells = services().shells.status(connection)
    visible = set(services().authorisation.visible(caller(), {shell.connection for shell in shells}))
    return [shell for shell in shells if shell.connection in visible]


def _visible_command(command: Command | None) -> RunningCommandInfo | None:
    """Return what the caller may see of a running command."""
    if command is None or command.requester is None:
        return None
    requester, token = command.requester, caller().token
    if token is not None and token not in requester.tokens:
        return None
    words = command.text or shlex.join(word.decode(errors="replace") for word in command.argv).encode()
    text = words.decode(errors="replace")[:SHOWN_CHARACTERS]
    return RunningCommandInfo(command=text, client=requester.client, token=requester.token_name)
