"""One call of a tool, as its work and its approvals see it: its time, its clients, and what its requests need.

A request needs a running shell, and may be repeated while there is time; a command is started only once.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
from mcp.server.mcpserver import Context
from pydantic import BaseModel

from connmgr.client import Client, ClientError, Unreachable
from connmgr.client.jobs import Job
from connmgr.client.repeat import RETRY_SECONDS, is_safe_to_retry, is_transient, repeated
from connmgr.client.sessions import TouchWatch
from connmgr.mcp.bridge import AgentShell, Bridge

ANSWER_SECONDS = 49.0
"""A call is answered after so many seconds in any case, because clients may give up after 60."""

PROGRESS_SECONDS = 5.0
LOOK_SECONDS = 1.0
"""A call that takes longer may wait for a touch."""

WORK_SECONDS = 47.0
"""Seconds for all requests of a call, so that its thread ends in time for an answer with the known result."""

NO_SHELL = frozenset({"no_shell", "shell_lost"})
LIMITS = frozenset({"session_limit", "job_limit", "terminal_limit"})
"""Errors after which something must be closed first."""

SPARE_SECONDS = 2.0
"""With fewer seconds left, a request is not repeated."""

Answer = TypeVar("Answer")


@dataclass
class Call:
    """One call of the tool ``name`` over ``bridge``; ``cancelled`` is set when nobody waits for it any more.

    ``preview`` is what the call would change, for the person who is asked, if its arguments do not tell. ``known`` is
    the answer if the work takes too long; ``news`` are reported while it runs.
    """

    bridge: Bridge
    context: Context[Any, Any]
    name: str
    arguments: Mapping[str, Any]
    cancelled: threading.Event = field(default_factory=threading.Event)
    began: float = field(default_factory=time.monotonic)
    preview: str | None = None
    known: BaseModel | None = None
    news: str = "The daemon is asked."

    def left(self) -> float:
        """Return how many seconds are left for requests, some of which a person may have taken."""
        return 0.0 if self.cancelled.is_set() else max(0.0, self.began + WORK_SECONDS - time.monotonic())

    def pause(self, error: ClientError) -> bool:
        """Wait a moment after ``error``; return whether time for another request is left."""
        seconds = error.retry_after or RETRY_SECONDS
        return self.left() >= seconds + SPARE_SECONDS and not self.cancelled.wait(seconds)

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        """Lend a client to the calling thread; its requests end with the call."""
        with self.bridge.client() as client:
            client.answer_by(self.began + WORK_SECONDS)
            yield client

    def place(self, system: str, session: str | None = None) -> AgentShell:
        """Return the place of ``system`` and ``session``; raises as :meth:`Bridge.place`."""
        with self.client() as client:
            return self.bridge.place(client, system, session)

    async def tell_progress(self) -> None:
        """Report every few seconds to the client that the call is under way, with :attr:`news`."""
        while True:
            await anyio.sleep(PROGRESS_SECONDS)
            await self.context.report_progress(time.monotonic() - self.began, message=self.news)

    async def look_for_touches(self) -> None:
        """Make it the news when a login waits for the touch of a security key."""
        await anyio.sleep(LOOK_SECONDS)
        with self.bridge.client() as client:
            watch = TouchWatch(client, self._touched, waited=time.monotonic() - self.began)
        try:
            await anyio.sleep_forever()
        finally:
            watch.over()

    def _touched(self, name: str) -> None:
        self.news = f"The login to {name} waits for a person to touch a security key: tell whoever has it."


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
    persist(call, running, is_transient)
    try:
        return persist(call, request, is_safe_to_retry)
    except ClientError as error:
        if error.code not in NO_SHELL:
            raise
    # The shell was lost or stopped meanwhile.
    persist(call, running, is_transient)
    return persist(call, request, is_safe_to_retry)


def persist(call: Call, request: Callable[[], Answer], passing: Callable[[ClientError], bool]) -> Answer:
    """Return the result of ``request``, repeated after ``passing`` errors while there is time."""
    return repeated(request, lambda error: passing(error) and error.code not in LIMITS and call.pause(error))


def start(call: Call, client: Client, place: AgentShell, options: Mapping[str, Any]) -> Job:
    """Start a job once: if an earlier call lost the answer to its start, the same call finds that job.

    ``options`` are those of :meth:`connmgr.client.jobs.Jobs.start`.
    """
    fingerprint = json.dumps([place.connection, place.session, options], sort_keys=True, default=str)
    key = call.bridge.key_of(fingerprint, call.cancelled)

    def request() -> Job:
        return client.jobs.start(place.connection, session=place.session, key=key, name=call.bridge.session, **options)

    try:
        job = in_shell(call, client, place, lambda: persist(call, request, is_transient))
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
