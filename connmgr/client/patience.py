"""Repeats requests that get no answer, up to a limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from connmgr.client.errors import ClientError, Unreachable

RETRY_SECONDS = 0.25
"""Pause between two attempts, unless the daemon asks for another."""

Answer = TypeVar("Answer")

Silence = Callable[[ClientError], None]
"""Called with the error when a silence begins."""


class Patience:
    """Repeats a request until it is answered, or the silence lasts longer than ``seconds``.

    ``passing`` returns whether an error counts as silence; any other is raised at once.
    """

    def __init__(self, seconds: float, silence: Silence | None, passing: Callable[[ClientError], bool]) -> None:
        self._seconds = seconds
        self._silence = silence
        self._passing = passing
        self._since: float | None = None

    def ask(self, request: Callable[[], Answer]) -> Answer:
        """Return the result of ``request``, which is called again during a silence.

        :raises ClientError: the last one.
        """
        while True:
            try:
                return request()
            except ClientError as error:
                if not self._passing(error):
                    raise
                self.bear(error)

    def bear(self, error: ClientError) -> None:
        """Wait a moment after ``error``, or raise it if the silence has lasted too long."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            if self._silence is not None:
                self._silence(error)
        left = self._since + self._seconds - now
        if left <= 0:
            raise error
        time.sleep(min(error.retry_after or RETRY_SECONDS, left))

    def heard(self) -> None:
        """Note an answer, which ends the silence."""
        self._since = None


def may_pass(error: ClientError) -> bool:
    """Whether ``error`` may go away by itself, for a request that may be repeated even if it was carried out."""
    # A restarted daemon writes a new auth file, and refuses the old content.
    return isinstance(error, Unreachable) or error.code == "invalid_credential" or _is_refused_for_now(error)


def has_done_nothing(error: ClientError) -> bool:
    """Whether ``error`` may go away by itself, and its request was certainly not carried out."""
    if isinstance(error, Unreachable):
        return not error.sent
    return error.code == "no_space" or _is_refused_for_now(error)


def _is_refused_for_now(error: ClientError) -> bool:
    return error.status == 503
