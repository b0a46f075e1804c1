"""``/audit``: the entries of the audit log, and whether the vault's logs are complete and unchanged."""

from __future__ import annotations

from datetime import datetime, timezone
from functools import partial
from typing import Any

from marshmallow import fields, validate

from connmgr import errors
from connmgr.api.account import caller, detail
from connmgr.api.group import Group
from connmgr.api.services import services
from connmgr.audit.entry import TEXTS
from connmgr.audit.query import Wanted, search
from connmgr.audit.verify import KINDS, STATES, verify
from connmgr.fields import Integer, Schema, Text

MAX_ENTRIES = 1000
# Arithmetic with times beyond these overflows.
_TIMES = validate.Range(datetime(1970, 1, 1, tzinfo=timezone.utc), datetime(9000, 1, 1, tzinfo=timezone.utc))

group = Group("audit", "The audit log: who has done what, on which machine, and how it ended.")


class AuditQueryRequest(Schema):
    since = fields.AwareDateTime(
        format="iso",
        validate=_TIMES,
        metadata={"description": "Only entries of this time or later; ISO 8601, with a time zone."},
    )
    until = fields.AwareDateTime(
        format="iso", validate=_TIMES, metadata={"description": "Only entries of this time or earlier."}
    )
    token = Text(metadata={"description": "Only requests with this token: its id, or its name."})
    connection = Text(
        metadata={"description": "Only entries on this connection: its uuid, or its name in the entries."}
    )
    caller = Text(metadata={"description": "Only requests of this client: its name, or the id of its session."})
    action = Text(metadata={"description": "Only this action, such as `shell.exec`."})
    code = Text(metadata={"description": "Only requests that were answered with this error code."})
    limit = Integer(
        load_default=100,
        validate=validate.Range(min=1, max=MAX_ENTRIES),
        metadata={"description": f"Most entries of the answer; {MAX_ENTRIES:,} can be asked for. Without it: 100."},
    )
    before = Integer(
        validate=validate.Range(min=1),
        metadata={"description": "Only entries with lower numbers: `next` of the answer before."},
    )


class AuditQueryResponse(Schema):
    entries = fields.List(
        fields.Dict(),
        required=True,
        metadata={"description": "The entries, the newest first, with the members that OPERATIONS.md lists."},
    )
    next = fields.Integer(
        required=True,
        allow_none=True,
        metadata={
            "description": "`before` of the request for the next page; null: there are no more entries. An answer that "
            "would take longer than two seconds has fewer entries than asked for, even none, and a `next`."
        },
    )


class AuditFault(Schema):
    kind = fields.String(
        required=True,
        validate=validate.OneOf(tuple(KINDS)),
        metadata={
            "description": "The kind of fault. `lost`: the daemon could not write an entry. All others: tampering."
        },
    )
    message = fields.String(required=True, metadata={"description": "The same in a sentence."})
    file = fields.String(allow_none=True, metadata={"description": "The file; null: no single file."})
    seq = fields.Integer(allow_none=True, metadata={"description": "The number of the first entry concerned, or null."})
    last = fields.Integer(allow_none=True, metadata={"description": "The number of the last entry concerned."})
    line = fields.Integer(
        allow_none=True, metadata={"description": "The line in the file, for a line that is not an entry."}
    )


class KnownAuditLog(Schema):
    trail = fields.String(required=True, metadata={"description": "The log's id."})
    host = fields.String(required=True, metadata={"description": "The name of the host where it was last."})
    directory = fields.String(required=True, metadata={"description": "The directory of its files there."})
    seq = fields.Integer(required=True, metadata={"description": "The number of its last entry, as far as known."})
    time = fields.String(
        required=True, metadata={"description": "When the vault was told of that; empty if it does not know the log."}
    )
    state = fields.String(
        required=True,
        validate=validate.OneOf(STATES),
        metadata={
            "description": "`verified`: its files were read. `copy`: a copy of the verified one. `forked`: a copy that "
            "went another way. `elsewhere`: kept on another machine, and not read. `unreadable`: kept on this machine "
            "where the daemon may not read it. `gone`: its files are missing."
        },
    )


class AuditVerifyResponse(Schema):
    sound = fields.Boolean(
        required=True,
        metadata={"description": "Whether there are no faults in the logs that were read, and none is missing."},
    )
    trail = fields.String(
        required=True, allow_none=True, metadata={"description": "The log's id; null if there are no entries."}
    )
    entries = fields.Integer(required=True, metadata={"description": "How many chained entries there are."})
    first = fields.Integer(required=True, allow_none=True, metadata={"description": "The number of the oldest one."})
    last = fields.Integer(required=True, allow_none=True, metadata={"description": "The number of the newest one."})
    anchored = fields.Integer(
        required=True,
        allow_none=True,
        metadata={"description": "The newest entry that the vault knows of. Entries cut off after it go unnoticed."},
    )
    faults = fields.List(fields.Nested(AuditFault), required=True, metadata={"description": "The first 100 faults."})
    number = fields.Integer(required=True, metadata={"description": "How many faults there are."})
    remarks = fields.List(
        fields.String(),
        required=True,
        metadata={"description": "Remarks that are not faults, such as half a line after a crash."},
    )
    logs = fields.List(
        fields.Nested(KnownAuditLog),
        required=True,
        metadata={"description": "All audit logs that the vault knows, the daemon's own first."},
    )


