"""One moment by which everything that serves an operation must be done."""

from __future__ import annotations

import time

from connmgr.errors import ConnectTimeout


class Deadline:
    """The moment ``seconds`` from now."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds left, not less than 0."""
        return max(0.0, self._end - time.monotonic())

    def expired(self, subject: str, doing: str) -> ConnectTimeout:
        """Return the error for ``subject`` not having answered in time while ``doing`` something."""
        return ConnectTimeout(f"{subject} did not answer within {self.seconds:g} seconds, while {doing}.")
