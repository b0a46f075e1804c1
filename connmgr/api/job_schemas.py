"""Requests and answers of ``/job``."""

from __future__ import annotations

import json
from typing import Any

from marshmallow import fields, validate, validates_schema

from connmgr.api.command_fields import ENCODINGS, CommandFields, check_base64
from connmgr.api.launch import KEEP_SECONDS, OPEN
from connmgr.api.schemas import AwaitsApproval, Filter, Id, UtcTime
from connmgr.api.shell_schemas import ShellNamed
from connmgr.fields import Boolean, Integer, List, Number, Schema, Text
from connmgr.vault.jobs import ENDED, UNDER_WAY

DAY = 86400
MAX_WAIT = 25
"""Longest wait of a request in seconds: proxies between client and daemon often end requests after 30."""

MAX_BYTES = 4 << 20
SIGNALS = ("TERM", "INT", "HUP", "QUIT", "KILL", "STOP", "CONT", "USR1", "USR2", "WINCH", "ALRM")

AGE = validate.Range(min=0, max=100 * 365 * DAY)
_OFFSET = validate.Range(min=0, max=1 << 52)
_WAIT: dict[str, Any] = {
    "load_default": 0,
    "validate": validate.Range(min=0, max=MAX_WAIT),
}
_ENCODING: dict[str, Any] = {"load_default": ENCODINGS[0], "validate": validate.OneOf(ENCODINGS)}


class JobStartRequest(CommandFields, ShellNamed, AwaitsApproval):
    connection = Id(
        required=True,
        metadata={
            "description": "The connection with the shell in whose directory and with whose variables the job runs."
        },
    )
    stdin = Text(
        allow_nul=True,
        metadata={
            "description": f"The job's input, in base64 if `encoding` says so; without that `{OPEN}`: `/job/input` "
            "sends it. Without it: none."
        },
    )
    timeout = Number(
        validate=validate.Range(min=0, max=365 * DAY, min_inclusive=False),
        metadata={"description": "Seconds until the far side ends the job. Without it: never."},
    )
    keep = Integer(
        load_default=KEEP_SECONDS,
        validate=validate.Range(min=0, max=365 * DAY),
        metadata={"description": "Seconds for which the job and its output are kept after its end."},
    )
    name = Text(validate=validate.Length(min=1, max=200), metadata={"description": "A name to find the job by."})
    key = Text(
        validate=validate.Length(min=1, max=200),
        metadata={
            "description": "Makes the start repeatable: if a job of this connection, running or kept, has this key, "
            "the answer is that job, and nothing is started."
        },
    )

    tellDirectory = Boolean(
        load_default=False,
        metadata={"description": "True makes `/job/output` tell the directory in which the `command` ended."},
    )


class JobRequest(Schema):
    job = Id(required=True, metadata={"description": "The job."})


class JobStartResponse(JobRequest):
    warning = fields.String(
        metadata={"description": "Present where the far side may end the job when its user has logged out."}
    )


class JobOutputRequest(JobRequest):
    stdout = Integer(
        load_default=0,
        validate=_OFFSET,
        metadata={"description": "The first byte of standard output to return: `next` of the previous answer."},
    )
    stderr = Integer(load_default=0, validate=_OFFSET, metadata={"description": "The same for standard error."})
    wait = Number(**_WAIT, metadata={"description": "Seconds to wait for news if there is none."})
    until = Text(
        load_default="output",
        validate=validate.OneOf(["output", "exit"]),
        metadata={"description": "What counts as news: `output`: output or the end; `exit`: only the end."},
    )
    maxBytes = Integer(
        load_default=1 << 20,
        validate=validate.Range(min=16, max=MAX_BYTES),
        metadata={"description": "Most bytes of each stream in one answer."},
    )
    encoding = Text(
        **_ENCODING,
        metadata={
            "description": "`utf-8`: text, cut between characters, undecodable bytes as U+FFFD. `base64`: byte by byte."
        },
    )


class StreamResponse(Schema):
    data = fields.String(required=True, metadata={"description": "What was printed from the offset on."})
    next = fields.Integer(required=True, metadata={"description": "The offset to ask for next, in bytes."})
    eof = fields.Boolean(required=True, metadata={"description": "Whether nothing follows."})
    size = fields.Integer(required=True, metadata={"description": "How many bytes the job has printed so far."})


_STATE: dict[str, Any] = {
    "required": True,
    "metadata": {
        "description": "`starting`, `running`; at its end `exited`, `killed` (by `/job/kill`), `timed_out`, or `lost`: "
        "its far side was restarted, or its files there have disappeared.",
        "enum": [*UNDER_WAY, *ENDED],
    },
}
_EXIT_CODE: dict[str, Any] = {
    "allow_none": True,
    "metadata": {
        "description": "The exit code, 128 + N if signal N ended the job; null if it runs or the code is unknown."
    },
}
_STALE: dict[str, Any] = {
    "required": True,
    "metadata": {"description": "True if the machine could not be asked: the answer then shows the job as last seen."},
}


