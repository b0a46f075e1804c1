"""``/shell``: a shell on a connection, and the commands that run in it."""

from __future__ import annotations

import contextlib
import shlex
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

import flask
from marshmallow import ValidationError, fields, validate, validates_schema

from connmgr import errors
from connmgr.api import detach, output, streaming
from connmgr.api.account import account, caller, cancellation, detail, note_forwarding
from connmgr.api.body import BODY, BYTES, INPUT
from connmgr.api.command import with_words
from connmgr.api.command_fields import CommandFields, command_of, printed_until
from connmgr.api.connection_info import locked_ones
from connmgr.api.group import Group
from connmgr.api.schemas import AwaitsApproval, Id
from connmgr.api.services import services
from connmgr.api.shell_schemas import (
    SHOWN_CHARACTERS,
    ListRequest,
    OwnShell,
    Restarted,
    ShellInfo,
    ShellListResponse,
    ShellNamed,
    StartRequest,
    StopRequest,
)
from connmgr.engine.frame import Command
from connmgr.fields import Boolean, Number, Schema, Text
from connmgr.fs.bodies import ArrivingBody, ArrivingInput
from connmgr.rights.action import Action, always
from connmgr.rights.command_rules import ground_of
from connmgr.rights.limits import stops_others
from connmgr.shell.commands import Begun, Place, begun
from connmgr.shell.status import ShellStatus

MAX_DETACH_SECONDS = 3600

OPENING = (
    errors.UnknownConnection,
    errors.UnknownType,
    errors.SecretLocked,
    errors.HostUnresolved,
    errors.HostRefused,
    errors.HostUnreachable,
    errors.ConnectTimeout,
    errors.HostKeyUnknown,
    errors.HostKeyChanged,
    errors.AuthFailed,
    errors.ElevationFailed,
    errors.TransportUnsupported,
    errors.ChannelRefused,
    errors.UnsupportedShell,
    errors.ShellStartFailed,
    errors.RuntimeUnreachable,
    errors.NoShellInside,
    errors.IntegrityError,
)
"""Errors of opening a connection."""

EXAMPLE = "f0ec68aa-63f5-405c-b178-9a4454556d6b"

group = Group(
    "shell",
    "Shells that stay open between requests. Each connection has its own shell, which requests without "
    "`session` use, and may have further shells with names. Each shell has its own directory, variables and "
    "queue of commands; all share the link. A connection has at most 16 shells.",
)


class ExecRequest(CommandFields, ShellNamed, OwnShell, AwaitsApproval):
    connection = Id(required=True, metadata={"description": "The connection whose shell runs the command."})
    start = Boolean(
        load_default=False,
        metadata={
            "description": "True starts the shell if it does not run, or was lost before any part of the command was "
            "sent. Otherwise the answer is `no_shell` or `shell_lost`."
        },
    )
    detachAfter = Number(
        validate=validate.Range(min=0, max=MAX_DETACH_SECONDS),
        metadata={"description": "Seconds after which the answer has `job`, and the command runs on as that job."},
    )
    input = Text(
        validate=validate.OneOf([BODY]),
        metadata={
            "description": "`body`: the command reads what follows this line of the request's body while it arrives. "
            "Given by itself for a body of type `application/octet-stream`. Not together with `stdin` or `detachAfter`."
        },
    )

    @validates_schema
    def check_input(self, data: dict[str, Any], **_: Any) -> None:
        for name in ("stdin", "detachAfter"):
            if INPUT in data and name in data:
                raise ValidationError(f"Not together with {name}.", INPUT)


class ExecResponse(Schema):
    exitCode = fields.Integer(
        metadata={"description": "The command's exit code; 128 + N if signal N ended it. Absent if it runs on."}
    )
    job = fields.String(
        metadata={
            "format": "uuid",
            "description": "Present if the command ran longer than `detachAfter`: the job as which it runs on.",
        }
    )
    stdout = fields.String(required=True, metadata={"description": "The command's standard output."})
    stderr = fields.String(
        required=True, metadata={"description": "The command's standard error; empty if `ttyState` is `merged`."}
    )
    truncated = fields.Boolean(
        metadata={"description": "Present, and true, if output beyond `max-output` was dropped."}
    )
    restarted = Restarted()


