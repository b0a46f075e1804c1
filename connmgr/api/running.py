"""What all requests that run something have in common: their errors, their commands, and their jobs."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import flask

from connmgr import errors
from connmgr.api.answer import as_result, output_text
from connmgr.api.context import (
    caller,
    cancellation,
    continuation,
    detail,
    ground_of,
    note_forwarding,
    request_context,
)
from connmgr.api.keeping import settle_job, snapshot_before
from connmgr.api.services import services
from connmgr.contract import message
from connmgr.contract.common import CommandOptions, SendsEnvironment, WaitingForInput, WhatRuns, bytes_of
from connmgr.contract.job import ENDED, KEEP_SECONDS, JobStartRequest
from connmgr.contract.shell import FRESH_SESSION, ExecRequest, ExecResponse
from connmgr.engine.envelope import Command
from connmgr.engine.running import Result
from connmgr.engine.state import ShellSnapshot
from connmgr.engine.stdin_pipe import Input
from connmgr.engine.waiting import WaitingWork
from connmgr.errors import InvalidRequest, NoShell
from connmgr.jobs import launch
from connmgr.jobs.jobs import JobOutput
from connmgr.jobs.remote import RemoteJobs, remote_jobs_of
from connmgr.processes import posix_session_of
from connmgr.shares import Held
from connmgr.shell import commands
from connmgr.shell.commands import sandbox_of, state_of, words_of
from connmgr.shell.shells import NO_SHELL
from connmgr.suspension import Suspended
from connmgr.vault.jobs import StoredJob
from connmgr.vault.schema import now

OPENING = (
    errors.UnknownConnection,
    errors.UnknownType,
    errors.SecretLocked,
    errors.HostUnresolved,
    errors.HostRefused,
    errors.HostUnreachable,
    errors.ConnectTimeout,
    errors.HostKeyUnknown,
    errors.HostKeyChanged,
    errors.AuthFailed,
    errors.UnknownSigner,
    errors.SignerUnavailable,
    errors.SignerTimeout,
    errors.SignerRefused,
    errors.CertificateInvalid,
    errors.CertificateExpired,
    errors.SecretUnavailable,
    errors.ElevationFailed,
    errors.TransportUnsupported,
    errors.ChannelRefused,
    errors.UnsupportedShell,
    errors.ShellStartFailed,
    errors.RuntimeUnreachable,
    errors.NoShellInside,
    errors.IntegrityError,
)
"""Errors of opening a connection."""

DETACHING = (
    errors.JobLimit,
    errors.UnknownJob,
    errors.OutputGone,
    errors.NoSpace,
    errors.PermissionDenied,
    errors.TransferFailed,
    errors.FileOperationFailed,
)
"""Errors of commands with ``detachAfter``, in addition to those of commands in the shell."""

EXAMPLE = "f0ec68aa-63f5-405c-b178-9a4454556d6b"

Runs = TypeVar("Runs", bound=WhatRuns)


def with_words(request: Runs) -> Runs:
    """Return a request with the argv of its ``saved`` command, whose arguments then are texts, for the rules.

    :raises UnknownCommand: no saved command has this name.
    :raises InvalidRequest: it does not take these arguments.
    """
    if request.saved is None:
        return request
    command = services().commands.get(request.saved.name)
    expanded = command.expand(request.saved.arguments)
    detail(saved=request.saved.name)
    request_context().recorded = list(expanded.recorded)
    saved = message.replace(request.saved, arguments=expanded.arguments, too_free=command.too_free)
    return message.replace(request, argv=list(expanded.argv), saved=saved)


def command_of(request: CommandOptions, arriving: Input | None = None) -> Command:
    """Return the command of a request, which is that being answered, and perhaps of input still ``arriving``."""
    sender = caller()
    return commands.command_of(request, sender.name, sender.grant, sent_by(request), _memory(), arriving)


def sent_by(request: SendsEnvironment) -> Mapping[str, str] | None:
    """Return what a request sends of its client's environment; None if it says nothing about that.

    :raises connmgr.errors.PolicyDenied: a locale would be read from a file that a token bound by rules chose.
    """
    grant = caller().grant
    if request.send_env and grant is not None and not grant.is_unbound:
        for name, value in request.send_env.items():
            if "/" in value or "%" in value:
                raise errors.PolicyDenied(f"sendEnv.{name}: A caller bound by rules may not send a value with / or %.")
    return request.send_env


def _memory() -> Callable[[], Held] | None:
    """Return what counts the output of a token's command in one session; None for the owner's."""
    holder = caller().holder
    return None if holder is None else partial(Held, services().outputs, holder)


def shown_waiting(work: WaitingWork | None, *, locked: bool = False) -> WaitingForInput | None:
    """Return what work waits for; without its lines if the caller cannot open the connection's secrets."""
    if work is None:
        return None
    lines = [] if locked else list(work.lines)
    return WaitingForInput(since=work.since, lines=lines, secret=work.is_secret, certain=work.is_certain)


