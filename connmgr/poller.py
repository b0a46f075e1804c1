"""Threads that look what there is to do: for runs, schedules and inventories, and for what ends with time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from connmgr.errors import ConnmgrError

TOLD_SECONDS = 60.0
"""Interval of telling again what still cannot be done."""


class Trouble:
    """Logs that something cannot be done: as it begins, as its reason changes, each minute, and when it is over.

    What is tried again each second would otherwise fill the log, and nothing in it would say when that ended. For one
    thread.
    """

    def __init__(self, logger: logging.Logger, text: str, over: str) -> None:
        self._logger, self._text, self._over = logger, text, over
        self._reason: str | None = None
        self._told = 0.0

    def note(self, reason: str) -> None:
        """Log the text, in which ``reason`` follows, unless that was done just now."""
        if reason != self._reason or time.monotonic() >= self._told + TOLD_SECONDS:
            self._logger.warning("%s: %s", self._text, reason)
            self._reason, self._told = reason, time.monotonic()

    def end(self) -> None:
        """It can be done; log that if it could not before."""
        if self._reason is not None:
            self._logger.warning("%s", self._over)
            self._reason = None


class Poller:
    """Calls ``look`` in a thread of its own: when it is poked, and after the seconds that ``look`` has returned.

    If that is None, only a poke wakes it. After an error, which goes to ``trouble``, it looks again after ``retry``
    seconds. The thread begins with the first poke or :meth:`begin`, so that a daemon without anything of ``subject``
    has none; :meth:`close` ends it. Safe to use from several threads.
    """

    def __init__(
        self,
        subject: str,
        look: Callable[[], float | None],
        retry: float,
        logger: logging.Logger,
        trouble: Trouble | None = None,
    ) -> None:
        self._subject, self._look, self._retry, self._logger = subject, look, retry, logger
        self.closing = threading.Event()
        """Set when the daemon stops: ``look`` begins nothing more."""

        self._lock, self._wake = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._trouble = trouble or Trouble(logger, f"The {subject} wait", f"The {subject} go on.")

    def poke(self) -> None:
        """Let it look now."""
        self._wake.set()
        self.begin()

    def begin(self) -> None:
        """Let it look from now on, for the first time after ``retry`` seconds."""
        with self._lock:
            if self._thread is None and not self.closing.is_set():
                self._thread = threading.Thread(target=self._run, name=self._subject, daemon=True)
                self._thread.start()

    def close(self, timeout: float | None) -> None:
        """Look no more, and wait for the look that goes on, at most ``timeout`` seconds; may be called again."""
        self.closing.set()
        self._wake.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(timeout)

    def _run(self) -> None:
        interval: float | None = self._retry
        while True:
            self._wake.wait(interval)
            if self.closing.is_set():
                return
            # Before the look: a poke in the middle of it lets it look once more.
            self._wake.clear()
            interval = self._retry
            try:
                interval = self._look()
                self._trouble.end()
            except ConnmgrError as error:
                self._trouble.note(error.message)
            except BaseException:
                # A plugin may raise any exception, and a fault in one must not end all others.
                self._logger.exception("The %s could not be looked at.", self._subject)
