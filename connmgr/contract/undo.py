"""``/undo``: what tokens have changed in files, and putting it back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from connmgr.contract.common import Located
from connmgr.contract.message import AWARE, FILTER, ID, MODE, PATH, Length, Message, OneOf

MAX_UNDONE = 1000
"""Most changes of one request."""

RESTORED, RESTORABLE, UNCHANGED, CHANGED_SINCE, NOT_KEPT, UNDO_FAILED = UNDO_STATES = (
    "restored",
    "restorable",
    "unchanged",
    "changed_since",
    "not_kept",
    "failed",
)

KINDS = ("file", "directory", "link", "other", "absent")

Path = Annotated[bytes, PATH]


class ChangeResponse(Message):
    """What is kept of the files that a token's request has changed; the owner's has no such members."""

    changes: Annotated[
        list[str] | None,
        "The changes, which `/undo/restore` takes; absent in answers to the owner.",
    ] = None
    not_kept: Annotated[str | None, "Why `/undo/restore` cannot put something back; absent if it can put back all."] = (
        None
    )


class FileStateInfo(Message):
    """What was at a path; attributes that are not known are null."""

    kind: Annotated[str, OneOf(KINDS), "`file`, `directory`, `link`, `other`, or `absent`: nothing was there."]
    size: Annotated[int | None, "In bytes."]
    sha256: Annotated[str | None, "The SHA-256 of a file's content, in hexadecimal."]
    mode: Annotated[int | None, MODE, "Permission bits in octal."]
    uid: Annotated[int | None, "The owner's number."]
    gid: Annotated[int | None, "The group's number."]


class ChangeInfo(Message):
    change: Annotated[str, ID, "The change's uuid."]
    at: Annotated[datetime, "When the request began."]
    action: Annotated[str, "The action of the request; `undo.restore`: it undid another change."]
    connection: Annotated[str, "The connection, which may have been removed."]
    path: Annotated[Path, "The real path of the file."]
    token: Annotated[str | None, "The token of the request; null: the owner, who has undone something."]
    by: Annotated[str, "The name of the token, or of the owner's client."]
    before: Annotated[FileStateInfo, "What was there before."]
    after: Annotated[
        FileStateInfo | None, "What the request made of it; null: not known, or the request is still under way."
    ]
    not_kept: Annotated[str | None, "Why it cannot be undone; null: it can, if the file is still what `after` says."]
    undoes: Annotated[str | None, "The change that this one has undone, or null."]
    undone_by: Annotated[str | None, "The change that has undone this one, or null."]


class UndoQueryRequest(Message):
    token: Annotated[str | None, "Only changes with this token: its id, or its name."] = None
    since: Annotated[datetime | None, AWARE, "Only changes of this time or later; ISO 8601, with a time zone."] = None
    until: Annotated[datetime | None, AWARE, "Only changes of this time or earlier."] = None
    connection_filter: Annotated[str, FILTER, "Names of connections, as in `/connection/query`."] = "*"


class UndoQueryResponse(Message):
    changes: Annotated[list[ChangeInfo], "The changes, the newest first."]


class UndoReadRequest(Message):
    change: Annotated[str, ID, "The change."]


class UndoRestoreRequest(Located):
    connection: Annotated[str, ID, "The connection of the changes; its shell is started if none runs."]
    changes: Annotated[
        Sequence[Annotated[str, ID]],
        Length(1, MAX_UNDONE),
        "The changes to undo, in any order: the newest is undone first.",
    ]
    dry_run: Annotated[bool, "True only tells what would become of each."] = False
    force: Annotated[
        bool, "True also overwrites what somebody else has changed since; what is overwritten is kept, too."
    ] = False


class UndoneInfo(Message):
    change: Annotated[str, ID, "The change."]
    path: Annotated[Path, "The real path of its file."]
    state: Annotated[
        str,
        OneOf(UNDO_STATES),
        "`restored`; `restorable`: a dry run would restore it; `unchanged`: the file is as it was before; "
        "`changed_since`: somebody else changed it afterwards, so it was left alone; `not_kept`: there is no copy; "
        "`failed`: the remote host refused.",
    ]
    message: Annotated[str | None, "Why, unless it was restored."]
    restored_as: Annotated[str | None, "The change by which it was restored, which can be undone, too."]


class UndoRestoreResponse(Message):
    results: Annotated[list[UndoneInfo], "One for each change, in the order in which they were undone."]
