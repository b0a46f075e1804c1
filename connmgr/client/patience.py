"""How long a client tolerates missing answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from connmgr.client.errors import ClientError, Unreachable

RETRY_SECONDS = 0.25
"""Time between two attempts, unless the daemon names another."""

Answer = TypeVar("Answer")

Silence = Callable[[ClientError], None]
"""Called once whenever a silence begins, with its error."""


class Patience:
    """Repeats requests, until there was only silence for ``seconds``.

    ``passing`` tells which errors count as silence; all others are raised at once.
    """

    def __init__(self, seconds: float, silence: Silence | None, passing: Callable[[ClientError], bool]) -> None:
        self._seconds = seconds
        self._silence = silence
        self._passing = passing
        self._since: float | None = None

    def ask(self, request: Callable[[], Answer]) -> Answer:
        """Return what ``request`` returns, called again as long as patience lasts.

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
        """Wait a moment after ``error``, or raise it if the patience is exhausted."""
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
        """Note an answer: the next silence is a new one."""
        self._since = None


def may_pass(error: ClientError) -> bool:
    """Whether ``error`` may go away by itself, for a request that may be repeated even if it was carried out."""
    # A restarted daemon writes a new auth file; the old content is refused.
    return isinstance(error, Unreachable) or error.code == "invalid_credential" or _is_refused_for_now(error)


def has_done_nothing(error: ClientError) -> bool:
    """Whether ``error`` may go away by itself, and the request that it answers was certainly not carried out."""
    if isinstance(error, Unreachable):
        return not error.sent
    return error.code == "no_space" or _is_refused_for_now(error)


def _is_refused_for_now(error: ClientError) -> bool:
    return error.status == 503
