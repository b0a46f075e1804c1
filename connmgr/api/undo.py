"""``/undo``: what tokens have changed in files, and putting it back; and keeping it before it is changed."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timezone

import flask

from connmgr import errors
from connmgr.api.context import caller, cancellation, detail, part, request_context
from connmgr.api.endpoint import Group
from connmgr.api.keeping import CHANGE, keeper
from connmgr.api.running import EXAMPLE, OPENING
from connmgr.api.services import services
from connmgr.contract.message import message_of
from connmgr.contract.undo import (
    RESTORED,
    ChangeInfo,
    FileStateInfo,
    UndoneInfo,
    UndoQueryRequest,
    UndoQueryResponse,
    UndoReadRequest,
    UndoRestoreRequest,
    UndoRestoreResponse,
)
from connmgr.fs.path_rules import WRITE
from connmgr.fs.remote import RemoteFileSystem
from connmgr.rights.actions import Action
from connmgr.rights.authorisation import PathRules
from connmgr.undo.changes import Undo
from connmgr.undo.store import FileChange, FileState

group = Group(
    "undo",
    "What tokens have changed in files by requests of `/fs`, and putting it back. Before the change it is kept in the "
    "daemon's directory, encrypted (`undo-days`, `max-undo`, `max-undo-file`).",
)

_STATE = {"kind": "file", "size": 7, "sha256": None, "mode": "0644", "uid": 0, "gid": 0}


@group.endpoint(
    "/query",
    reads=True,
    about=("token", "connectionFilter"),
    example={"token": "claude", "since": "2026-01-31T08:00:00Z"},
    answer={
        "changes": [
            {
                "change": CHANGE,
                "at": "2026-01-31T08:15:00.000000Z",
                "action": "fs.write",
                "connection": EXAMPLE,
                "path": "/etc/motd",
                "token": "5b1f4f0c-52c7-4f0e-9a53-0d6f5a1be5a4",
                "by": "claude",
                "before": _STATE,
                "after": {**_STATE, "size": 12},
                "notKept": None,
                "undoes": None,
                "undoneBy": None,
            }
        ]
    },
)
def query(request: UndoQueryRequest) -> UndoQueryResponse:
    """List the changes that are kept, the newest first.

    A token sees its own, and those of the tokens that were created with it, on connections in its sight.
    """
    changes = [change for change in _own(services().changes.all()) if _matches(change, request)]
    if request.connection_filter != "*":
        chosen = set(services().vault.connections.query("*", request.connection_filter, "*"))
        changes = [change for change in changes if change.connection in chosen]
    return UndoQueryResponse(changes=[_info(change) for change in changes])


def _matches(change: FileChange, request: UndoQueryRequest) -> bool:
    at = datetime.fromtimestamp(change.at, timezone.utc)
    return (
        (request.token is None or request.token in (change.token, change.by))
        and (request.since is None or at >= request.since)
        and (request.until is None or at <= request.until)
    )


def _own(changes: Iterable[FileChange]) -> list[FileChange]:
    """Return those of ``changes`` that the caller may see."""
    grant = caller().grant
    own = [change for change in changes if grant is None or grant.id in change.lineage]
    visible = set(services().authorisation.visible(caller(), {change.connection for change in own}))
    return [change for change in own if grant is None or change.connection in visible]


@group.endpoint(
    "/read",
    has_large_answer=True,
    reads=True,
    about=("change",),
    raises=[errors.UnknownChange, errors.IntegrityError],
    raw_answer="The content of the file before the change.",
    example={"change": CHANGE},
)
def read(request: UndoReadRequest) -> flask.Response:
    """Return the content that a file had before a change. Only the owner may read it."""
    change = services().changes.get(request.change)
    if change is None or change.copy is None:
        raise errors.UnknownChange(request.change)
    detail(connection=change.connection)
    return flask.Response(services().changes.content(change), mimetype="application/octet-stream")


@group.endpoint(
    "/restore",
    action=Action("undo.restore"),
    about=("connection", "dryRun", "force"),
    has_content=True,
    raises=[
        *OPENING,
        errors.UnknownChange,
        errors.ApprovalRequired,
        errors.SessionLimit,
        errors.ShellStopped,
        errors.NoShell,
        errors.TransferFailed,
        errors.CommandCancelled,
    ],
    waits=True,
    example={"connection": EXAMPLE, "changes": [CHANGE]},
    answer={
        "results": [
            {
                "change": CHANGE,
                "path": "/etc/motd",
                "state": "restored",
                "message": None,
                "restoredAs": "b0a2c1a4-9d5e-4b0e-8a43-0d3c2f5e7b66",
            }
        ]
    },
)
def restore(request: UndoRestoreRequest) -> UndoRestoreResponse:
    """Put back what was there before changes, the newest change first.

    A file is put back only if it is still what the change made of it; its SHA-256 is compared again on its machine in
    the moment before. So nothing that somebody else has written is overwritten, unless `force` says so. What an undo
    replaces is kept as a change, too, which can be undone. No link is followed that somebody has put in the place of
    the file, or of its directory. A file that was removed gets its mode, and its owner where the shell's user may give
    it; access lists and extended attributes of removed files are lost. The rules over paths of a token apply: if one
    asks about a file, nothing is undone before each such file was approved. A token undoes only its own changes, and
    those of tokens that were created with it.
    """
    changes = services().changes.all()
    own = {change.id: change for change in _own(changes)}
    # A token learns who has changed a file since only from the changes that it sees.
    visible = changes if caller().grant is None else list(own.values())
    chosen: list[FileChange] = []
    for id in dict.fromkeys(request.changes):
        change = own.get(id)
        if change is None or change.connection != request.connection:
            raise errors.UnknownChange(id)
        chosen.append(change)
    # An older change is put back on what it has made, which newer ones have to uncover first.
    chosen.sort(key=lambda change: change.at, reverse=True)
    services().shells.start(request.connection, caller().access, None, cancellation())
    results = []
    planned: dict[bytes, FileState] = {}
    with services().shells.using(request.connection, caller().access) as session:
        digest = session.connection_digest
        for change, rules in _approved(request, chosen, digest):
            caller().require_valid()
            fs = RemoteFileSystem(session.transport, session.directory, session.helpers, rules, cancellation())
            undo = Undo(keeper(request.connection, digest), fs, visible, request.dry_run, request.force, planned)
            undone = undo.undo(change)
            if rules is not None:
                request_context().authority.update(rules.reasons)
            results.append(message_of(UndoneInfo, undone, change=change.id, path=change.path))
            if not request.dry_run:
                file = change.path.decode(errors="backslashreplace")
                part({"connection": request.connection}, file=file, undoes=change.id, state=undone.state)
    detail(restored=sum(result.state == RESTORED for result in results), changes=len(results))
    return UndoRestoreResponse(results=results)


def _approved(
    request: UndoRestoreRequest, chosen: Iterable[FileChange], digest: str | None
) -> list[tuple[FileChange, PathRules | None]]:
    """Return changes with the caller's rules over their paths.

    :raises connmgr.errors.ApprovalRequired: a rule asks about one of them; none was undone, and no approval used up.
    """
    ruled = []
    try:
        for change in chosen:
            shown = {
                "undoes": change.id,
                "changed": f"{change.action} by {change.by} at {datetime.fromtimestamp(change.at, timezone.utc)}",
                "kind": change.before.kind,
                "bytes": change.before.size,
                "sha256": change.before.sha256,
                "force": request.force,
                "dryRun": request.dry_run,
            }
            rules = services().authorisation.path_rules(caller(), request.connection, shown, 0, digest)
            if rules is not None and change.not_kept is None:
                # A refusal is the outcome of its change; the others are undone.
                with suppress(errors.PolicyDenied, errors.ApprovalDenied):
                    rules.check(WRITE, change.path)
            ruled.append((change, rules))
    except errors.ApprovalRequired:
        services().approvals.give_back()
        raise
    return ruled


def _info(change: FileChange) -> ChangeInfo:
    return message_of(
        ChangeInfo,
        change,
        change=change.id,
        at=datetime.fromtimestamp(change.at, timezone.utc),
        before=message_of(FileStateInfo, change.before),
        after=None if change.after is None else message_of(FileStateInfo, change.after),
    )
