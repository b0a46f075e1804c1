"""``/audit``: the entries of the audit log, and whether the vault's logs are complete and unchanged."""

from __future__ import annotations

from functools import partial
from typing import Any

from connmgr import errors
from connmgr.api.context import caller, detail
from connmgr.api.endpoint import Group
from connmgr.api.services import services
from connmgr.audit.entry import TEXTS
from connmgr.audit.query import EntryFilter, search
from connmgr.audit.verify import verify
from connmgr.contract.audit import (
    AuditForgetRequest,
    AuditQueryRequest,
    AuditQueryResponse,
    AuditVerifyResponse,
)

group = Group("audit", "The audit log: who has done what, on which machine, and how it ended.")


@group.endpoint(
    "/query",
    AuditQueryRequest,
    AuditQueryResponse,
    action="audit.query",
    reads=True,
    audited=False,
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
def query(request: AuditQueryRequest) -> AuditQueryResponse:
    """Return entries of the audit log, the newest first.

    A client with a token sees the entries of its own token and of connections that it may see; the text of commands
    only in those of its own.
    """
    authorisation, path = services().authorisation, services().audit.path
    wanted = EntryFilter(
        request.since,
        request.until,
        request.token,
        request.connection,
        request.caller,
        request.action,
        request.code,
    )
    try:
        is_visible = partial(authorisation.sees_entry, caller())
        entries, following = search(path, wanted, is_visible, request.limit, request.before)
    except OSError as error:
        raise errors.AuditUnavailable(f"The audit log cannot be read: {error.strerror}.") from error
    return AuditQueryResponse(entries=[_shown(entry) for entry in entries], next=following)


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
def verify_() -> AuditVerifyResponse:
    """Verify that the audit log is as the daemon wrote it: no entry changed, removed, inserted, moved or cut off.

    The vault knows a log for each data directory of its daemons. A log in another directory of this machine is verified
    too. One whose files are missing is a fault, unless it is kept on another machine that shares the vault.
    """
    log = services().audit
    log.anchor()
    try:
        return AuditVerifyResponse.read(verify(log.path, log.chain, log.anchors).members)
    except OSError as error:
        raise errors.AuditUnavailable(f"The audit log cannot be read: {error.strerror}.") from error


@group.endpoint(
    "/forget",
    AuditForgetRequest,
    action="audit.forget",
    raises=[errors.UnknownAuditLog],
    example={"trail": "0f3a9c5be1d24786"},
)
def forget(request: AuditForgetRequest) -> None:
    """Forget a log that is missing, for example because its machine is gone for good.

    `/audit/verify` then no longer calls it missing. The entry of this request has what was known of it.
    """
    log, anchors = services().audit, services().audit.anchors
    known = anchors.all().get(request.trail)
    if known is None:
        raise errors.UnknownAuditLog(request.trail)
    if known.log == log.id:
        raise errors.InvalidRequest("trail: This daemon's own log; it cannot be forgotten.")
    detail(forgotten=known.log, forgottenPlace=known.place, forgottenSeq=known.seq, forgottenTime=known.time)
    anchors.remove(known.log)
