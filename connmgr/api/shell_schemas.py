"""Fields of requests and responses that name and describe shells."""

from __future__ import annotations

from typing import Any

from marshmallow import ValidationError, fields, post_dump, validate, validates_schema

from connmgr.api.schemas import ELEVATE, Elevate, FilePath, Id, UtcTime
from connmgr.api.second_vocabulary import Located
from connmgr.fields import Boolean, Schema, Text

SHOWN_CHARACTERS = 1000
"""Most characters of a running command that are shown."""


class ShellName(Text):
    """The name of a further shell of a connection."""

    def __init__(self, **kwargs: Any) -> None:
        allowed = validate.Regexp(
            r"^[A-Za-z0-9_.-]{1,64}\Z", error="Not 1 to 64 of the letters A to Z and a to z, digits, `_`, `.` and `-`."
        )
        super().__init__(validate=allowed, **kwargs)
        self.metadata = {**self.metadata, "pattern": "^[A-Za-z0-9_.-]{1,64}$"}


class ShellNamed(Located):
    """A request to one shell of a connection."""

    session = ShellName(
        metadata={
            "description": "The name of a further shell of the connection. Without it: the connection's own shell."
        }
    )
    elevate = Elevate(metadata={"description": ELEVATE})


class Restarted(fields.Boolean):
    """An answer that says whether a lost shell was replaced."""

    def __init__(self) -> None:
        text = (
            "Present, and true, if the shell had been lost and a new one was started, with a new directory and new "
            "variables."
        )
        super().__init__(metadata={"description": text})


class ShellRequest(ShellNamed):
    connection = Id(required=True, metadata={"description": "The connection that the shell is on."})


class OwnShell(Schema):
    """A request whose command may run in a new shell."""

    fresh = Boolean(
        load_default=False,
        metadata={
            "description": "True runs the command in a new shell, which is stopped afterwards. It sees neither "
            "directory nor variables of earlier commands, and leaves none. Not together with `session`."
        },
    )

    @validates_schema
    def check_fresh(self, data: dict[str, Any], **_: Any) -> None:
        for name in ("session", "detachAfter"):
            if data["fresh"] and name in data:
                raise ValidationError(f"Not together with {name}.", "fresh")


class StartRequest(ShellRequest):
    tellRestarted = Boolean(
        load_default=False,
        metadata={"description": "True adds `restarted` to the answer if the shell had been lost."},
    )


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
    restarted = Restarted()


class StopRequest(ShellRequest):
    all = Boolean(
        load_default=False,
        metadata={"description": "True stops all shells of the connection; not together with `session`."},
    )

    @validates_schema
    def check_one_or_all(self, data: dict[str, Any], **_: Any) -> None:
        if data["all"] and "session" in data:
            raise ValidationError("Give either all or session, not both.", "all")


class ListRequest(Located):
    connection = Id(metadata={"description": "Only the shells of this connection, and of elevated ones over it."})


class ShellStatus(Schema):
    connection = Id(required=True, metadata={"description": "The connection that the shell is on."})
    session = fields.String(metadata={"description": "The shell's name. Absent: the connection's own shell."})
    state = fields.String(required=True, metadata={"description": "`idle`, `busy` or `lost`."})
    uptime = fields.Float(required=True, metadata={"description": "Seconds since it was started."})
    idle = fields.Float(
        required=True, metadata={"description": "Seconds since it was last used; 0 while a request uses it."}
    )
    waiting = fields.Integer(required=True, metadata={"description": "Commands that queue for it."})

    @post_dump
    def leave_out_what_is_not(self, data: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {name: value for name, value in data.items() if value is not None}


class RunningCommand(Schema):
    command = fields.String(
        required=True,
        metadata={"description": f"Its text, or the words of its argv, up to {SHOWN_CHARACTERS} characters."},
    )
    client = fields.String(required=True, metadata={"description": "The client that asked for it, by its own name."})
    token = fields.String(metadata={"description": "The name of that client's token. Absent: it has none."})


class ListedShell(ShellStatus):
    pid = fields.Integer(
        required=True, metadata={"description": "The shell's process id on the machine where it runs."}
    )
    directory = FilePath(required=True, metadata={"description": "Its directory after the last command."})
    since = UtcTime(required=True, metadata={"description": "When it was started."})
    runningSince = UtcTime(
        attribute="running_since",
        metadata={"description": "When the running command began. Absent: none runs."},
    )
    running = fields.Nested(
        RunningCommand,
        metadata={
            "description": "The running command. A token sees those of its own clients, and of tokens that it created."
        },
    )


class ShellListResponse(Schema):
    shells = fields.List(fields.Nested(ListedShell), required=True, metadata={"description": "The shells that run."})