class JobOutputResponse(Schema):
    state = fields.String(**_STATE)
    exitCode = fields.Integer(**_EXIT_CODE)
    stdout = fields.Nested(StreamResponse, required=True)
    stderr = fields.Nested(StreamResponse, required=True)
    truncated = fields.Boolean(
        required=True, metadata={"description": "Whether a stream went beyond `job-output`, and the rest was dropped."}
    )
    stale = fields.Boolean(**_STALE)
    directory = fields.String(
        metadata={
            "description": "With `tellDirectory`, after the end: the directory in which the command ended. Absent for "
            "csh, and for a command that sets an EXIT trap, was killed, or ended by `exec`."
        }
    )


class JobInputRequest(JobRequest):
    data = Text(
        load_default="",
        allow_nul=True,
        validate=validate.Length(max=MAX_BYTES),
        metadata={"description": "More of its input, in base64 if `encoding` says so."},
    )
    eof = Boolean(load_default=False, metadata={"description": "Whether the input ends with this piece."})
    encoding = Text(**_ENCODING, metadata={"description": "`utf-8` or `base64`."})

    @validates_schema
    def check_data(self, data: dict[str, Any], **_: Any) -> None:
        check_base64(data, "data")


class JobKillRequest(JobRequest):
    signal = Text(
        load_default="TERM",
        validate=validate.OneOf(SIGNALS),
        metadata={"description": "Sent to all processes of the job."},
    )
    grace = Number(
        load_default=5,
        validate=validate.Range(min=0, max=3600),
        metadata={"description": "Seconds after TERM, INT, HUP or QUIT until the remaining processes get KILL."},
    )


class JobWaitRequest(JobRequest):
    wait = Number(
        load_default=MAX_WAIT,
        validate=validate.Range(min=0, max=MAX_WAIT),
        metadata={"description": "Seconds after which the answer comes in any case."},
    )


class JobRemoveRequest(JobRequest):
    force = Boolean(load_default=False, metadata={"description": "True kills a running job first."})


class JobQueryRequest(Schema):
    connectionFilter = Filter(load_default="*", metadata={"description": "A filter for the paths of connections."})
    categoryFilter = Filter(load_default="*", metadata={"description": "A filter for their categories."})
    typeFilter = Filter(load_default="*", metadata={"description": "A filter for their types."})
    states = List(
        Text(validate=validate.OneOf([*UNDER_WAY, *ENDED])), metadata={"description": "In one of these states."}
    )
    name = Text(metadata={"description": "Of this name."})
    minAge = Number(validate=AGE, metadata={"description": "Started this many seconds ago or earlier."})
    maxAge = Number(validate=AGE, metadata={"description": "Started this many seconds ago or later."})


class Command(fields.Field):  # type: ignore[type-arg]
    """The command of a stored job: its text, or its words."""

    def _serialize(self, value: Any, attr: str | None, obj: Any, **kwargs: Any) -> Any:
        return json.loads(value)


class JobInfo(Schema):
    job = fields.String(required=True, attribute="id", metadata={"format": "uuid", "description": "The job."})
    connection = fields.String(required=True, metadata={"format": "uuid", "description": "Where it runs."})
    session = fields.String(
        required=True, allow_none=True, metadata={"description": "The named shell that it was started for, or null."}
    )
    name = fields.String(required=True, allow_none=True, metadata={"description": "As it was given."})
    key = fields.String(required=True, allow_none=True, metadata={"description": "As it was given."})
    command = Command(
        required=True,
        allow_none=True,
        metadata={"description": "The text of the `command`, the `argv` as a list, or null.", "type": "string"},
    )
    locked = Boolean(
        metadata={"description": "True if the caller cannot open the connection's secrets; `command` is then null."}
    )
    state = fields.String(**_STATE)
    exitCode = fields.Integer(attribute="exit_code", **_EXIT_CODE)
    stdinOpen = fields.Boolean(
        required=True, attribute="stdin_open", metadata={"description": "Whether it was started with open input."}
    )
    created = UtcTime(required=True, metadata={"description": "When its start was requested."})
    ended = UtcTime(
        required=True, allow_none=True, metadata={"description": "When its end was seen; null while it runs."}
    )
    keep = fields.Integer(required=True, metadata={"description": "Seconds for which it is kept after its end."})
    stale = fields.Boolean(**_STALE)


class JobQueryResponse(Schema):
    jobs = fields.List(fields.Nested(JobInfo), required=True, metadata={"description": "Oldest first."})
