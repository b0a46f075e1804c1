"""Starts the command of a request as a job, beside the shell that the request names."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping
from typing import Any

from connmgr.api.account import caller, require_valid
from connmgr.api.command_fields import words_of
from connmgr.api.services import services
from connmgr.engine.session import Session
from connmgr.jobs import launch
from connmgr.vault.jobs import StoredJob
from connmgr.vault.tables import now

OPEN = "open"
"""In the place of a job's standard input, where it is no base64: `/job/input` sends it."""

KEEP_SECONDS = 86400


def start_shell(request: Mapping[str, Any]) -> bool:
    """Start the shell of a request unless it runs, and return whether it had been lost."""
    return services().shells.start(request["connection"], caller().access, request.get("session")).restarted


def begin(request: Mapping[str, Any], *, stdin_open: bool = False) -> tuple[StoredJob, str | None]:
    """Start a job, or find the one that has the request's key; see :meth:`connmgr.jobs.starting.Starts.start`."""
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
    with services().shells.using(job.connection, caller().access, job.session) as session:
        started = services().starts.start(job, _launch(job, request, session), session)
    if caller().ended:
        # It began while the token was revoked, too late for whoever ended what ran by it.
        services().jobs.kill(job.id, caller().access, "KILL", 0)
    require_valid()
    return started


def _key(key: str | None) -> str | None:
    """Return the key of a job; tokens have keys of their own, so that none finds or prevents another's job."""
    return key if key is None or caller().token is None else f"{caller().token}:{key}"


def _launch(job: StoredJob, request: Mapping[str, Any], session: Session) -> launch.Launch:
    command, cwd, stdin = request.get("command"), request.get("cwd"), request.get("stdin", "")
    content = base64.b64decode(stdin) if request["encoding"] == "base64" else stdin.encode()
    return launch.Launch(
        id=job.id,
        text=None if command is None else command.encode(),
        argv=words_of(request),
        surroundings=session.surroundings,
        cwd=None if cwd is None else cwd.encode(),
        environment=request.get("env") or {},
        stdin=launch.OPEN if job.stdin_open else content,
        timeout=request.get("timeout"),
        cap=services().settings.job_output,
        tells_directory=request.get("tellDirectory", False),
    )
