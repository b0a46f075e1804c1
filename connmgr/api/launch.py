"""Starts the command of a request as a job, beside the shell that the request names."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from connmgr.api.account import caller, cancellation, note_forwarding, require_valid
from connmgr.api.command_fields import sent_by, words_of
from connmgr.api.services import services
from connmgr.engine.state import ShellSnapshot
from connmgr.errors import InvalidRequest, NoShell
from connmgr.jobs import launch
from connmgr.jobs.remote import RemoteJobs, remote_jobs_of
from connmgr.rights.command_rules import ground_of
from connmgr.shell.grounds import state_of
from connmgr.vault.jobs import StoredJob
from connmgr.vault.tables import now

OPEN = "open"
"""The value of `stdin` (no base64) that announces later input by `/job/input`."""

KEEP_SECONDS = 86400


def start_shell(request: Mapping[str, Any]) -> bool:
    """Start the shell of a request unless it runs, and return whether it had been lost."""
    shells = services().shells
    return shells.start(request["connection"], caller().access, request.get("session"), cancellation()).restarted


def begin(request: Mapping[str, Any], *, stdin_open: bool = False) -> tuple[StoredJob, str | None]:
    """Start a job, or find the one with the request's key; see :meth:`connmgr.jobs.jobs.Jobs.start`."""
    ground = ground_of(request)
    job = StoredJob(
        id=str(uuid.uuid4()),
        connection=request["connection"],
        session=request.get("session"),
        name=request.get("name"),
        key=_key(request.get("key")),
        command=json.dumps(request["argv"] if "argv" in request else request["command"]),
        stdin_open=stdin_open,
        keep=request.get("keep", KEEP_SECONDS),
        created=now(),
        token=caller().token,
    )
    try:
        with services().shells.using(job.connection, caller().access, job.session) as session:
            beside = RemoteJobs(session.transport, session.helpers)
            note_forwarding(session.transport)
            sent = session.environment.select(sent_by(request) or {})
            surroundings = session.surroundings
            if ground is not None:
                # The job begins in exactly this state, even if the shell moves on.
                ground.require(session.way, state_of(surroundings))
            given = _launch(job, request, surroundings, sent)
            started = services().jobs.start(job, given, beside, cancellation())
    except NoShell:
        if "argv" not in request or job.session is not None:
            raise
        started = _begun_outside(job, request)
    if caller().ended:
        # The token was revoked during the start, too late for the revocation to find this job.
        services().jobs.kill(job.id, caller().access, "KILL", 0)
    require_valid()
    return started


def _begun_outside(job: StoredJob, request: Mapping[str, Any]) -> tuple[StoredJob, str | None]:
    """Start a program in a container without a shell, from its host.

    :raises NoShell: the container has a shell, which was not started.
    """
    timeout = services().settings.start_timeout
    lease = services().links.lease(job.connection, caller().access, timeout, (), cancellation())
    try:
        outside = lease.link.look_for_shell(timeout)
        if outside is None:
            raise NoShell("No shell session is running on this connection; start it first.")
        if request.get("cwd") or request.get("env"):
            raise InvalidRequest(
                "The container has no shell that could enter a directory or set variables: omit cwd and env."
            )
        if (ground := ground_of(request)) is not None:
            ground.require(lease.link.target.digest)
        services().kept.keep(job.connection, lease)
        # Nothing there could set variables.
        given = _launch(job, request, None, {})
        given = replace(given, argv=outside.words(given.argv))
        return services().jobs.start(job, given, remote_jobs_of(lease.link), cancellation())
    finally:
        lease.release()


def _key(key: str | None) -> str | None:
    """Return the key of a job. Each token has its own keys, so that none finds or blocks another's job."""
    return key if key is None or caller().token is None else f"{caller().token}:{key}"


def _launch(
    job: StoredJob, request: Mapping[str, Any], surroundings: ShellSnapshot | None, sent: Mapping[str, str]
) -> launch.Launch:
    command, cwd, stdin = request.get("command"), request.get("cwd"), request.get("stdin", "")
    content = base64.b64decode(stdin) if request["encoding"] == "base64" else stdin.encode()
    return launch.Launch(
        id=job.id,
        text=None if command is None else command.encode(),
        argv=words_of(request),
        surroundings=surroundings,
        cwd=None if cwd is None else cwd.encode(),
        environment={**sent, **(request.get("env") or {})},
        stdin=launch.OPEN if job.stdin_open else content,
        timeout=request.get("timeout"),
        cap=services().settings.job_output,
        tells_directory=request.get("tellDirectory", False),
    )
