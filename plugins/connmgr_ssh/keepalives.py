"""One thread that asks silent hosts for a sign of life, for all links.

If each link's own thread woke for that, thousands of threads would: those that become due together wait for the
interpreter together, and each that waits wakes at every switch of threads. So the links' threads sleep until bytes
come, and this one goes from link to link.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from typing import Protocol


class Watched(Protocol):
    """A link, as the thread needs it."""

    def look_after(self) -> float | None:
        """Ask a peer that has been silent for an interval, without waiting; return the seconds until the next look.

        None: the link has ended, or was given up just now.
        """


class KeepAlives:
    """The links to look after. Its thread begins with the first of them, and ends with the last."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._links: dict[int, Watched] = {}
        self._numbers = itertools.count()
        # The time at which each is due. Numbers of links that have ended stay until then.
        self._due: list[tuple[float, int]] = []
        self._runs = False

    def watch(self, link: Watched, seconds: float) -> int:
        """Look after ``link``, for the first time in so many seconds; return its number here."""
        with self._changed:
            number = next(self._numbers)
            self._links[number] = link
            heapq.heappush(self._due, (time.monotonic() + seconds, number))
            self._changed.notify()
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._run, name="ssh keep-alives", daemon=True).start()
            return number

    def forget(self, number: int) -> None:
        """Look no more after a link, which has ended."""
        with self._changed:
            self._links.pop(number, None)
            if not self._links:
                self._due.clear()
                self._changed.notify()

    def _run(self) -> None:
        while (due := self._next()) is not None:
            number, link = due
            seconds = link.look_after()
            del link, due
            with self._changed:
                if seconds is None:
                    self._links.pop(number, None)
                elif number in self._links:
                    heapq.heappush(self._due, (time.monotonic() + seconds, number))

    def _next(self) -> tuple[int, Watched] | None:
        """Wait until a link is due, and return it with its number; None if there is none any more."""
        with self._changed:
            while self._links:
                left = self._due[0][0] - time.monotonic()
                if left > 0:
                    self._changed.wait(left)
                elif (link := self._links.get(number := heapq.heappop(self._due)[1])) is not None:
                    return number, link
            self._due.clear()
            self._runs = False
            return None
