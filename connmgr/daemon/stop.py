"""The end of the daemon: asked for by a signal or a client, and over in bounded time."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

FINISH_SECONDS = 5.0
"""How long requests that run may take to end by themselves."""

CLOSE_SECONDS = 2.5
"""How long shells may take to end, and the requests that wait for them."""

WATCHDOG_SECONDS = 9.0
"""When the process ends in any case."""


_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Stop:
    """Whether the daemon is to stop. ``wake`` ends the wait of whoever looks at it."""

    def __init__(self) -> None:
        self.requested = False
        self.wake: Callable[[], None] = _nothing
        for number in _SIGNALS:
            signal.signal(number, self.request)

    def request(self, *_: Any) -> None:
        """Ask for the end; may be called from a signal handler, and so takes no lock."""
        self.requested = True
        self.wake()


def ignore_signals() -> None:
    """Have no further signal take effect: the interpreter, as it ends, gives handlers up before it is gone itself."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _nothing() -> None:
    """Wake nobody: nobody waits yet."""


def guard(last_wish: Callable[[], None]) -> None:
    """Have the process exit with 0 in :data:`WATCHDOG_SECONDS`, whatever holds it up, after calling ``last_wish``."""

    def exit_now() -> None:
        try:
            last_wish()
        finally:
            os._exit(0)

    watchdog = threading.Timer(WATCHDOG_SECONDS, exit_now)
    watchdog.daemon = True
    watchdog.start()