@group.endpoint(
    "/start",
    StartRequest,
    ShellInfo,
    action="shell.start",
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
def start(request: dict[str, Any]) -> object:
    """Start a shell of a connection and describe it.

    A shell that already runs is only described.
    """
    started = services().shells.start(request["connection"], caller().access, request.get("session"), cancellation())
    told = {"restarted": True} if started.restarted and request["tellRestarted"] else {}
    return {**asdict(started.info), **told}


@group.endpoint(
    "/exec",
    ExecRequest,
    ExecResponse,
    lines=streaming.ExecLine(),
    has_content=True,
    action=Action("shell.exec", runs=True, in_shell=always),
    about=("connection", "session", "command", "argv"),
    selects=with_words,
    raises=[
        *OPENING,
        errors.UnknownCommand,
        errors.NoShell,
        errors.NoSuchDirectory,
        errors.ShellLost,
        errors.ShellStopped,
        errors.CommandTimeout,
        errors.CommandCancelled,
        errors.ShellBusy,
        errors.SessionLimit,
        *detach.RAISES,
    ],
    waits=True,
    example={"connection": EXAMPLE, "command": "uname -s; ls /nowhere", "timeout": 10},
    answer={
        "exitCode": 2,
        "stdout": "Linux",
        "stderr": "ls: cannot access '/nowhere': No such file or directory",
    },
)
def execute(request: dict[str, Any]) -> flask.Response:
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
    encoding = request["encoding"]
    if "detachAfter" in request:
        return detach.respond(request)
    arriving = _arriving() if INPUT in request else None
    command = command_of(request, arriving)
    if command.stdin:
        detail(stdinBytes=len(command.stdin))
    if streaming.is_wanted():
        running, restarted = account().held.enter_context(_begun(request, command))
        note_forwarding(running.transport)
        return streaming.respond(running, encoding, restarted=restarted, begins=arriving is not None)
    with _begun(request, command) as (running, restarted):
        note_forwarding(running.transport)
        try:
            result = running.result()
        except errors.CommandTimeout as error:
            error.details = printed_until(error, encoding)
            raise
    detail(exitCode=result.exit_code, stdoutBytes=len(result.stdout), stderrBytes=len(result.stderr))
    return output.respond(result, encoding, restarted=restarted)


@group.endpoint(
    "/list",
    ListRequest,
    ShellListResponse,
    action="shell.list",
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
def list_(request: dict[str, Any]) -> dict[str, Any]:
    """Describe the running shells of all connections or of one. No machine is asked."""
    shells = seen_shells(request.get("connection"))
    hidden = locked_ones(one.connection for one in shells if one.running is not None)
    return {
        "shells": [
            {**vars(one), "running": None if one.connection in hidden else _shown_command(one.running)}
            for one in shells
        ]
    }


@group.endpoint(
    "/stop",
    StopRequest,
    action=Action("shell.stop", limits=[stops_others]),
    about=("connection", "session"),
    raises=[errors.UnknownConnection, errors.NoShell, errors.SecretLocked, errors.ShellBusy],
    waits=True,
    stops=True,
    example={"connection": EXAMPLE},
)
def stop(request: dict[str, Any]) -> None:
    """Stop one shell of a connection, or all its shells and terminals. The answer comes when they have exited.

    A running command is killed with its child processes. Background processes of earlier commands run on, with or
    without `nohup`, as after a logout from ssh. With `all` the link is not used again: the next shell logs in.
    """
    shells = services().shells
    if request["all"]:
        detail(all=True)
        closed = services().terminals.close_all(request["connection"], caller().access)
        with contextlib.suppress(*([errors.NoShell] if closed else [])):
            shells.stop_all(request["connection"], caller().access)
    else:
        shells.stop(request["connection"], caller().access, request.get("session"))


def _arriving() -> ArrivingInput:
    """Return the rest of this request's body, as input of its command.

    :raises InvalidRequest: the body is only JSON.
    """
    body, known = flask.request.environ["wsgi.input"], account()
    if not isinstance(body, ArrivingBody):
        raise errors.InvalidRequest(f"{INPUT}: Needs a body of type {BYTES}: this request's line, then the input.")
    arriving = ArrivingInput(body)

    def close() -> None:
        arriving.close()
        known.details["stdinBytes"] = arriving.size

    known.held.callback(close)
    return arriving


def _begun(request: dict[str, Any], command: Command) -> AbstractContextManager[Begun]:
    timeout = request.get("timeout", services().settings.command_timeout)
    session, ground = request.get("session"), ground_of(request)
    place = Place(request["connection"], caller().access, session, request["start"], request["fresh"], ground)
    return begun(services().shells, place, command, timeout, cancellation())


def seen_shells(connection: str | None = None) -> list[ShellStatus]:
    """Return the states of all shells that the caller may see, or of those of one connection."""
    shells = services().shells.status(connection)
    asking = caller()
    seen = set(services().authorisation.visible(asking, {one.connection for one in shells}))
    return [one for one in shells if one.connection in seen]


def _shown_command(command: Command | None) -> dict[str, Any] | None:
    """Return what the caller may see of a running command."""
    if command is None or command.requester is None:
        return None
    requester, token = command.requester, caller().token
    if token is not None and token not in requester.tokens:
        return None
    words = command.text or shlex.join(word.decode(errors="replace") for word in command.argv).encode()
    shown = {"command": words.decode(errors="replace")[:SHOWN_CHARACTERS], "client": requester.client}
    return shown | ({} if requester.token_name is None else {"token": requester.token_name})
