"""Repeated requests: after which errors a request is sent again, and what makes that worth it.

A request is always repeated whole, from its beginning, and never because its answer was lost while it may have been
executed. There are two reasons:

- The error is *transient*: it may go away by itself. :class:`Retry` waits a moment and tries again, up to a time limit.
- Somebody had something to do first: log in, trust a host's key, type a password, approve. A *remedy* does it and says
  whether it succeeded. The daemon refuses such requests before anything runs, so that repeating them is safe.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from connmgr.client.errors import ClientError, Unreachable

RETRY_SECONDS = 0.25
"""Pause between two attempts, unless the daemon asks for another."""

RETRY_TIMEOUT = 60.0
"""Default of ``retry_timeout`` in seconds; a restart of the daemon is shorter."""

Answer = TypeVar("Answer")

OnRetry = Callable[[ClientError], None]
"""Called with the error when retries begin."""

Remedy = Callable[[ClientError, bytes], bool]
"""Gets the error and the body of a refused request; returns whether to repeat the request."""


def is_transient(error: ClientError) -> bool:
    """Whether ``error`` may go away by itself; its request may have been executed, and must do no harm twice."""
    # A restarted daemon writes a new auth file, and refuses the old content.
    return isinstance(error, Unreachable) or error.code == "invalid_credential" or error.status == 503


def is_safe_to_retry(error: ClientError) -> bool:
    """Whether ``error`` is transient, and its request was certainly not executed."""
    if isinstance(error, Unreachable):
        return not error.sent
    # 503 is the daemon's refusal before it begins: no slot, no room, no lock. After no_space nothing was written.
    return error.code == "no_space" or error.status == 503


def repeated(request: Callable[[], Answer], remedied: Callable[[ClientError], bool]) -> Answer:
    """Return the result of ``request``, which is called again as often as an error is ``remedied``.

    :raises ClientError: the first error that is not.
    """
    while True:
        try:
            return request()
        except ClientError as error:
            if not remedied(error):
                raise


async def repeated_task(
    request: Callable[[], Awaitable[Answer]], remedied: Callable[[ClientError], Awaitable[bool]]
) -> Answer:
    """Return the result of ``request`` as :func:`repeated`, in an event loop."""
    while True:
        try:
            return await request()
        except ClientError as error:
            if not await remedied(error):
                raise


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
        """Return the result of ``request``, which may be called several times; raises the last error."""
        return repeated(request, lambda error: self._passing(error) and self.pause(error))

    def pause(self, error: ClientError) -> bool:
        """Wait before the next attempt, and return True; raise ``error`` if the time is over."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            if self._on_retry is not None:
                self._on_retry(error)
        left = self._since + self._timeout - now
        if left <= 0:
            raise error
        time.sleep(min(error.retry_after or RETRY_SECONDS, left))
        return True

    def succeeded(self) -> None:
        """Start the time limit again at the next error."""
        self._since = None
