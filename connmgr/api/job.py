"""``/job``: commands that run on the remote host independently of client and daemon."""

from __future__ import annotations

import base64
import codecs
import json
from contextlib import suppress
from datetime import timedelta
from functools import partial

from connmgr import errors
from connmgr.api.connection_data import locked_ones
from connmgr.api.context import caller, continuation, detail
from connmgr.api.endpoint import Group
from connmgr.api.keeping import settle_job
from connmgr.api.running import EXAMPLE, OPENING, shown_waiting, start_job, with_words
from connmgr.api.services import services
from connmgr.contract.common import bytes_of
from connmgr.contract.job import (
    ENDED,
    OPEN,
    UNDER_WAY,
    JobInfo,
    JobInputRequest,
    JobKillRequest,
    JobOrphan,
    JobOrphansRequest,
    JobOrphansResponse,
    JobOutputRequest,
    JobOutputResponse,
    JobQueryRequest,
    JobQueryResponse,
    JobRemoveRequest,
    JobRequest,
    JobStartRequest,
    JobStartResponse,
    JobWaitRequest,
    StreamResponse,
)
from connmgr.contract.message import message_of
from connmgr.engine.waiting import WaitingWork
from connmgr.jobs.jobs import CachedJob, JobOutput
from connmgr.jobs.remote import JobStream
from connmgr.rights.actions import Action, always
from connmgr.rights.authorisation import Work
from connmgr.suspension import Suspended
from connmgr.vault.jobs import JobFilter, StoredJob
from connmgr.vault.schema import now

JOB = "3f0e4f0a-8f3c-4b5e-9c55-0a51c0f8d0b7"

REACHING = (*OPENING, errors.UnknownJob, errors.ShellLost, errors.TransferFailed, errors.ShellBusy)
"""Errors of endpoints that ask the remote host of a job."""

group = Group(
    "job",
    "Commands that run on the remote host by themselves, in the directory and with the variables of a running "
    "shell. A job survives its client, its shell, its link and the daemon. Every daemon of the vault can find "
    "it again.",
)

orphans_group = Group("orphans", "Jobs on machines that the vault does not know.", prefix="/job")

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
    has_content=True,
    action=Action("job.start", runs=True, in_shell=always),
    about=("connection", "session", "command", "argv", "name"),
    selects=with_words,
    raises=[
        *REACHING,
        errors.UnknownCommand,
        errors.KeyReused,
        errors.NoShell,
        errors.NoSuchDirectory,
        errors.CommandCancelled,
        errors.PermissionDenied,
        errors.NoSpace,
        errors.JobLimit,
    ],
    waits=True,
    example={"connection": EXAMPLE, "command": "make -j4 all", "name": "nightly"},
    answer={"job": JOB},
)
def start(request: JobStartRequest) -> JobStartResponse:
    """Start a job, and answer at once.

    The job runs in the directory and with the variables of the named shell. It changes neither, and does not wait for
    the shell's commands. In a container without a shell (`no_shell_inside`), a job with an `argv` runs in the image's
    directory and environment; its files are then kept on the container's host.
    """
    started, warning = start_job(request, stdin_open=request.stdin == OPEN and request.encoding != "base64")
    detail(job=started.id)
    return JobStartResponse(job=started.id, warning=warning)


@group.endpoint(
    "/output",
    suspends=True,
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
)
def output(request: JobOutputRequest) -> JobOutputResponse:
    """Return the output of a job from two offsets on.

    The client keeps the offsets: asking again is safe, and many clients may read. With `wait` the answer comes with the
    next news, or empty when the time is over.
    """
    jobs, access, id = services().jobs, caller().access, request.job
    read = jobs.output(id, access, request.stdout, request.stderr, request.max_bytes)
    stored = jobs.find(id).stored
    answer = _output(read, stored, request)
    # The end is news even for a client that has not yet read all output.
    ended = read.seen is not None and read.seen.stdout.ended and read.seen.stderr.ended
    news = (
        ended
        or (request.until == "output" and (answer.stdout.data or answer.stderr.data))
        or (request.until == "input" and answer.waiting is not None)
    )
    if not news and continuation().is_younger_than(request.wait):
        raise Suspended(partial(jobs.subscribe, id, access, read.version), request.wait)
    _note_end(stored)
    return answer


