"""Ends shells that were idle for too long."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from connmgr.errors import ShellBusy
from connmgr.shell.table import Entry, ShellName, ShellTable

logger = logging.getLogger("connmgr.shell")

MAX_INTERVAL_SECONDS = 30.0
"""Longest interval of the checks."""


class IdleCloser:
    """A thread that calls ``end`` for shells of ``table`` that were idle for ``timeout`` seconds; 0 means never."""

    def __init__(self, table: ShellTable, end: Callable[[Entry], None], timeout: float) -> None:
        self._table = table
        self._end = end
        self._timeout = timeout
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="idle-shells", daemon=True)
        if timeout:
            self._thread.start()

    def close(self, timeout: float) -> None:
        """End the thread; wait up to ``timeout`` seconds for a shell that it is ending."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _run(self) -> None:
        while not self._closing.wait(min(MAX_INTERVAL_SECONDS, self._timeout / 4)):
            for name, _, _ in self._table.taken():
                try:
                    self._end_if_idle(name)
                except ShellBusy:
                    # Another thread starts or stops it.
                    continue
                except BaseException:
                    # A plugin may raise any exception, and must not keep the other shells open.
                    logger.exception("The idle shell of connection %s failed to end cleanly.", name.connection)

    def _end_if_idle(self, name: ShellName) -> None:
        with self._table.holding(name, timeout=0.0) as entry:
            if entry.shell is not None and entry.shell.session.idle_seconds > self._timeout:
                self._end(entry)
