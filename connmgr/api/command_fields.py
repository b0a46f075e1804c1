"""What all requests that run a command have in common."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from marshmallow import ValidationError, validate, validates_schema

from connmgr import errors
from connmgr.api import output
from connmgr.api.schemas import Members
from connmgr.engine.frame import Command
from connmgr.fields import Number, Schema, Text

ENCODINGS = ("utf-8", "base64")
MAX_TIMEOUT = 86400
MAX_COMMAND = 1 << 20


class CommandFields(Schema):
    """The command, and the options that hold for it alone."""

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


def check_base64(data: Mapping[str, Any], name: str) -> None:
    """Raise ValidationError if the member ``name`` is to be base64, and is not."""
    if data["encoding"] == "base64" and name in data:
        try:
            base64.b64decode(data[name], validate=True)
        except (binascii.Error, ValueError):
            raise ValidationError("Not valid base64.", name) from None


def command_of(request: dict[str, Any]) -> Command:
    """Return the command of a loaded request."""
    stdin, cwd = request.get("stdin", ""), request.get("cwd")
    return Command(
        request["command"].encode(),
        base64.b64decode(stdin) if request["encoding"] == "base64" else stdin.encode(),
        directory=None if cwd is None else cwd.encode(),
        environment=request.get("env"),
    )


def printed_until(timeout: errors.CommandTimeout, encoding: str) -> dict[str, Any]:
    """Return what a command printed until it was killed, as members of its error."""
    printed: dict[str, Any] = {
        "stdout": output.shown(timeout.stdout, encoding),
        "stderr": output.shown(timeout.stderr, encoding),
    }
    return printed | {"truncated": True} if timeout.truncated else printed
