"""``/job``: commands that run on the far side independently of client and daemon."""

from __future__ import annotations

import base64
import codecs
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

from connmgr import errors
from connmgr.api.account import caller, detail, turns
from connmgr.api.command import with_words
from connmgr.api.connection_info import locked_ones
from connmgr.api.group import Group
from connmgr.api.job_schemas import (
    JobInfo,
    JobInputRequest,
    JobKillRequest,
    JobOutputRequest,
    JobOutputResponse,
    JobQueryRequest,
    JobQueryResponse,
    JobRemoveRequest,
    JobRequest,
    JobStartRequest,
    JobStartResponse,
    JobWaitRequest,
)
from connmgr.api.launch import OPEN, begin
from connmgr.api.services import services
from connmgr.api.shell import EXAMPLE, OPENING
from connmgr.jobs.jobs import JobOutput
from connmgr.jobs.remote import JobStream
from connmgr.rights.action import Action, always
from connmgr.rights.subjects import Work
from connmgr.vault.jobs import ENDED, UNDER_WAY, JobFilter, StoredJob
from connmgr.vault.tables import now

JOB = "3f0e4f0a-8f3c-4b5e-9c55-0a51c0f8d0b7"

REACHING = (*OPENING, errors.UnknownJob, errors.ShellLost, errors.TransferFailed, errors.ShellBusy)
"""Errors of endpoints that ask the far side of a job."""

group = Group(
    "job",
    "Commands that run on the far side by themselves, in the directory and with the variables of a running "
    "shell. A job survives its client, its shell, its link and the daemon. Every daemon of the vault can find "
    "it again.",
)

_INFO = {
    "job": JOB,
    "connection": EXAMPLE,
    "session": None,
    "name": "nightly",
    "key": None,
    "command": "make -j4 all",
    "state": "exited",
    "exitCode": 0,
    "stdinOpen": False,
    "created": "2026-01-31T08:15:00.000000Z",
    "ended": "2026-01-31T08:17:30.000000Z",
    "keep": 86400,
    "stale": False,
}


@group.endpoint(
    "/start",
    JobStartRequest,
    JobStartResponse,
    has_content=True,
    action=Action("job.start", runs=True, in_shell=always),
    about=("connection", "session", "command", "argv", "name"),
    selects=with_words,
    raises=[
        *REACHING,
        errors.UnknownCommand,
        errors.NoShell,
        errors.NoSuchDirectory,
        errors.PermissionDenied,
        errors.NoSpace,
        errors.JobLimit,
    ],
    waits=True,
    example={"connection": EXAMPLE, "command": "make -j4 all", "name": "nightly"},
    answer={"job": JOB},
)
def start(request: dict[str, Any]) -> dict[str, Any]:
    """Start a job, and answer at once.

    The job runs in the directory and with the variables of the named shell. It changes neither, and does not wait for
    the shell's commands. In a container without a shell (`no_shell_inside`), a job with an `argv` runs in the image's
    directory and environment; its files are then kept on the container's host.
    """
    stdin_open = request.get("stdin") == OPEN and request["encoding"] != "base64"
    started, warning = begin(request, stdin_open=stdin_open)
    detail(job=started.id)
    return {"job": started.id} | ({"warning": warning} if warning else {})


@group.endpoint(
    "/output",
    JobOutputRequest,
    JobOutputResponse,
    action="job.output",
    reads=True,
    about=("job",),
    raises=[*REACHING, errors.OutputGone],
    example={"job": JOB, "stdout": 0, "stderr": 0, "wait": 25},
    answer={
        "state": "running",
        "exitCode": None,
        "stdout": {"data": "cc -c main.c\n", "next": 13, "eof": False, "size": 13},
        "stderr": {"data": "", "next": 0, "eof": False, "size": 0},
        "truncated": False,
        "stale": False,
    },
    dumped=True,
)
def output(request: dict[str, Any]) -> dict[str, Any]:
    """Return the output of a job from two offsets on.

    The client keeps the offsets: asking again is safe, and many clients may read. With `wait` the answer comes with the
    next news, or empty when the time is over.
    """
    jobs, access, id = services().jobs, caller().access, request["job"]
    found = jobs.output(id, access, request["stdout"], request["stderr"], request["maxBytes"])
    stored = jobs.find(id).stored
    answer = _shown(found, stored, request)
    # The end is news even for a client that has not yet read all output.
    ended = found.seen is not None and found.seen.stdout.ended and found.seen.stderr.ended
    news = ended or (request["until"] == "output" and (answer["stdout"]["data"] or answer["stderr"]["data"]))
    if not news:
        turns().wait(partial(jobs.subscribe, id, access, found.version), request["wait"])
    return answer


@group.endpoint(
    "/wait",
    JobWaitRequest,
    JobInfo,
    action="job.wait",
    reads=True,
    about=("job",),
    raises=REACHING,
    example={"job": JOB, "wait": 25},
    answer=_INFO,
)
def wait(request: dict[str, Any]) -> dict[str, Any]:
    """Wait for the end of a job, at most `wait` seconds, and describe the job."""
    jobs, access, id = services().jobs, caller().access, request["job"]
    followed = jobs.look(id, access)
    if followed.stored.state not in ENDED:
        turns().wait(partial(jobs.subscribe, id, access, followed.last.version), request["wait"])
    stored = followed.stored
    return _info(stored, stale=followed.last.stale, locked=stored.connection in locked_ones([stored.connection]))


