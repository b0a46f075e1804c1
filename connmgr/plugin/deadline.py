"""One moment by which everything that serves an operation must be done."""

from __future__ import annotations

import time

LEAST_SECONDS = 0.1
"""What a step gets that begins when the time of its operation is nearly over: it then fails for a reason of its own."""


class Deadline:
    """The moment ``seconds`` from now, by the clock that nobody sets (``time.monotonic``)."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self, least: float = 0.0) -> float:
        """Return the seconds left, or ``least`` where that is more."""
        return max(least, self._end - time.monotonic())

    def within(self, seconds: float) -> Deadline:
        """Return the deadline ``seconds`` from now, or this one where it comes first."""
        return Deadline(min(seconds, self.left()))

    @property
    def passed(self) -> bool:
        """Whether it is over."""
        return time.monotonic() >= self._end
