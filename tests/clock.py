"""A clock that tests move."""

from __future__ import annotations


class Clock:
    """It stands for the module ``time`` or for the function ``monotonic``; a test assigns to ``now``."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        """Return the time in seconds."""
        return self.now

    __call__ = monotonic
