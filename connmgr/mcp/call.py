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

from connmgr.client import Client, ClientError, Unreachable
from connmgr.client.jobs import Job
from connmgr.client.repeat import RETRY_SECONDS, is_safe_to_retry, is_transient, repeated
from connmgr.client.sessions import TouchWatch
from connmgr.mcp.bridge import AgentShell, Bridge
from connmgr.mcp.outcome import Answer

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

Result = TypeVar("Result")


@dataclass
class Call:
    """One call of the tool ``name`` over ``bridge``; ``cancelled`` is set when nobody waits for it any more.

    ``preview`` is what the call would change, for the person who is asked, if its arguments do not tell.
    ``partial_answer`` is the answer if the work takes too long; ``news`` are reported while it runs.
    """

    bridge: Bridge
    context: Context[Any, Any]
    name: str
    arguments: Mapping[str, Any]
    cancelled: threading.Event = field(default_factory=threading.Event)
    began: float = field(default_factory=time.monotonic)
    preview: str | None = None
    partial_answer: Answer | None = None
    news: str = "Waiting for the daemon."

    def left(self) -> float:
        """Return how many seconds are left for requests, some of which a person may have taken."""
        return 0.0 if self.cancelled.is_set() else max(0.0, self.began + WORK_SECONDS - time.monotonic())

    def pause(self, error: ClientError) -> bool:
        """Wait a moment after ``error``; return whether time for another request is left."""
        seconds = error.retry_after or RETRY_SECONDS
        return self.left() >= seconds + SPARE_SECONDS and not self.cancelled.wait(seconds)

    def waits(self, seconds: float, longest: float) -> Iterator[float]:
        """Yield how long each request may wait, at most ``longest``: once, and again until ``seconds`` are over."""
        until = time.monotonic() + min(seconds, self.left())
        while True:
            wait = max(0.0, min(longest, until - time.monotonic()))
            yield wait
            if wait == 0 or self.cancelled.is_set():
                return

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        """Lend a client to the calling thread; its requests end with the call."""
        with self.bridge.client() as client:
            # A thread cannot be ended from outside: without this it would wait on after its call is over.
            client.answer_by(self.began + WORK_SECONDS)
            yield client

    @contextlib.contextmanager
    def shell(self, system: str, session: str | None = None) -> Iterator[CallShell]:
        """Lend a client as :meth:`client`, with the shell of ``system`` and ``session``; raises as Bridge.place."""
        with self.client() as client:
            yield CallShell(self, client, self.bridge.place(client, system, session))

    def persist(self, request: Callable[[], Result], passing: Callable[[ClientError], bool]) -> Result:
        """Return the result of ``request``, repeated after ``passing`` errors while there is time."""
        return repeated(request, lambda error: passing(error) and error.code not in LIMITS and self.pause(error))

    def start_once(self, fingerprint: str, start: Callable[[str], Result]) -> Result:
        """Return what ``start`` has started with the key that it gets.

        If an earlier call with this fingerprint lost the answer to its start, the key is that call's, by which the
        daemon finds what was started then.
        """
        key = self.bridge.key_of(fingerprint, self.cancelled)
        try:
            started = start(key)
        except ClientError as error:
            # After a lost answer the key stays: nobody knows whether the daemon has started it.
            if not (isinstance(error, Unreachable) and error.sent):
                self.bridge.settled(key)
            raise
        if not self.cancelled.is_set():
            self.bridge.settled(key)
        # Otherwise the answer is lost, and a repeated call must find what was started.
        return started

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


class CallShell:
    """The shell that one call works in, with a ``client`` for the calling thread."""

    def __init__(self, call: Call, client: Client, place: AgentShell) -> None:
        self.call, self.client, self.place = call, client, place
        self.connection, self.session = place.connection, place.session

    def path(self, path: str) -> str:
        """Return ``path`` from the directory in which the last command in this shell ended."""
        directory = self.call.bridge.directory(self.place)
        if directory is None or path.startswith(("/", "~")):
            return path
        return posixpath.join(directory, path) if path else directory

    def ask(self, request: Callable[[], Result]) -> Result:
        """Return the result of ``request``, with the shell running.

        A request that the daemon has not carried out is repeated while there is time.
        """
        # The shell is started first: a request without a shell could use up its approval.
        self._start()
        try:
            return self.call.persist(request, is_safe_to_retry)
        except ClientError as error:
            if error.code not in NO_SHELL:
                raise
        # The shell was lost or stopped meanwhile.
        self._start()
        return self.call.persist(request, is_safe_to_retry)

    def _start(self) -> None:
        self.call.persist(lambda: self.call.bridge.start_shell(self.client, self.place), is_transient)

    def start_job(self, options: Mapping[str, Any]) -> Job:
        """Start a job once; ``options`` are those of :meth:`connmgr.client.jobs.Jobs.start`."""
        name = self.call.bridge.session

        def start(key: str) -> Job:
            def request() -> Job:
                return self.client.jobs.start(self.connection, session=self.session, key=key, name=name, **options)

            return self.ask(lambda: self.call.persist(request, is_transient))

        fingerprint = json.dumps([self.connection, self.session, options], sort_keys=True, default=str)
        return self.call.start_once(fingerprint, start)
