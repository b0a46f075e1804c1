"""One deadline for all steps of an operation."""

from __future__ import annotations

import time

LEAST_SECONDS = 0.1
"""The least time of a step that begins near its operation's deadline, so that it fails for its own reason."""


class Deadline:
    """The moment ``seconds`` from now, on the monotonic clock (``time.monotonic``)."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self, least: float = 0.0) -> float:
        """Return the seconds left, at least ``least``."""
        return max(least, self._end - time.monotonic())

    def within(self, seconds: float) -> Deadline:
        """Return the deadline ``seconds`` from now, or this one if it is earlier."""
        return Deadline(min(seconds, self.left()))

    @property
    def passed(self) -> bool:
        """Whether it is past."""
        return time.monotonic() >= self._end
