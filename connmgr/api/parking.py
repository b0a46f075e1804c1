"""Requests that wait for news without a thread: the server is given one back, and hands it in again when there is news.

A view that finds nothing yet calls :meth:`Turns.wait`, which raises :class:`Parked`. The view runs again from its
beginning, with all checks, when there is news or its time is over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import flask

TURNS = "connmgr.turns"
"""The member of the WSGI environment with the :class:`Turns` of a request."""

Subscribe = Callable[[Callable[[], None]], Callable[[], None]]
"""Has its argument called at the next news, at once if it has come; returns what takes that back."""


class Parked(Exception):
    """A request waits for what ``subscribe`` tells of, at most until the time ``until`` of ``time.monotonic``."""

    def __init__(self, subscribe: Subscribe, until: float) -> None:
        super().__init__("a request waits")
        self.until = until
        self._subscribe = subscribe
        self._lock = threading.Lock()
        self._cancel: Callable[[], None] | None = None
        self._over = False

    def begin(self, resume: Callable[[], None]) -> None:
        """Have ``resume`` called at the next news, unless :meth:`end` was called."""
        cancel = self._subscribe(resume)
        with self._lock:
            self._cancel = cancel
            over = self._over
        if over:
            cancel()

    def end(self) -> None:
        """Wait no longer."""
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
            news.wait(max(0.0, self.until - time.monotonic()))
        finally:
            self.end()


@dataclass
class Turns:
    """What stays with a request from one of its turns to the next."""

    resumes: bool = True
    """Whether the server hands the request in again; otherwise its thread waits."""

    began: float = field(default_factory=time.monotonic)
    kept: dict[str, Any] = field(default_factory=dict)
    parked: Parked | None = None
    """Set by a turn that ended without an answer."""

    def wait(self, subscribe: Subscribe, seconds: float) -> None:
        """Return only when the request came ``seconds`` ago or earlier.

        :raises Parked: it came later, and waits for what ``subscribe`` tells of.
        """
        until = self.began + seconds
        if time.monotonic() < until:
            raise Parked(subscribe, until)


def turns() -> Turns:
    """Return the turns of the request that is being answered."""
    environ = flask.request.environ
    if TURNS not in environ:
        environ[TURNS] = Turns(resumes=False)
    found: Turns = environ[TURNS]
    return found
