"""Prepares the place of a call: a running shell, a directory, and a command that is started only once."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from connmgr.client import Client, ClientError, Unreachable
from connmgr.client.jobs import Job
from connmgr.client.retry import RETRY_SECONDS, has_done_nothing, may_pass
from connmgr.mcp.bridge import AgentShell, Bridge
from connmgr.mcp.call import Call

NO_SHELL = frozenset({"no_shell", "shell_lost"})
LIMITS = frozenset({"session_limit", "job_limit", "terminal_limit"})
"""Errors after which something must be closed first."""

SPARE_SECONDS = 2.0
"""With fewer seconds left, a request is not repeated."""

Answer = TypeVar("Answer")


def path_in(bridge: Bridge, place: AgentShell, path: str) -> str:
    """Return ``path`` from the directory in which the last command in ``place`` ended."""
    directory = bridge.directory(place)
    if directory is None or path.startswith(("/", "~")):
        return path
    return posixpath.join(directory, path) if path else directory


def in_shell(call: Call, client: Client, place: AgentShell, request: Callable[[], Answer]) -> Answer:
    """Return the result of ``request``, with the shell of ``place`` running.

    A request that the daemon has not carried out is repeated while there is time.
    """

    def running() -> None:
        call.bridge.start_shell(client, place)

    # The shell is started first: a request without a shell could use up its approval.
    persist(call, running, may_pass)
    try:
        return persist(call, request, has_done_nothing)
    except ClientError as error:
        if error.code not in NO_SHELL:
            raise
    # The shell was lost or stopped meanwhile.
    persist(call, running, may_pass)
    return persist(call, request, has_done_nothing)


def persist(call: Call, request: Callable[[], Answer], passing: Callable[[ClientError], bool]) -> Answer:
    """Return the result of ``request``, repeated after ``passing`` errors while there is time."""
    while True:
        try:
            return request()
        except ClientError as error:
            if not passing(error) or error.code in LIMITS:
                raise
            bear(call, error)


def bear(call: Call, error: ClientError) -> None:
    """Wait a moment after ``error``; raise it if no time is left."""
    pause = error.retry_after or RETRY_SECONDS
    if call.left() < pause + SPARE_SECONDS or call.cancelled.wait(pause):
        raise error


def start(call: Call, client: Client, place: AgentShell, options: Mapping[str, Any]) -> Job:
    """Start a job once: if an earlier call lost the answer to its start, the same call finds that job.

    ``options`` are those of :meth:`connmgr.client.jobs.Jobs.start`.
    """
    fingerprint = json.dumps([place.connection, place.session, options], sort_keys=True, default=str)
    key = call.bridge.key_of(fingerprint, call.cancelled)

    def request() -> Job:
        return client.jobs.start(place.connection, session=place.session, key=key, name=call.bridge.session, **options)

    try:
        job = in_shell(call, client, place, lambda: persist(call, request, may_pass))
    except Unreachable as error:
        if error.sent:
            raise
        call.bridge.settled(key)
        raise
    except ClientError:
        call.bridge.settled(key)
        raise
    if not call.cancelled.is_set():
        call.bridge.settled(key)
    # Otherwise the answer is lost, and a repeated call must find this job.
    return job
