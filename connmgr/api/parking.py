"""Requests that wait for news without a thread: the server takes a request back, and calls the application again.

A view that finds nothing yet calls :meth:`Turns.wait`, which raises :class:`Parked`. The view runs again from its
beginning, with all checks, when there is news or its time is over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from connmgr.shares import waiting

TURNS = "connmgr.turns"
"""The key in the WSGI environment for the :class:`Turns` of a request."""

Subscribe = Callable[[Callable[[], None]], Callable[[], None]]
"""Calls its argument at the next news, or at once if there is news already; returns a function that cancels that."""


class Parked(Exception):
    """A request waits for the news of ``subscribe``, at most until ``until``, a time of ``time.monotonic``."""

    def __init__(self, subscribe: Subscribe, until: float) -> None:
        super().__init__("a request waits")
        self.until = until
        self._subscribe = subscribe
        self._lock = threading.Lock()
        self._cancel: Callable[[], None] | None = None
        self._over = False

    def begin(self, resume: Callable[[], None]) -> None:
        """Call ``resume`` at the next news, unless :meth:`end` was called."""
        cancel = self._subscribe(resume)
        with self._lock:
            self._cancel = cancel
            over = self._over
        if over:
            cancel()

    def end(self) -> None:
        """Stop waiting."""
        with self._lock:
            self._over = True
            cancel = self._cancel
        if cancel is not None:
            cancel()

    def wait(self) -> None:
        """Wait in this thread."""
        news = threading.Event()
        self.begin(news.set)
        try:
            with waiting():
                news.wait(max(0.0, self.until - time.monotonic()))
        finally:
            self.end()


@dataclass
class Turns:
    """The part of a request that lasts from turn to turn."""

    resumes: bool = True
    """Whether the server calls the application again; otherwise its thread waits."""

    began: float = field(default_factory=time.monotonic)
    kept: dict[str, Any] = field(default_factory=dict)
    parked: Parked | None = None
    """Set by a turn that ended without an answer."""

    def wait(self, subscribe: Subscribe, seconds: float) -> None:
        """Return if the request is at least ``seconds`` old; otherwise raise Parked until the news of ``subscribe``."""
        until = self.began + seconds
        if time.monotonic() < until:
            raise Parked(subscribe, until)
