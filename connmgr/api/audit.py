"""``/audit``: the entries of the audit log, and whether the vault's logs are complete and unchanged."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

from connmgr import errors
from connmgr.api.connection_data import locked_ones
from connmgr.api.context import caller, detail, request_context, require_client
from connmgr.api.endpoint import Group
from connmgr.api.services import services
from connmgr.audit.entry import NAMES, TEXTS
from connmgr.audit.query import EntryFilter, search
from connmgr.audit.verify import verify
from connmgr.contract.audit import (
    MAX_STEPS,
    AuditForgetRequest,
    AuditQueryRequest,
    AuditQueryResponse,
    AuditRecordRequest,
    AuditRecordResponse,
    AuditStep,
    AuditVerifyResponse,
)
from connmgr.rights.authorisation import Work
from connmgr.terminals.recording import describe
from connmgr.terminals.recording import lines as lines_of

STARTS = ("job.start", "shell.exec", "terminal.open")
"""The actions whose entries have the id of the job or terminal that they have started."""

TELLING = ("commandMac", "file", "source", "target", "code", "event", "approval", "changes", "notKept", "terminal")
"""An entry without any of these members has only looked at what there is."""

SHOWN_CHARACTERS = 4000
"""Most characters of an output in a record: three quarters from its beginning, the rest from its end."""

OUTPUT_SECONDS = 20.0
"""A record shows no more outputs after this time, because its machines are slow."""

group = Group("audit", "The audit log: who has done what, on which machine, and how it ended.")


@group.endpoint(
    "/query",
    has_large_answer=True,
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
    raises=[errors.UnknownConnection, errors.AuditUnavailable],
)
def query(request: AuditQueryRequest) -> AuditQueryResponse:
    """Return entries of the audit log, the newest first.

    A client with a token sees the entries of its own token and of connections that it may see; the text of commands
    only in those of its own. Of its requests that were refused because of what it does not see, it reads neither that
    text nor a name.
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

    A token with the scope for entries, which tell who did what, does not thereby read the words of others. Where its
    own request named what it does not see, it gets neither a name nor its words, out of which the secrets of that are
    cut.
    """
    token = caller().token
    if not services().authorisation.knows_subjects(caller(), entry):
        return {name: value for name, value in entry.items() if name not in TEXTS | NAMES}
    if token is None or token == entry.get("token") or services().settings.audit_commands:
        return entry
    return {name: value for name, value in entry.items() if name not in TEXTS}


@group.endpoint(
    "/record",
    reads=True,
    about=("token",),
    waits=True,
    example={"token": "claude", "since": "2026-01-31T08:00:00Z"},
    answer={
        "steps": [
            {
                "seq": 812,
                "at": "2026-01-31T08:15:00.123Z",
                "action": "job.start",
                "where": ["web1"],
                "connection": "f0ec68aa-63f5-405c-b178-9a4454556d6b",
                "what": "systemctl restart nginx",
                "code": None,
                "exitCode": 0,
                "rule": 2,
                "approval": None,
                "decidedBy": None,
                "job": "1c0e4b52-8d2f-4c4e-9a8e-5a3f1b7c2d90",
                "terminal": None,
                "stdout": "",
                "stderr": "",
                "notShown": None,
                "changes": [],
            }
        ],
        "complete": True,
    },
    raises=[errors.AuditUnavailable],
)
def record(request: AuditRecordRequest) -> AuditRecordResponse:
    """Tell what a token has done, step by step: commands, their output, approvals, and files that it has changed.

    The steps are entries of the audit log, without those that only looked. Output is that of jobs that are still kept
    and of recorded terminals; that of other commands goes to whoever ran them, and is kept nowhere. Without the right
    to see a job or recording, its output is left out.
    """
    wanted = EntryFilter(request.since, request.until, request.token)
    entries, complete = _entries(wanted)
    ends = {entry["job"]: entry for entry in entries if "job" in entry and entry.get("event") == "ended"}
    outputs = _Outputs() if request.outputs else None
    return AuditRecordResponse(steps=[_step(entry, ends, outputs) for entry in reversed(entries)], complete=complete)


def _entries(wanted: EntryFilter) -> tuple[list[dict[str, Any]], bool]:
    """Return the telling entries, the newest first, and whether these are all."""
    steps: list[dict[str, Any]] = []
    before: int | None = None
    while True:
        require_client()
        try:
            entries, before = search(
                services().audit.path, wanted, partial(services().authorisation.sees_entry, caller()), MAX_STEPS, before
            )
        except OSError as error:
            raise errors.AuditUnavailable(f"The audit log cannot be read: {error.strerror}.") from error
        steps += [_shown(entry) for entry in entries if any(name in entry for name in TELLING)]
        if before is None or len(steps) > MAX_STEPS:
            return steps[:MAX_STEPS], before is None and len(steps) <= MAX_STEPS


class _Outputs:
    """The output of jobs and recorded terminals, as long as there is time; a machine that fails is asked once."""

    def __init__(self) -> None:
        self._until = time.monotonic() + OUTPUT_SECONDS
        self._failed: dict[str, str] = {}
        self.exit_codes: dict[str, int | None] = {}
        """Those of the jobs that were looked at; the log tells an end when a daemon has noticed it."""

    def of(self, entry: Mapping[str, Any]) -> tuple[str | None, str | None, str | None]:
        """Return both streams of what ``entry`` has started, and what is not shown of them."""
        connection = entry.get("connection")
        if connection is None or entry.get("action") not in STARTS or "code" in entry:
            return None, None, None
        if "terminal" in entry:
            return self._of_terminal(entry["terminal"], connection)
        if "job" not in entry:
            return None, None, "What it printed went to its client, and is not kept."
        if connection in self._failed:
            return None, None, self._failed[connection]
        if time.monotonic() > self._until:
            return None, None, "Not read: the machines took too long to answer."
        return self._of_job(entry["job"], connection)

    def _of_job(self, id: str, connection: str) -> tuple[str | None, str | None, str | None]:
        grant = caller().grant
        gone = "The job was removed, and what it printed with it."
        try:
            stored = services().jobs.find(id).stored
            work = [(id, Work(stored.connection, stored.token))]
            may = grant is None or "job" in grant.scopes
            if not may or not list(services().authorisation.visible_work(caller(), work)):
                return None, None, "The caller may not see this job."
            read = services().jobs.output(id, caller().access, 0, 0, SHOWN_CHARACTERS)
            self.exit_codes[id] = services().jobs.find(id).stored.exit_code
            shown, left_out, is_over = [], 0, True
            for name in ("stdout", "stderr"):
                seen = None if read.seen is None else getattr(read.seen, name)
                size = 0 if seen is None else seen.size
                is_over = is_over and seen is not None and seen.ended
                text = self._cleaned(getattr(read, name), connection)
                if size > SHOWN_CHARACTERS:
                    head, tail = SHOWN_CHARACTERS * 3 // 4, SHOWN_CHARACTERS // 4
                    # A secret that the cut went through would not be recognised: more is cleaned than is shown.
                    at = {"stdout": 0, "stderr": 0, name: size - SHOWN_CHARACTERS}
                    end = getattr(services().jobs.output(id, caller().access, **at, max_bytes=SHOWN_CHARACTERS), name)
                    text = f"{text[:head]}\n[...]\n{self._cleaned(end, connection)[-tail:]}"
                    left_out += size - head - tail
                shown.append(text)
        except (errors.UnknownJob, errors.OutputGone):
            return None, None, gone
        except errors.ConnmgrError as error:
            self._failed[connection] = request_context().told(error).message
            return None, None, self._failed[connection]
        why = [f"{left_out} bytes are left out."] if left_out else []
        why += [] if is_over else ["Its output had not ended when it was read."]
        return shown[0], shown[1], " ".join(why) or None

    @staticmethod
    def _cleaned(printed: bytes, connection: str) -> str:
        return services().audit.text.cleaned(printed[:SHOWN_CHARACTERS].decode(errors="replace"), connection)

    def _of_terminal(self, id: str, connection: str) -> tuple[str | None, str | None, str | None]:
        path = services().terminals.recordings.path(id)
        recorded = None if path is None else describe(path)
        grant = caller().grant
        if recorded is None:
            return None, None, "The terminal was not recorded, or its recording was removed."
        work = [(id, Work(connection, recorded.opener))]
        may = grant is None or "terminal" in grant.scopes
        if not may or not list(services().authorisation.visible_work(caller(), work)) or locked_ones([connection]):
            return None, None, "The caller may not read this recording."
        text = ""
        with suppress(FileNotFoundError):
            for line in islice(lines_of(recorded.path), SHOWN_CHARACTERS):
                text += f"{line.text}\n"
                if len(text) > SHOWN_CHARACTERS:
                    break
        shown = services().audit.text.cleaned(text, connection)[:SHOWN_CHARACTERS]
        return shown, None, "Only its beginning; the recording has the rest." if len(text) > SHOWN_CHARACTERS else None


def _step(entry: Mapping[str, Any], ends: Mapping[str, Mapping[str, Any]], outputs: _Outputs | None) -> AuditStep:
    names = entry.get("connectionNames") or [entry.get("connectionName") or entry.get("connection")]
    stdout, stderr, not_shown = (None, None, None) if outputs is None else outputs.of(entry)
    job = entry.get("job", "")
    exit_code = None if outputs is None else outputs.exit_codes.get(job)
    moved = f"{entry['source']} -> {entry['target']}" if "source" in entry and "target" in entry else None
    return AuditStep(
        seq=entry["seq"],
        at=entry["time"],
        action=entry.get("event") or entry.get("action") or entry.get("path", ""),
        where=[name for name in names if name is not None],
        connection=entry.get("connection"),
        what=entry.get("command") or entry.get("file") or moved,
        code=entry.get("code"),
        exit_code=entry.get("exitCode", ends.get(job, {}).get("exitCode", exit_code)),
        rule=entry.get("rule"),
        approval=entry.get("approval"),
        decided_by=entry.get("decidedBy"),
        job=entry.get("job"),
        terminal=entry.get("terminal"),
        stdout=stdout,
        stderr=stderr,
        not_shown=not_shown or entry.get("notKept"),
        changes=list(entry.get("changes", ())) if isinstance(entry.get("changes"), list) else [],
    )


@group.endpoint(
    "/verify",
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
    # The vault then knows all of the log, so what was cut off its end is missed, too.
    log.anchor()
    try:
        return AuditVerifyResponse.read(verify(log.path, log.chain, log.anchors).members)
    except OSError as error:
        raise errors.AuditUnavailable(f"The audit log cannot be read: {error.strerror}.") from error


@group.endpoint("/forget", raises=[errors.UnknownAuditLog], example={"trail": "0f3a9c5be1d24786"})
def forget(request: AuditForgetRequest) -> None:
    """Forget a log that is missing, for example because its machine is gone for good.

    `/audit/verify` then no longer calls it missing. The entry of this request has what was known of it.
    """
    log, anchors = services().audit, services().audit.anchors
    anchor = anchors.all().get(request.trail)
    if anchor is None:
        raise errors.UnknownAuditLog(request.trail)
    if anchor.log == log.id:
        raise errors.InvalidRequest("trail: This daemon's own log; it cannot be forgotten.")
    detail(forgotten=anchor.log, forgottenPlace=anchor.place, forgottenSeq=anchor.seq, forgottenTime=anchor.time)
    anchors.remove(anchor.log)
