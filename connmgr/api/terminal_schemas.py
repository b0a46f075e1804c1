"""Requests and answers of ``/terminal``."""

from __future__ import annotations

from typing import Any

from marshmallow import ValidationError, fields, validate, validates_schema

from connmgr.api.command_fields import ENCODINGS, SendsEnvironment, WhatRuns, check_base64
from connmgr.api.job_schemas import MAX_WAIT
from connmgr.api.pipe import MAX_COMMAND, PtyFields
from connmgr.api.schemas import Filter, Id, UtcTime
from connmgr.api.shell_schemas import ShellNamed
from connmgr.fields import Boolean, Integer, Length, Number, Range, Schema, Text
from connmgr.frames import MAX_SIDE
from connmgr.terminals.emulator.screen import MAX_CELLS
from connmgr.terminals.output import KEPT_BYTES
from connmgr.terminals.terminal import STATES

MAX_INPUT = 256 << 10
MAX_CONTAINS = 1000

_SIZE = {"columns": "Its width in characters.", "rows": "Its height in lines."}
_WAIT: dict[str, Any] = {"load_default": 0, "validate": Range(min=0, max=MAX_WAIT)}
_ENCODING: dict[str, Any] = {"load_default": ENCODINGS[0], "validate": validate.OneOf(ENCODINGS)}


def _check_size(data: dict[str, Any]) -> None:
    if data["columns"] * data["rows"] > MAX_CELLS:
        raise ValidationError(f"A terminal has at most {MAX_CELLS} characters.", "columns")


class TerminalOpenRequest(WhatRuns, SendsEnvironment, ShellNamed, PtyFields):
    may_lack = True
    max_bytes = MAX_COMMAND

    connection = Id(required=True, metadata={"description": "Where the terminal is opened."})
    command = Text(
        validate=Length(min=1),
        metadata={
            "description": "The command to run, in the language of the shell. Without it and `argv`: an interactive "
            "shell."
        },
    )
    record = Boolean(
        load_default=False,
        metadata={"description": "True records the terminal for asciinema, in `recordings/` of the data directory."},
    )

    @validates_schema
    def check_size(self, data: dict[str, Any], **_: Any) -> None:
        _check_size(data)


class TerminalRequest(Schema):
    terminal = Id(required=True, metadata={"description": "The terminal."})


class TerminalInfo(TerminalRequest):
    connection = Id(required=True, metadata={"description": "The connection that it is on."})
    session = fields.String(
        required=True, allow_none=True, metadata={"description": "The shell in whose state it began, or null."}
    )
    command = fields.Raw(
        required=True,
        allow_none=True,
        metadata={
            "description": "What runs on it: the text of the `command`, or the `argv` as a list; null: an interactive "
            "shell.",
            "type": "string",
        },
    )
    locked = Boolean(
        metadata={"description": "True if the caller cannot open the connection's secrets; `command` is then null."}
    )
    term = fields.String(required=True, metadata={"description": "The value of TERM."})
    columns = fields.Integer(required=True, metadata={"description": _SIZE["columns"]})
    rows = fields.Integer(required=True, metadata={"description": _SIZE["rows"]})
    state = fields.String(
        required=True,
        metadata={
            "description": "`running`; at its end `exited`, `closed` (by a client, or because its connection was "
            "changed), or `lost`: its link broke.",
            "enum": list(STATES),
        },
    )
    exitCode = fields.Integer(
        required=True,
        allow_none=True,
        metadata={"description": "The exit code of its program, 128 + N if signal N ended it; null if none is known."},
    )
    clients = fields.Integer(required=True, metadata={"description": "How many clients are attached."})
    idle = fields.Float(
        required=True,
        metadata={
            "description": "Seconds since a client was last attached or sent a request; 0 while one is attached."
        },
    )
    opened = UtcTime(required=True, metadata={"description": "When it was opened."})
    ended = UtcTime(required=True, allow_none=True, metadata={"description": "When it ended, or null."})
    recording = fields.String(
        required=True,
        allow_none=True,
        metadata={
            "description": "null: not recorded; `active`; `complete`, after the terminal's end; `cut`: the recording "
            "ended at `max-recording`; `failed`: it could not be written.",
            "enum": ["active", "complete", "cut", "failed", None],
        },
    )


class TerminalQueryRequest(Schema):
    connectionFilter = Filter(
        load_default="*", metadata={"description": "Names of connections, as in `/connection/query`."}
    )
    categoryFilter = Filter(load_default="*", metadata={"description": "Names of their categories."})
    typeFilter = Filter(load_default="*", metadata={"description": "Their types."})