@group.endpoint(
    "/info",
    JobRequest,
    JobInfo,
    action="job.info",
    reads=True,
    about=("job",),
    raises=REACHING,
    example={"job": JOB},
    answer=_INFO,
)
def info(request: dict[str, Any]) -> dict[str, Any]:
    """Describe a job, as it is now."""
    followed = services().jobs.look(request["job"], caller().access)
    stored = followed.stored
    return _info(stored, stale=followed.last.stale, locked=stored.connection in locked_ones([stored.connection]))


@group.endpoint(
    "/query",
    JobQueryRequest,
    JobQueryResponse,
    action="job.query",
    reads=True,
    about=("connectionFilter", "categoryFilter", "typeFilter", "states", "name"),
    waits=True,
    example={"connectionFilter": "*", "states": ["running"]},
    answer={"jobs": [_INFO | {"state": "running", "exitCode": None, "ended": None}]},
)
def query(request: dict[str, Any]) -> dict[str, Any]:
    """List the jobs that match. A running job's state is current if a link to its machine is open."""
    filters = [request[name] for name in ("categoryFilter", "connectionFilter", "typeFilter")]
    connections = None if filters == ["*"] * 3 else services().vault.connections.query(*filters)
    at = now()
    wanted = JobFilter(
        connections=connections,
        name=request.get("name"),
        created_after=at - timedelta(seconds=request["maxAge"]) if "maxAge" in request else None,
        created_before=at - timedelta(seconds=request["minAge"]) if "minAge" in request else None,
    )
    works = ((job, Work(job.connection, job.token)) for job in services().vault.jobs.find(wanted))
    found = list(services().authorisation.visible_work(caller(), works))
    asked = services().jobs.refresh(job for job in found if job.state not in ENDED)
    shown = [(asked.get(job.id, job), job.state not in ENDED and job.id not in asked) for job in found]
    states = request.get("states", (*UNDER_WAY, *ENDED))
    hidden = locked_ones(job.connection for job, _ in shown)
    return {
        "jobs": [
            _info(job, stale=stale, locked=job.connection in hidden) for job, stale in shown if job.state in states
        ]
    }


@group.endpoint(
    "/input",
    JobInputRequest,
    has_content=True,
    action="job.input",
    about=("job",),
    raises=[*REACHING, errors.JobFinished, errors.StdinClosed, errors.NoSpace],
    example={"job": JOB, "data": "yes\n", "eof": True},
)
def input(request: dict[str, Any]) -> None:
    """Send more input to a job. The answer comes when the far side has stored the input, even if the command has not
    read it."""
    data = base64.b64decode(request["data"]) if request["encoding"] == "base64" else request["data"].encode()
    services().jobs.input(request["job"], caller().access, data, eof=request["eof"])
    detail(stdinBytes=len(data))


@group.endpoint(
    "/kill",
    JobKillRequest,
    action="job.kill",
    about=("job", "signal"),
    raises=[*REACHING, errors.JobFinished, errors.PermissionDenied, errors.FileOperationFailed],
    example={"job": JOB, "signal": "TERM", "grace": 5},
)
def kill(request: dict[str, Any]) -> None:
    """Send a signal to all processes of a job, and KILL to those that still run after `grace` seconds."""
    services().jobs.kill(request["job"], caller().access, request["signal"], request["grace"])


@group.endpoint(
    "/remove",
    JobRemoveRequest,
    action="job.remove",
    about=("job",),
    raises=[*REACHING, errors.JobRunning, errors.PermissionDenied, errors.FileOperationFailed],
    example={"job": JOB},
)
def remove(request: dict[str, Any]) -> None:
    """Remove a job that has ended, and its files on the far side."""
    services().jobs.remove(request["job"], caller().access, force=request["force"])


def _info(job: StoredJob, *, stale: bool, locked: bool = False) -> dict[str, Any]:
    return vars(job) | {"stale": stale} | ({"command": "null", "locked": True} if locked else {})


def _shown(found: JobOutput, stored: StoredJob, request: Mapping[str, Any]) -> dict[str, Any]:
    seen, told = found.seen, {}
    if found.directory and stored.state == "exited":
        # A client could not send back a directory name that is not UTF-8.
        with suppress(UnicodeDecodeError):
            told["directory"] = found.directory.decode()
    return {
        "state": stored.state,
        "exitCode": stored.exit_code,
        "stdout": _piece(found.stdout, request["stdout"], seen.stdout if seen else None, request),
        "stderr": _piece(found.stderr, request["stderr"], seen.stderr if seen else None, request),
        "truncated": seen is not None and (seen.stdout.truncated or seen.stderr.truncated),
        "stale": found.stale,
        **told,
    }


def _piece(data: bytes, offset: int, seen: JobStream | None, request: Mapping[str, Any]) -> dict[str, Any]:
    data = data[: request["maxBytes"]]
    eof = seen is not None and seen.ended and offset + len(data) >= seen.size
    # The last seen state may be older than the output.
    size = max(offset + len(data), seen.size if seen is not None else 0)
    if request["encoding"] == "base64":
        return {"data": base64.b64encode(data).decode(), "next": offset + len(data), "eof": eof, "size": size}
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final=eof)
    return {"data": text, "next": offset + len(data) - len(decoder.getstate()[0]), "eof": eof, "size": size}
