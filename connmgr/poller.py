"""A thread that looks what there is to do: runs, schedules and inventories have one each."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from connmgr.errors import ConnmgrError


class Poller:
    """Calls ``look`` in a thread of its own: when it is poked, and after the seconds that ``look`` has returned.

    If that is None, only a poke wakes it. After an error, which is logged, it looks again after ``retry`` seconds.
    The thread begins with the first poke, so that a daemon without anything of ``subject`` has none; :meth:`close`
    ends it. Safe to use from several threads.
    """

    def __init__(self, subject: str, look: Callable[[], float | None], retry: float, logger: logging.Logger) -> None:
        self._subject, self._look, self._retry, self._logger = subject, look, retry, logger
        self.closing = threading.Event()
        """Set when the daemon stops: ``look`` begins nothing more."""

        self._lock, self._wake = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    def poke(self) -> None:
        """Let it look now."""
        with self._lock:
            self._wake.set()
            if self._thread is None and not self.closing.is_set():
                self._thread = threading.Thread(target=self._run, name=self._subject, daemon=True)
                self._thread.start()

    def close(self, timeout: float = 0.0) -> None:
        """Look no more, and wait at most ``timeout`` seconds for the look that goes on; may be called again."""
        self.closing.set()
        self._wake.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(timeout)

    def _run(self) -> None:
        while not self.closing.is_set():
            # Before the look: a poke in the middle of it lets it look once more.
            self._wake.clear()
            interval: float | None = self._retry
            try:
                interval = self._look()
            except ConnmgrError as error:
                self._logger.warning("The %s wait: %s", self._subject, error.message)
            except Exception:
                # A fault in one must not end all others.
                self._logger.exception("The %s could not be looked at.", self._subject)
            self._wake.wait(interval)