class TerminalQueryResponse(Schema):
    terminals = fields.List(
        fields.Nested(TerminalInfo), required=True, metadata={"description": "The terminals, the oldest first."}
    )


class TerminalAttachRequest(TerminalRequest):
    watch = Boolean(
        load_default=False,
        metadata={"description": "True only watches: this client can neither type nor set the size."},
    )


class TerminalInputRequest(TerminalRequest):
    data = Text(
        required=True,
        allow_nul=True,
        validate=Length(max=MAX_INPUT * 4 // 3 + 4),
        metadata={"description": "What is typed, in base64 if `encoding` says so. Enter is `\\r`, Ctrl-C `\\u0003`."},
    )
    encoding = Text(**_ENCODING, metadata={"description": "`utf-8`, or `base64` for any bytes."})

    @validates_schema
    def check_data(self, data: dict[str, Any], **_: Any) -> None:
        check_base64(data, "data")


class TerminalOutputRequest(TerminalRequest):
    offset = Integer(
        load_default=0,
        validate=Range(min=0, max=1 << 52),
        metadata={"description": "The first byte to return: `next` of the previous answer."},
    )
    wait = Number(**_WAIT, metadata={"description": "Seconds to wait for output, if there is none yet."})
    maxBytes = Integer(
        load_default=256 << 10,
        validate=Range(min=16, max=KEPT_BYTES),
        metadata={"description": "Most bytes to return."},
    )
    encoding = Text(
        **_ENCODING,
        metadata={
            "description": "`utf-8`: text, cut between characters, undecodable bytes as U+FFFD. `base64`: byte by byte."
        },
    )


class TerminalOutputResponse(Schema):
    data = fields.String(required=True, metadata={"description": "The output from `offset` on, unchanged."})
    offset = fields.Integer(
        required=True,
        metadata={"description": "Where `data` begins: later than the requested `offset` if that part was dropped."},
    )
    next = fields.Integer(required=True, metadata={"description": "The offset to ask for next, in bytes."})
    eof = fields.Boolean(required=True, metadata={"description": "Whether nothing follows."})
    state = fields.String(required=True, metadata={"description": "As in `/terminal/query`.", "enum": list(STATES)})
    exitCode = fields.Integer(required=True, allow_none=True, metadata={"description": "As in `/terminal/query`."})


class TerminalScreenRequest(TerminalRequest):
    wait = Number(
        **_WAIT,
        metadata={"description": "Longest wait in seconds for `since` and `contains`."},
    )
    since = Integer(
        validate=Range(min=0, max=1 << 52),
        metadata={"description": "The `offset` of an earlier answer: wait until there is output after it."},
    )
    contains = Text(
        validate=Length(min=1, max=MAX_CONTAINS),
        metadata={"description": "Wait until a line of the screen contains this text."},
    )


class Cursor(Schema):
    column = fields.Integer(required=True, metadata={"description": "Counted from 0."})
    row = fields.Integer(required=True, metadata={"description": "Counted from 0."})
    visible = fields.Boolean(required=True, metadata={"description": "Whether it is shown."})


class TerminalScreenResponse(Schema):
    columns = fields.Integer(required=True, metadata={"description": _SIZE["columns"]})
    rows = fields.Integer(required=True, metadata={"description": _SIZE["rows"]})
    lines = fields.List(
        fields.String(),
        required=True,
        metadata={"description": "The text of each line, without colours, and without blanks at its end."},
    )
    cursor = fields.Nested(Cursor, required=True)
    title = fields.String(required=True, metadata={"description": "The title that the program has set."})
    alternate = fields.Boolean(
        required=True,
        metadata={"description": "Whether a program uses the alternate screen, as full-screen programs do."},
    )
    offset = fields.Integer(required=True, metadata={"description": "How many bytes of output it shows."})
    state = fields.String(required=True, metadata={"description": "As in `/terminal/query`.", "enum": list(STATES)})
    exitCode = fields.Integer(required=True, allow_none=True, metadata={"description": "As in `/terminal/query`."})


class TerminalResizeRequest(TerminalRequest):
    columns = Integer(required=True, validate=Range(min=1, max=MAX_SIDE), metadata={"description": _SIZE["columns"]})
    rows = Integer(required=True, validate=Range(min=1, max=MAX_SIDE), metadata={"description": _SIZE["rows"]})

    @validates_schema
    def check_size(self, data: dict[str, Any], **_: Any) -> None:
        _check_size(data)


class TerminalTicketResponse(Schema):
    ticket = fields.String(
        required=True,
        metadata={"description": "Offered as the subprotocol `connmgr.ticket.TICKET` beside `connmgr.v1`."},
    )
