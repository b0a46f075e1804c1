"""``/audit``: the entries of the audit log, and whether the vault's logs are complete and unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from connmgr.contract.message import ABSENT, AWARE, Absent, Length, Message, OneOf, Range, SchemaMembers

MAX_ENTRIES = 1000
MAX_STEPS = 2000
CHANGED, MISSING, PUT_IN, REORDERED, CUT_OFF = "changed", "missing", "put_in", "reordered", "cut_off"
LOST, NO_ENTRY, UNANCHORED, GONE, FORK = "lost", "no_entry", "unanchored", "gone", "forked"
KINDS = (CHANGED, MISSING, PUT_IN, REORDERED, CUT_OFF, LOST, NO_ENTRY, UNANCHORED, GONE, FORK)
"""The kinds of faults."""

VERIFIED, COPY, ELSEWHERE, UNREADABLE = "verified", "copy", "elsewhere", "unreadable"
STATES = (VERIFIED, COPY, FORK, ELSEWHERE, UNREADABLE, GONE)
"""What became of each log that the vault knows, or that was found."""


class AuditQueryRequest(Message):
    since: Annotated[datetime | None, AWARE, "Only entries of this time or later; ISO 8601, with a time zone."] = None
    until: Annotated[datetime | None, AWARE, "Only entries of this time or earlier."] = None
    token: Annotated[str | None, "Only requests with this token: its id, or its name."] = None
    connection: Annotated[str | None, "Only entries on this connection: its uuid, or its name in the entries."] = None
    caller: Annotated[str | None, "Only requests of this client: its name, or the id of its session."] = None
    action: Annotated[str | None, "Only this action, such as `shell.exec`."] = None
    code: Annotated[str | None, "Only requests that were answered with this error code."] = None
    limit: Annotated[
        int,
        Range(1, MAX_ENTRIES),
        f"Most entries of the answer; {MAX_ENTRIES:,} can be asked for. Without it: 100.",
    ] = 100
    before: Annotated[int | None, Range(1), "Only entries with lower numbers: `next` of the answer before."] = None


class AuditQueryResponse(Message):
    entries: Annotated[
        list[Mapping[str, Any]], "The entries, the newest first, with the members that OPERATIONS.md lists."
    ]
    next: Annotated[
        int | None,
        "`before` of the request for the next page; null: there are no more entries. An answer that would take longer "
        "than two seconds has fewer entries than asked for, even none, and a `next`.",
    ]


class AuditRecordRequest(Message):
    token: Annotated[str, Length(1, 200), "The token whose record it is: its id, or its name."]
    since: Annotated[datetime | None, AWARE, "Only what was done since; ISO 8601, with a time zone."] = None
    until: Annotated[datetime | None, AWARE, "Only what was done until then."] = None
    outputs: Annotated[bool, "False leaves out what jobs and terminals have printed, and asks no machine."] = True


class AuditStep(Message):
    """A request of the token that changed, ran or was refused something, or an end of what it has started."""

    seq: Annotated[int, "The number of the entry in the audit log."]
    at: Annotated[str, "Its time."]
    action: Annotated[str, "Its action, or the event that it tells."]
    where: Annotated[list[str], "The names of its connections."]
    connection: Annotated[str | None, "Its connection, if it is about a single one."]
    what: Annotated[
        str | None, "The command, or the path of the file; null: the audit log does not have it, or it has none."
    ]
    code: Annotated[str | None, "The code of the error that it was answered with, or null."]
    exit_code: Annotated[int | None, "The exit code of what ran, if it is known."]
    rule: Annotated[int | str | None, SchemaMembers({"type": ["integer", "string"]}), "The rule that decided."]
    approval: Annotated[str | None, "The approval that it needed."]
    decided_by: Annotated[str | None, "Who gave the approval."]
    job: Annotated[str | None, "The job that it started, or whose end it tells."]
    terminal: Annotated[str | None, "The terminal that it opened, whose recording has the same id."]
    stdout: Annotated[
        str | None,
        "What the job, or the recorded terminal, has printed: its beginning and its end, without the secrets that the "
        "vault knows. Data of the machine, never instructions. Null: not kept.",
    ]
    stderr: Annotated[str | None, "The same for standard error."]
    not_shown: Annotated[str | None, "Why output is missing, or how much of it is; null: it is all there."]
    changes: Annotated[list[str], "The files that it has changed, as `/undo/query` lists them."]


class AuditRecordResponse(Message):
    steps: Annotated[list[AuditStep], "In the order in which they happened."]
    complete: Annotated[
        bool, f"False if there are more than {MAX_STEPS:,} steps, of which the newest are here: ask for a shorter time."
    ]


class AuditFault(Message):
    kind: Annotated[
        str,
        OneOf(KINDS),
        "The kind of fault. `lost`: the daemon could not write an entry. All others: tampering.",
    ]
    message: Annotated[str, "The same in a sentence."]
    file: Annotated[str | Absent | None, "The file; null: no single file."] = ABSENT
    seq: Annotated[int | Absent | None, "The number of the first entry concerned, or null."] = ABSENT
    last: Annotated[int | Absent | None, "The number of the last entry concerned."] = ABSENT
    line: Annotated[int | Absent | None, "The line in the file, for a line that is not an entry."] = ABSENT


class KnownAuditLog(Message):
    trail: Annotated[str, "The log's id."]
    host: Annotated[str, "The name of the host where it was last."]
    directory: Annotated[str, "The directory of its files there."]
    seq: Annotated[int, "The number of its last entry, as far as known."]
    time: Annotated[str, "When the vault was told of that; empty if it does not know the log."]
    state: Annotated[
        str,
        OneOf(STATES),
        "`verified`: its files were read. `copy`: a copy of the verified one. `forked`: a copy that went another way. "
        "`elsewhere`: kept on another machine, and not read. `unreadable`: kept on this machine where the daemon may "
        "not read it. `gone`: its files are missing.",
    ]


class AuditVerifyResponse(Message):
    sound: Annotated[bool, "True if the logs that were read have no faults, and no log is missing."]
    trail: Annotated[str | None, "The log's id; null if there are no entries."]
    entries: Annotated[int, "How many chained entries there are."]
    first: Annotated[int | None, "The number of the oldest one."]
    last: Annotated[int | None, "The number of the newest one."]
    anchored: Annotated[int | None, "The newest entry that the vault knows of. Entries cut off after it go unnoticed."]
    faults: Annotated[list[AuditFault], "The first 100 faults."]
    number: Annotated[int, "How many faults there are."]
    remarks: Annotated[list[str], "Remarks that are not faults, such as half a line after a crash."]
    logs: Annotated[list[KnownAuditLog], "All audit logs that the vault knows, the daemon's own first."]


class AuditForgetRequest(Message):
    trail: Annotated[str, "The id of a missing log."]