@group.endpoint(
    "/wait",
    suspends=True,
    reads=True,
    about=("job",),
    raises=REACHING,
    example={"job": JOB, "wait": 25},
    answer=_INFO,
)
def wait(request: JobWaitRequest) -> JobInfo:
    """Wait for the end of a job, at most `wait` seconds, and describe the job."""
    jobs, access, id = services().jobs, caller().access, request.job
    followed = jobs.look(id, access)
    if followed.stored.state not in ENDED and continuation().is_younger_than(request.wait):
        raise Suspended(partial(jobs.subscribe, id, access, followed.last.version), request.wait)
    stored = followed.stored
    _note_end(stored)
    return _shown(followed)


@group.endpoint("/info", reads=True, about=("job",), raises=REACHING, example={"job": JOB}, answer=_INFO)
def info(request: JobRequest) -> JobInfo:
    """Describe a job, as it is now."""
    followed = services().jobs.look(request.job, caller().access)
    stored = followed.stored
    _note_end(stored)
    return _shown(followed)


@group.endpoint(
    "/query",
    reads=True,
    about=("connectionFilter", "categoryFilter", "typeFilter", "states", "name"),
    waits=True,
    example={"connectionFilter": "*", "states": ["running"]},
    answer={"jobs": [_INFO | {"state": "running", "exitCode": None, "ended": None}]},
)
def query(request: JobQueryRequest) -> JobQueryResponse:
    """List the jobs that match. A running job's state is current if a link to its machine is open."""
    filters = (request.category_filter, request.connection_filter, request.type_filter)
    chosen = filters != ("*", "*", "*") or request.where is not None
    connections = services().vault.connections.query(*filters, where=request.where) if chosen else None
    at = now()
    wanted = JobFilter(
        connections=connections,
        name=request.name,
        created_after=None if request.max_age is None else at - timedelta(seconds=request.max_age),
        created_before=None if request.min_age is None else at - timedelta(seconds=request.min_age),
    )
    works = ((job, Work(job.connection, job.token)) for job in services().vault.jobs.find(wanted))
    visible = list(services().authorisation.visible_work(caller(), works))
    current = services().jobs.refresh(job for job in visible if job.state not in ENDED)
    jobs = [(current.get(job.id, job), job.state not in ENDED and job.id not in current) for job in visible]
    states = (*UNDER_WAY, *ENDED) if request.states is None else request.states
    hidden = locked_ones(job.connection for job, _ in jobs)
    return JobQueryResponse(
        jobs=[
            _info(job, services().jobs.waiting(job), stale=stale, locked=job.connection in hidden)
            for job, stale in jobs
            if job.state in states
        ]
    )


@group.endpoint(
    "/input",
    has_content=True,
    about=("job",),
    raises=[*REACHING, errors.JobFinished, errors.StdinClosed, errors.NoSpace],
    example={"job": JOB, "data": "yes\n", "eof": True},
)
def input(request: JobInputRequest) -> None:
    """Send more input to a job. The answer comes when the remote host has stored the input, even if the command has not
    read it."""
    data = bytes_of(request.data, request.encoding)
    services().jobs.input(request.job, caller().access, data, eof=request.eof)
    detail(stdinBytes=len(data))


@group.endpoint(
    "/kill",
    about=("job", "signal"),
    raises=[*REACHING, errors.JobFinished, errors.PermissionDenied, errors.FileOperationFailed],
    example={"job": JOB, "signal": "TERM", "grace": 5},
)
def kill(request: JobKillRequest) -> None:
    """Send a signal to all processes of a job, and KILL to those that still run after `grace` seconds."""
    services().jobs.kill(request.job, caller().access, request.signal, request.grace)