def program_of(argv: Sequence[str], environment: Mapping[str, str] | None) -> list[str]:
    """Return the words of an ``argv`` for an endpoint without ``env``; a rule may have set the PATH of its program."""
    path = (environment or {}).get("PATH")
    return [*([] if path is None else ["/usr/bin/env", f"PATH={path}"]), *argv]


def printed_until(timeout: errors.CommandTimeout, encoding: str) -> dict[str, Any]:
    """Return the output of a command until it was killed, as members of its error."""
    printed: dict[str, Any] = {
        "stdout": output_text(timeout.stdout, encoding),
        "stderr": output_text(timeout.stderr, encoding),
    }
    return printed | {"truncated": True} if timeout.truncated else printed


def start_shell(request: ExecRequest) -> bool:
    """Start the shell of a request unless it runs, and return whether it had been lost."""
    return services().shells.start(request.connection, caller().access, request.session, cancellation()).restarted


def start_job(request: JobStartRequest | ExecRequest, *, stdin_open: bool = False) -> tuple[StoredJob, str | None]:
    """Start a job, or find the one with the request's key; see :meth:`connmgr.jobs.jobs.Jobs.start`."""
    ground = ground_of(request.connection)
    named = request if isinstance(request, JobStartRequest) else None
    job = StoredJob(
        id=str(uuid.uuid4()),
        connection=request.connection,
        session=request.session,
        name=named.name if named else None,
        key=_key(named.key if named else None),
        command=json.dumps(request.command if request.argv is None else request.argv),
        stdin_open=stdin_open,
        keep=named.keep if named else KEEP_SECONDS,
        created=now(),
        token=caller().token,
        asked=_asked(named) if named and named.key else None,
    )
    snapshot = snapshot_before(job.connection)
    try:
        with services().shells.using(job.connection, caller().access, job.session) as session:
            beside = RemoteJobs(session.transport, session.helpers)
            note_forwarding(session.transport)
            sent = session.environment.select(sent_by(request) or {})
            surroundings = session.surroundings
            if ground is not None:
                # The job begins in exactly this state, even if the shell moves on.
                ground.require(session.connection_digest, state_of(surroundings))
            plan = _launch(job, request, surroundings, sent)
            started = services().jobs.start(job, plan, beside, cancellation())
    except NoShell:
        if request.argv is None or job.session is not None:
            raise
        started = _start_outside(job, request)
    if snapshot is not None and started[0].id == job.id:
        services().snapshots.begin(job.id, snapshot)
    if caller().ended:
        # The token was revoked during the start, too late for the revocation to find this job.
        services().jobs.kill(job.id, caller().access, "KILL", 0)
    caller().require_valid()
    return started


def _start_outside(job: StoredJob, request: JobStartRequest | ExecRequest) -> tuple[StoredJob, str | None]:
    """Start a program in a container without a shell, from its host.

    :raises NoShell: the container has a shell, which was not started.
    """
    timeout = services().settings.start_timeout
    lease = services().links.lease(job.connection, caller().access, timeout, (), cancellation())
    try:
        outside = lease.link.look_for_shell(timeout)
        if outside is None:
            raise NoShell(NO_SHELL)
        if request.cwd or request.env:
            raise InvalidRequest(
                "The container has no shell that could enter a directory or set variables: omit cwd and env."
            )
        if (ground := ground_of(request.connection)) is not None:
            ground.require(lease.link.target.digest)
        services().idle_links.keep(job.connection, lease)
        # Nothing there could set variables.
        plan = _launch(job, request, None, {})
        plan = replace(plan, argv=outside.words(plan.argv))
        return services().jobs.start(job, plan, remote_jobs_of(lease.link), cancellation())
    finally:
        lease.release()


