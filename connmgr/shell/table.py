"""Where the daemon keeps the shells of its connections."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from connmgr.errors import ShellBusy
from connmgr.shell.shell import Shell


@dataclass
class Entry:
    """The place of one connection's shell; ``lock`` is held while it is started or stopped."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    shell: Shell | None = None


class ShellTable:
    """An entry for each connection. Safe to use from several threads.

    ``patience`` is for how many seconds an entry that another thread holds is waited for.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}

    @contextlib.contextmanager
    def holding(self, connection: str) -> Iterator[Entry]:
        """Hold the entry of ``connection``, which is made where there is none.

        :raises ShellBusy: another thread holds it for too long.
        """
        deadline = time.monotonic() + self._patience
        while True:
            with self._lock:
                entry = self._entries.setdefault(connection, Entry())
            if not entry.lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
                raise ShellBusy("The connection's shell is being started or stopped; try again.")
            try:
                # Who waited for an entry that was given up meanwhile would start a shell that nobody finds.
                if self._entries.get(connection) is entry:
                    yield entry
                    return
            finally:
                entry.lock.release()

    def give_up(self, connection: str) -> None:
        """Drop the entry of a connection, which the caller holds."""
        with self._lock:
            del self._entries[connection]

    def peek(self, connection: str) -> Shell | None:
        """Return the connection's shell, if it has one."""
        with self._lock:
            entry = self._entries.get(connection)
        return entry.shell if entry else None

    def taken(self) -> list[tuple[str, Entry, Shell]]:
        """Return the connections that have shells, with both."""
        with self._lock:
            return [(connection, entry, entry.shell) for connection, entry in self._entries.items() if entry.shell]
