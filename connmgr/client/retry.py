"""Repeats failed requests, up to a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from connmgr.client.errors import ClientError, Unreachable

RETRY_SECONDS = 0.25
"""Pause between two attempts, unless the daemon asks for another."""

Answer = TypeVar("Answer")

OnRetry = Callable[[ClientError], None]
"""Called with the error when retries begin."""


class Retry:
    """Repeats a request until it succeeds, or has failed for ``timeout`` seconds.

    ``passing`` returns whether an error is worth a retry; any other is raised at once.
    """

    def __init__(self, timeout: float, on_retry: OnRetry | None, passing: Callable[[ClientError], bool]) -> None:
        self._timeout = timeout
        self._on_retry = on_retry
        self._passing = passing
        self._since: float | None = None

    def call(self, request: Callable[[], Answer]) -> Answer:
        """Return the result of ``request``, which may be called several times.

        :raises ClientError: the last one.
        """
        while True:
            try:
                return request()
            except ClientError as error:
                if not self._passing(error):
                    raise
                self.pause(error)

    def pause(self, error: ClientError) -> None:
        """Wait before the next attempt, or raise ``error`` if the time is over."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            if self._on_retry is not None:
                self._on_retry(error)
        left = self._since + self._timeout - now
        if left <= 0:
            raise error
        time.sleep(min(error.retry_after or RETRY_SECONDS, left))

    def succeeded(self) -> None:
        """Start the time limit again at the next error."""
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
