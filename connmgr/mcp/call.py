"""One call of a tool, as its work and its approvals see it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
from mcp.server.mcpserver import Context
from pydantic import BaseModel

from connmgr.client import Client
from connmgr.mcp.bridge import AgentShell, Bridge

ANSWER_SECONDS = 49.0
"""A call is answered after so many seconds in any case, because clients may give up after 60."""

PROGRESS_SECONDS = 5.0
WORK_SECONDS = 47.0
"""Seconds for all requests of a call, so that its thread ends in time for an answer with the known result."""


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
