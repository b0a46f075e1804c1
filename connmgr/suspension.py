"""Requests that wait for news without a thread.

A request that has to wait, for the end of a job or for a person's approval, raises :class:`Suspended`, which names the
news that it waits for, and how old it may become by waiting. No thread waits with it: the server puts the request
aside, and at the news, or when its time is over, *resumes* it, which means that it runs again from its beginning, with
all checks of its sender and its rights. What has to outlast a run is in its :class:`Continuation`.

Two things may be waited for, and in both running again is safe because nothing was done that is done twice:

- an approval, which is asked for before the view of any endpoint has begun; with rules over paths it is asked for in
  the view, before the first file is changed;
- in the view of an endpoint that is declared as ``suspends``, news of something that the view only reads. A view that
  begins something, as ``/shell/exec`` begins a job with ``detachAfter``, puts its id into the continuation's ``memory``
  first, and finds it there when it runs again.

:class:`connmgr.api.endpoint.Endpoint` enforces the declaration: any other view that raises :class:`Suspended` is a
fault, and answers ``internal``. This is not a repeat: a client *repeats* a request that was answered, as another
request; a suspended request has no answer yet.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from connmgr.computing import waiting

Subscribe = Callable[[Callable[[], None]], Callable[[], None]]
"""Calls its argument at the next news, or at once if there is news already; returns a function that cancels that."""


class Suspended(Exception):
    """A request waits for the news of ``subscribe``, at most until it is ``seconds`` old."""

    def __init__(self, subscribe: Subscribe, seconds: float) -> None:
        super().__init__(f"a request waits for news, for {seconds:g} s")
        self.seconds = seconds
        self._subscribe = subscribe
        self._lock = threading.Lock()
        self._cancel: Callable[[], None] | None = None
        self._over = False

    def begin(self, resume: Callable[[], None]) -> None:
        """Call ``resume`` at the next news, unless :meth:`end` was called."""
        # Not under the lock: news that is there already calls `resume` at once, which calls end() in this thread.
        cancel = self._subscribe(resume)
        with self._lock:
            self._cancel = cancel
            over = self._over
        if over:
            # end() came while subscribing, and had nothing to cancel yet.
            cancel()

    def end(self) -> None:
        """Stop waiting; calling it again does nothing more."""
        with self._lock:
            self._over = True
            cancel = self._cancel
        if cancel is not None:
            cancel()


@dataclass
class Continuation:
    """The part of a request that lasts from run to run."""

    resumes: bool = True
    """Whether the server resumes the request; otherwise its thread waits for the news."""

    began: float = field(default_factory=time.monotonic)
    """The ``time.monotonic`` at which the request came."""

    memory: dict[str, Any] = field(default_factory=dict)
    """What later runs need of earlier ones: each room that uses it has keys of its own."""

    suspended: Suspended | None = None
    """Why the last run ended without an answer; None if it did not."""

    def is_younger_than(self, seconds: float) -> bool:
        """Whether the request may still wait if it may become ``seconds`` old."""
        return time.monotonic() < self.began + seconds

    def deadline_of(self, suspended: Suspended) -> float:
        """Return the ``time.monotonic`` until which the request waits as ``suspended``."""
        return self.began + suspended.seconds

    def wait(self, suspended: Suspended) -> None:
        """Wait as ``suspended`` in this thread, for a request that the server does not resume."""
        news = threading.Event()
        suspended.begin(news.set)
        try:
            with waiting():
                news.wait(max(0.0, self.deadline_of(suspended) - time.monotonic()))
        finally:
            suspended.end()
