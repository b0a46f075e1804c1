"""Where the daemon keeps the shells of its connections."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from connmgr.errors import ShellBusy
from connmgr.plugin import Deadline
from connmgr.shell.shell import Shell


@dataclass
class Entry:
    """The place of one connection's shell; ``lock`` is held while it is started or stopped.

    ``stale`` says that the connection was changed or removed after its data was read for the shell. Nobody finds a
    stale shell; the thread that holds its entry ends it.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    shell: Shell | None = None
    stale: bool = False


class ShellTable:
    """An entry for each connection that has a shell, or whose shell is being started. Safe to use from several threads.

    ``patience`` is for how many seconds an entry that another thread holds is waited for.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}

    @contextlib.contextmanager
    def holding(self, connection: str, patience: float | None = None) -> Iterator[Entry]:
        """Hold the entry of ``connection``, which is made where there is none, and dropped where it is left empty.

        :raises ShellBusy: another thread holds it for longer than ``patience`` seconds, by default the table's.
        """
        deadline = Deadline(self._patience if patience is None else patience)
        while True:
            with self._lock:
                entry = self._entries.setdefault(connection, Entry())
            if not entry.lock.acquire(timeout=deadline.left()):
                raise ShellBusy("The connection's shell is being started or stopped; try again.")
            try:
                # Who waited for an entry that was dropped meanwhile would start a shell that nobody finds.
                if self._entries.get(connection) is entry:
                    try:
                        yield entry
                    finally:
                        self._drop_empty(connection, entry)
                    return
            finally:
                entry.lock.release()

    def _drop_empty(self, connection: str, entry: Entry) -> None:
        with self._lock:
            if entry.shell is None:
                del self._entries[connection]

    def mark_stale(self, connections: Iterable[str]) -> list[str]:
        """Let nobody find the shells of ``connections``, those that are being started included; return who has any."""
        with self._lock:
            marked = {connection: entry for connection in connections if (entry := self._entries.get(connection))}
            for entry in marked.values():
                entry.stale = True
        return list(marked)

    def peek(self, connection: str) -> Shell | None:
        """Return the connection's shell, if it has one that is not stale."""
        with self._lock:
            entry = self._entries.get(connection)
        return entry.shell if entry and not entry.stale else None

    def taken(self) -> list[tuple[str, Entry, Shell]]:
        """Return the connections that have shells, with both."""
        with self._lock:
            return [(connection, entry, entry.shell) for connection, entry in self._entries.items() if entry.shell]
