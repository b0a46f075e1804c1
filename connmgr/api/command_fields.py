"""Fields shared by all requests that run something."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from marshmallow import ValidationError, fields, validate, validates_schema

from connmgr import errors
from connmgr.api import output
from connmgr.api.account import caller
from connmgr.api.schemas import Members
from connmgr.engine.envelope import Command, Requester
from connmgr.engine.stdin_pipe import Input
from connmgr.fields import List, Nested, Number, Schema, Text

ENCODINGS = ("utf-8", "base64")
MAX_TIMEOUT = 86400
MAX_COMMAND = 1 << 20
"""Longest command, or argv in all, in bytes."""

MAX_WORDS = 4096


class Saved(Schema):
    """A saved command, and its arguments."""

    name = Text(required=True, metadata={"description": "The command's name."})
    arguments = Members(
        keys=Text(),
        values=fields.Raw(),
        load_default=dict,
        metadata={"description": "A text, or an integer, for each of its parameters."},
    )


class VariableName(Text):
    """The name of an environment variable."""

    def __init__(self) -> None:
        named = validate.Regexp(r"[A-Za-z_][A-Za-z0-9_]*\Z", error="Not the name of a variable.")
        super().__init__(validate=named)


class WhatRuns(Schema):
    """What a request runs: one of its ``alternatives``, or none if it ``may_lack`` all."""

    alternatives: ClassVar[Sequence[str]] = ("command", "argv", "saved")
    may_lack: ClassVar[bool] = False
    max_bytes: ClassVar[int] = MAX_COMMAND

    command = Text(metadata={"description": "The command, in the language of the session's shell. This or `argv`."})
    argv = List(
        Text(),
        validate=validate.Length(min=1, max=MAX_WORDS),
        metadata={
            "description": "A program and its arguments, run without a shell: every byte of each word arrives. The "
            "program is found in `PATH`, unless it has a slash."
        },
    )
    saved = Nested(Saved, metadata={"description": "A command of `/command/query`, in place of `command` or `argv`."})

    @validates_schema
    def check_what_runs(self, data: dict[str, Any], **_: Any) -> None:
        given = [name for name in self.alternatives if name in data]
        if len(given) > 1:
            raise ValidationError(f"Not together with {given[0]}.", given[1])
        if not given and not self.may_lack:
            raise ValidationError(f"Give one of {', '.join(self.alternatives)}.", self.alternatives[0])
        size = len(data.get("command", "").encode()) + sum(len(word) + 1 for word in words_of(data))
        if size > self.max_bytes:
            raise ValidationError(f"Longer than {self.max_bytes} bytes.", given[0])


class SendsEnvironment(Schema):
    """What runs in the environment of a client."""

    sendEnv = Members(
        keys=VariableName(),
        values=Text(),
        metadata={
            "description": "Variables of the client's environment, such as `LANG` and `LC_*`. Those that the daemon's "
            "`send-env` or the connection admits are set; the others are not. `/connection/environment` tells which."
        },
    )


class CommandFields(WhatRuns, SendsEnvironment):
    """The command, and the options for this command only."""

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
        metadata={"description": "The directory for this command only, absolute or relative to the session's."},
    )
    env = Members(
        keys=VariableName(),
        values=Text(),
        metadata={"description": "Environment variables for this command only."},
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
    """Raise ValidationError if the member ``name`` must be base64 and is not."""
    if data["encoding"] == "base64" and name in data:
        try:
            base64.b64decode(data[name], validate=True)
        except (binascii.Error, ValueError):
            raise ValidationError("Not valid base64.", name) from None


def command_of(request: dict[str, Any], arriving: Input | None = None) -> Command:
    """Return the command of a loaded request, which is that being answered, and perhaps of input still ``arriving``."""
    stdin, cwd = request.get("stdin", ""), request.get("cwd")
    return Command(
        request.get("command", "").encode(),
        base64.b64decode(stdin) if request["encoding"] == "base64" else stdin.encode(),
        arriving,
        directory=None if cwd is None else cwd.encode(),
        environment=request.get("env"),
        sent=sent_by(request),
        argv=words_of(request),
        requester=_requester(),
    )


def sent_by(request: Mapping[str, Any]) -> Mapping[str, str] | None:
    """Return what a request sends of its client's environment; None if it says nothing about that.

    :raises connmgr.errors.PolicyDenied: a locale would be read from a file that a token bound by rules chose.
    """
    sent: Mapping[str, str] | None = request.get("sendEnv")
    grant = caller().grant
    if sent and grant is not None and not grant.is_unbound:
        for name, value in sent.items():
            if "/" in value or "%" in value:
                raise errors.PolicyDenied(f"sendEnv.{name}: A caller bound by rules may not send a value with / or %.")
    return sent


def _requester() -> Requester:
    asking = caller()
    grant = asking.grant
    if grant is None:
        return Requester(asking.name)
    return Requester(asking.name, tuple(one.id for one in grant.lineage), grant.name)


def words_of(request: Mapping[str, Any]) -> tuple[bytes, ...]:
    """Return the words of a request's ``argv``; empty without one."""
    return tuple(word.encode() for word in request.get("argv", ()))


def program_of(request: Mapping[str, Any]) -> list[str]:
    """Return the words of an ``argv`` for an endpoint without ``env``; a rule may have set the PATH of its program."""
    path = (request.get("env") or {}).get("PATH")
    return [*([] if path is None else ["/usr/bin/env", f"PATH={path}"]), *request["argv"]]


def printed_until(timeout: errors.CommandTimeout, encoding: str) -> dict[str, Any]:
    """Return the output of a command until it was killed, as members of its error."""
    printed: dict[str, Any] = {
        "stdout": output.shown(timeout.stdout, encoding),
        "stderr": output.shown(timeout.stderr, encoding),
    }
    return printed | {"truncated": True} if timeout.truncated else printed
