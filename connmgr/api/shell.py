"""``/shell``: a shell on a connection, and the commands that run in it."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import flask
from marshmallow import ValidationError, fields, validate, validates_schema

from connmgr import errors
from connmgr.api import output, streaming
from connmgr.api.account import account, caller, detail
from connmgr.api.group import Group
from connmgr.api.schemas import Id, Members
from connmgr.api.second_vocabulary import Located
from connmgr.api.services import services
from connmgr.engine.frame import Command
from connmgr.engine.running import Running
from connmgr.fields import Number, Schema, Text

ENCODINGS = ("utf-8", "base64")
MAX_TIMEOUT = 86400
MAX_COMMAND = 1 << 20

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
    errors.IntegrityError,
)
"""What can be said when a connection is opened."""

EXAMPLE = "f0ec68aa-63f5-405c-b178-9a4454556d6b"

group = Group("shell", "One shell a connection, kept between requests.")


def check_base64(data: Mapping[str, Any], name: str) -> None:
    """Raise ValidationError if the member ``name`` is to be base64, and is not."""
    if data["encoding"] == "base64" and name in data:
        try:
            base64.b64decode(data[name], validate=True)
        except (binascii.Error, ValueError):
            raise ValidationError("Not valid base64.", name) from None


class ShellRequest(Located):
    connection = Id(required=True, metadata={"description": "The connection that the shell is on."})


class ShellInfo(Schema):
    shellDialect = fields.Integer(
        required=True,
        attribute="shell_dialect",
        metadata={
            "description": "The language of commands: 0 sh, 1 bash, 2 dash, 3 ash, 4 zsh, 5 ksh, 6 fish, 7 csh, "
            "8 pwsh, 9 cmd, 10 unknown."
        },
    )
    osType = fields.String(
        required=True,
        attribute="os_type",
        metadata={"description": "`linux`, `macos`, `bsd`, `solaris`, `aix`, `windows` or `unix`."},
    )
    osName = fields.String(
        required=True, attribute="os_name", metadata={"description": "The system's name for itself."}
    )
    ttyState = fields.String(
        required=True,
        attribute="tty_state",
        metadata={"description": "`none`; `merged`: stderr arrives within stdout; `pty`."},
    )
    temp = fields.String(
        required=True,
        metadata={"description": "The far side's directory for temporary files: `$TMPDIR` or `/tmp`."},
    )


class ExecRequest(Located):
    connection = Id(required=True, metadata={"description": "The connection whose shell runs the command."})
    command = Text(
        required=True,
        validate=validate.Length(max=MAX_COMMAND),
        metadata={"description": "The command, in the language of the session's shell."},
    )
    timeout = Number(
        validate=validate.Range(min=0, max=MAX_TIMEOUT, min_inclusive=False),
        metadata={"description": "Seconds until the command is killed. Without it: the daemon's `command-timeout`."},
    )
    stdin = Text(
        allow_nul=True,
        metadata={"description": "The command's input, in base64 if `encoding` says so. Without it: none."},
    )
    cwd = Text(
        validate=validate.Length(min=1),
        metadata={"description": "The directory for this command alone, absolute or relative to the session's."},
    )
    env = Members(
        keys=Text(validate=validate.Regexp(r"[A-Za-z_][A-Za-z0-9_]*\Z", error="Not the name of a variable.")),
        values=Text(),
        metadata={"description": "Environment variables, for this command alone."},
    )
    encoding = Text(
        load_default=ENCODINGS[0],
        validate=validate.OneOf(ENCODINGS),
        metadata={
            "description": "`utf-8`: output as text, without one final newline, undecodable bytes as U+FFFD. `base64`: "
            "output and `stdin` in base64, byte by byte."
        },
    )

    @validates_schema
    def check_stdin(self, data: dict[str, Any], **_: Any) -> None:
        check_base64(data, "stdin")


class ExecResponse(Schema):
    exitCode = fields.Integer(
        required=True, metadata={"description": "The command's exit code; 128 + N if signal N ended it."}
    )
    stdout = fields.String(required=True, metadata={"description": "The command's standard output."})
    stderr = fields.String(
        required=True, metadata={"description": "The command's standard error; empty if `ttyState` is `merged`."}
    )
    truncated = fields.Boolean(
        metadata={"description": "Present, and true, if output beyond `max-output` was dropped."}
    )


@group.endpoint(
    "/start",
    ShellRequest,
    ShellInfo,
    action="shell.start",
    about=("connection",),
    raises=[*OPENING],
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
    """Start the shell of a connection and describe it.

    A running shell stays as it is, and is described again.
    """
    return services().shells.start(request["connection"], caller().access)


@group.endpoint(
    "/exec",
    ExecRequest,
    ExecResponse,
    lines=streaming.ExecLine(),
    action="shell.exec",
    about=("connection", "command"),
    raises=[
        errors.UnknownConnection,
        errors.NoShell,
        errors.SecretLocked,
        errors.NoSuchDirectory,
        errors.ShellLost,
        errors.ShellStopped,
        errors.CommandTimeout,
        errors.CommandCancelled,
        errors.ShellBusy,
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
    """Run a command in the shell of a connection and return what it printed.

    A command that fails is no error: the answer is 200 with its exit code. Commands on one connection run one after the
    other. The working directory and exported variables last from one to the next. A client that closes its connection
    kills the command.

    With `Accept: application/x-ndjson` the answer is lines of JSON that come while the command prints, and a last line
    with the exit code or the error. An error that keeps the command from beginning is answered without lines.
    """
    encoding = request["encoding"]
    if streaming.is_wanted():
        return streaming.respond(account().held.enter_context(_begun(request)), encoding)
    with _begun(request) as running:
        try:
            result = running.result()
        except errors.CommandTimeout as error:
            error.details = _printed_until(error, encoding)
            raise
    detail(exitCode=result.exit_code, stdoutBytes=len(result.stdout), stderrBytes=len(result.stderr))
    return output.respond(result, encoding)


@group.endpoint(
    "/stop",
    ShellRequest,
    action="shell.stop",
    about=("connection",),
    raises=[errors.UnknownConnection, errors.NoShell, errors.SecretLocked, errors.ShellBusy],
    waits=True,
    stops=True,
    example={"connection": EXAMPLE},
)
def stop(request: dict[str, Any]) -> None:
    """Stop the shell of a connection. The answer comes when the shell has exited.

    A running command is killed with all that it started. Background jobs of earlier commands run on, with or without
    `nohup`, as after a logout from ssh.
    """
    services().shells.stop(request["connection"], caller().access)


@contextmanager
def _begun(request: dict[str, Any]) -> Iterator[Running]:
    timeout = request.get("timeout", services().settings.command_timeout)
    with (
        services().shells.using(request["connection"], caller().access) as session,
        session.begin(_command(request), timeout, _client_is_gone()) as running,
    ):
        yield running


def _command(request: dict[str, Any]) -> Command:
    stdin, cwd = request.get("stdin", ""), request.get("cwd")
    return Command(
        request["command"].encode(),
        base64.b64decode(stdin) if request["encoding"] == "base64" else stdin.encode(),
        directory=None if cwd is None else cwd.encode(),
        environment=request.get("env"),
    )


def _printed_until(timeout: errors.CommandTimeout, encoding: str) -> dict[str, Any]:
    printed: dict[str, Any] = {
        "stdout": output.shown(timeout.stdout, encoding),
        "stderr": output.shown(timeout.stderr, encoding),
    }
    return printed | {"truncated": True} if timeout.truncated else printed


def _client_is_gone() -> Callable[[], bool]:
    gone: Callable[[], bool] = flask.request.environ.get("waitress.client_disconnected", lambda: False)
    return gone