def _key(key: str | None) -> str | None:
    """Return the key of a job. Each token has its own keys, so that none finds or blocks another's job."""
    return key if key is None or caller().token is None else f"{caller().token}:{key}"


def _asked(request: JobStartRequest) -> bytes:
    """Return what stands for all that a request with a key asks for: with that key it may be repeated, not changed."""
    # Nobody chooses for each request what a client sends of its environment, nor the shell that the command line has
    # for each terminal and cron job: whoever repeats a start may sit at another one. Of a fresh shell it draws the name
    # anew each time.
    beside = ["connection", "elevate", "key", "wait", "sendEnv", "saved"]
    is_fresh = re.fullmatch(FRESH_SESSION, request.session or "") is not None
    if is_fresh or posix_session_of(request.session) is not None:
        beside.append("session")
    asked = {name: value for name, value in message.members(request).items() if name not in beside}
    return services().vault.jobs.digest({**asked, "fresh": True} if is_fresh else asked)


def _launch(
    job: StoredJob,
    request: JobStartRequest | ExecRequest,
    surroundings: ShellSnapshot | None,
    sent: Mapping[str, str],
) -> launch.Launch:
    return launch.Launch(
        id=job.id,
        text=None if request.command is None else request.command.encode(),
        argv=words_of(request.argv),
        surroundings=surroundings,
        cwd=None if request.cwd is None else request.cwd.encode(),
        environment={**sent, **(request.env or {})},
        sandbox=sandbox_of(caller().grant),
        stdin=launch.OPEN if job.stdin_open else bytes_of(request.stdin or "", request.encoding),
        timeout=request.timeout,
        cap=services().settings.job_output,
        tells_directory=isinstance(request, JobStartRequest) and request.tell_directory,
    )


_JOB = "job"
_RESTARTED = "restarted"


def detached(request: ExecRequest, seconds: float) -> flask.Response | ExecResponse:
    """Answer with the command's outcome, or after ``seconds`` with the job as which it runs on, and its output so far.

    :raises connmgr.errors.CommandTimeout: it exceeded its timeout.
    :raises connmgr.errors.ShellLost: its machine was restarted, or its output was removed there.
    """
    memory, encoding = continuation().memory, request.encoding
    if _JOB not in memory:
        # The request runs again after each suspension, and must start neither shell nor job twice.
        memory[_RESTARTED] = request.start and start_shell(request)
        memory[_JOB] = start_job(request)[0].id
    id, access, jobs = memory[_JOB], caller().access, services().jobs
    detail(job=id)
    followed = jobs.look(id, access)
    if not followed.over and continuation().is_younger_than(seconds):
        raise Suspended(partial(jobs.subscribe, id, access, followed.last.version), seconds)
    most = services().settings.max_output
    read = jobs.output(id, access, 0, 0, most)
    # If the machine is unreachable, the output still exists there: answer the error, not an empty output.
    if read.stale or followed.stored.state not in ENDED:
        stdout, stderr = (output_text(text[:most], encoding) for text in (read.stdout, read.stderr))
        waits = shown_waiting(None if read.seen is None else read.seen.waiting)
        return ExecResponse(job=id, stdout=stdout, stderr=stderr, waiting=waits, restarted=memory[_RESTARTED] or None)
    settle_job(id)
    result = _result(read, followed.stored.exit_code, most)
    jobs.reported(id)
    jobs.remove(id, access, force=False)
    if followed.stored.state == "timed_out":
        text = f"The command ran longer than {request.timeout:g} s and was killed."
        timeout = errors.CommandTimeout(text, result.stdout, result.stderr, truncated=result.truncated)
        timeout.details = printed_until(timeout, encoding)
        raise timeout
    if followed.stored.exit_code is None:
        raise errors.ShellLost("The command's machine was restarted, or what it printed was removed there.")
    detail(exitCode=result.exit_code, stdoutBytes=len(result.stdout), stderrBytes=len(result.stderr))
    return as_result(result, encoding, restarted=memory[_RESTARTED])


def _result(read: JobOutput, exit_code: int | None, most: int) -> Result:
    seen = read.seen
    cut = seen is not None and any(stream.truncated or stream.size > most for stream in (seen.stdout, seen.stderr))
    return Result(exit_code or 0, read.stdout[:most], read.stderr[:most], cut)
