"""Stops the daemon in limited time, on request of a signal or a client."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

FINISH_SECONDS = 5.0
"""Longest wait for running requests to end by themselves."""

CLOSE_SECONDS = 2.5
"""Longest wait for shells, and for the requests that wait for them, to end."""

WATCHDOG_SECONDS = 9.0
"""Longest time to stop; then the process exits in any case."""


_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Stop:
    """Whether the daemon is to stop; ``wake`` wakes the thread that checks this."""

    def __init__(self) -> None:
        self.requested = False
        self.wake: Callable[[], None] = _nothing
        for number in _SIGNALS:
            signal.signal(number, self.request)

    def request(self, *_: Any) -> None:
        """Request the stop. A signal handler may call this, so it takes no lock."""
        self.requested = True
        self.wake()


def ignore_signals() -> None:
    """Ignore further signals: at exit the interpreter removes the handlers before the process ends."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _nothing() -> None: ...


def guard(last_wish: Callable[[], None]) -> None:
    """Call ``last_wish`` and exit with 0 after :data:`WATCHDOG_SECONDS`, even if the daemon hangs."""

    def exit_now() -> None:
        try:
            last_wish()
        finally:
            os._exit(0)

    watchdog = threading.Timer(WATCHDOG_SECONDS, exit_now)
    watchdog.daemon = True
    watchdog.start()