class AuditForgetRequest(Schema):
    trail = Text(required=True, metadata={"description": "The id of a missing log."})


@group.endpoint(
    "/query",
    AuditQueryRequest,
    AuditQueryResponse,
    action="audit.query",
    reads=True,
    audited=False,
    dumped=True,
    example={"connection": "f0ec68aa-63f5-405c-b178-9a4454556d6b", "action": "shell.exec", "limit": 1},
    answer={
        "entries": [
            {
                "seq": 812,
                "previous": "5d0f2c07a4d1f1f6a64a3c8d1b8f4b2c9e7d6a5f4c3b2a190817263544536271",
                "time": "2026-01-31T08:15:00.123Z",
                "id": "5f0c21d8",
                "client": "my script",
                "session": "9b1e77a0",
                "path": "/shell/exec",
                "connection": "f0ec68aa-63f5-405c-b178-9a4454556d6b",
                "status": 200,
                "ms": 1.9,
                "action": "shell.exec",
                "exitCode": 0,
                "connectionName": "local machine",
            }
        ],
        "next": 812,
    },
    raises=[errors.AuditUnavailable],
)
def query(request: dict[str, Any]) -> dict[str, Any]:
    """Return entries of the audit log, the newest first.

    A client with a token sees the entries of its own token and of connections that it may see; the text of commands
    only in those of its own.
    """
    asked = {name: value for name, value in request.items() if name not in ("limit", "before")}
    found = services()
    sees = partial(found.authorisation.sees, caller())
    try:
        entries, following = search(found.audit.path, Wanted(**asked), sees, request["limit"], request.get("before"))
    except OSError as error:
        raise errors.AuditUnavailable(f"The audit log cannot be read: {error.strerror}.") from error
    return {"entries": [_shown(entry) for entry in entries], "next": following}


def _shown(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry as the caller may see it.

    A token with the scope for entries, which tell who did what, does not thereby read the words of others.
    """
    token = caller().token
    if token is None or token == entry.get("token") or services().settings.audit_commands:
        return entry
    return {name: value for name, value in entry.items() if name not in TEXTS}


@group.endpoint(
    "/verify",
    response=AuditVerifyResponse,
    action="audit.verify",
    reads=True,
    audited=False,
    answer={
        "sound": False,
        "trail": "0f3a9c5be1d24786",
        "entries": 811,
        "first": 1,
        "last": 812,
        "anchored": 812,
        "faults": [
            {
                "kind": "missing",
                "message": "Entry 640 was taken away (audit.log).",
                "file": "audit.log",
                "seq": 640,
                "last": 640,
                "line": None,
            }
        ],
        "number": 1,
        "remarks": [],
        "logs": [
            {
                "trail": "0f3a9c5be1d24786",
                "host": "admin1",
                "directory": "/home/alice/.local/share/connmgr",
                "seq": 812,
                "time": "2026-01-31T08:15:00.123Z",
                "state": "verified",
            }
        ],
    },
    raises=[errors.AuditUnavailable],
)
def verify_() -> dict[str, Any]:
    """Verify that the audit log is as the daemon wrote it: no entry changed, removed, inserted, moved or cut off.

    The vault knows a log for each data directory of its daemons. A log in another directory of this machine is verified
    too. One whose files are missing is a fault, unless it is kept on another machine that shares the vault.
    """
    log = services().audit
    log.anchor()
    try:
        return verify(log.path, log.chain, log.anchors).members
    except OSError as error:
        raise errors.AuditUnavailable(f"The audit log cannot be read: {error.strerror}.") from error


@group.endpoint(
    "/forget",
    AuditForgetRequest,
    action="audit.forget",
    raises=[errors.UnknownAuditLog],
    example={"trail": "0f3a9c5be1d24786"},
)
def forget(request: dict[str, Any]) -> None:
    """Forget a log that is missing, for example because its machine is gone for good.

    `/audit/verify` then no longer calls it missing. The entry of this request has what was known of it.
    """
    log, anchors = services().audit, services().audit.anchors
    known = anchors.all().get(request["trail"])
    if known is None:
        raise errors.UnknownAuditLog(request["trail"])
    if known.log == log.id:
        raise errors.InvalidRequest("trail: This daemon's own log; it cannot be forgotten.")
    detail(forgotten=known.log, forgottenPlace=known.place, forgottenSeq=known.seq, forgottenTime=known.time)
    anchors.remove(known.log)