@group.endpoint(
    "/remove",
    about=("job",),
    raises=[*REACHING, errors.JobRunning, errors.PermissionDenied, errors.FileOperationFailed],
    example={"job": JOB},
)
def remove(request: JobRemoveRequest) -> None:
    """Remove a job that has ended, and its files on the remote host."""
    services().jobs.remove(request.job, caller().access, force=request.force)


@orphans_group.endpoint(
    "/orphans",
    about=("connection",),
    raises=[
        *OPENING,
        errors.ShellLost,
        errors.TransferFailed,
        errors.PermissionDenied,
        errors.FileOperationFailed,
        errors.ShellBusy,
    ],
    waits=True,
    example={"connection": EXAMPLE, "remove": True, "minAge": 86400},
    answer={"orphans": [{"job": JOB, "state": "exited", "age": 172800, "removed": True}]},
)
def orphans(request: JobOrphansRequest) -> JobOrphansResponse:
    """List the jobs on a machine that the vault does not know, and optionally remove those that do not run.

    Such jobs stay after a restored backup or a removed connection. Jobs of other vaults that use the same account are
    listed and removed too: nothing shows to which vault a job belongs.
    """
    orphans = services().orphans.find(request.connection, caller().access, request.min_age, remove=request.remove)
    detail(orphans=len(orphans), orphansRemoved=sum(orphan.removed for orphan in orphans))
    return JobOrphansResponse(orphans=[message_of(JobOrphan, orphan) for orphan in orphans])


def _note_end(job: StoredJob) -> None:
    """Add to the details of this request how the job ended, if it is seen to have ended."""
    if job.state in ENDED:
        settle_job(job.id)
    if job.exit_code is not None:
        services().jobs.reported(job.id)
        detail(exitCode=job.exit_code)


def _shown(job: CachedJob) -> JobInfo:
    stored, seen = job.stored, job.last.seen
    locked = stored.connection in locked_ones([stored.connection])
    return _info(stored, None if seen is None else seen.waiting, stale=job.last.stale, locked=locked)


def _info(job: StoredJob, waits: WaitingWork | None, *, stale: bool, locked: bool) -> JobInfo:
    return message_of(
        JobInfo,
        job,
        key=job.key and job.key.removeprefix(f"{job.token}:"),
        command=None if locked else json.loads(job.command),
        locked=locked or None,
        stale=stale,
        waiting=shown_waiting(waits, locked=locked),
    )


def _output(read: JobOutput, stored: StoredJob, request: JobOutputRequest) -> JobOutputResponse:
    seen, directory = read.seen, None
    if read.directory and stored.state == "exited":
        # A client could not send back a directory name that is not UTF-8.
        with suppress(UnicodeDecodeError):
            directory = read.directory.decode()
    return JobOutputResponse(
        state=stored.state,
        exit_code=stored.exit_code,
        stdout=_piece(read.stdout, request.stdout, seen.stdout if seen else None, request),
        stderr=_piece(read.stderr, request.stderr, seen.stderr if seen else None, request),
        truncated=seen is not None and (seen.stdout.truncated or seen.stderr.truncated),
        stale=read.stale,
        waiting=shown_waiting(None if seen is None else seen.waiting),
        directory=directory,
    )


def _piece(data: bytes, offset: int, seen: JobStream | None, request: JobOutputRequest) -> StreamResponse:
    data = data[: request.max_bytes]
    eof = seen is not None and seen.ended and offset + len(data) >= seen.size
    # The last seen state may be older than the output.
    size = max(offset + len(data), seen.size if seen is not None else 0)
    if request.encoding == "base64":
        return StreamResponse(data=base64.b64encode(data).decode(), next=offset + len(data), eof=eof, size=size)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    # What is left in the decoder begins a character; the next piece starts with it.
    text = decoder.decode(data, final=eof)
    return StreamResponse(data=text, next=offset + len(data) - len(decoder.getstate()[0]), eof=eof, size=size)
