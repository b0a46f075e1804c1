"""Where the daemon keeps the shells of its connections."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from connmgr.errors import ShellBusy
from connmgr.shell.opening import Shell


@dataclass
class Slot:
    """The place of one connection's shell; ``lock`` is held while it is started or stopped."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    shell: Shell | None = None


class Slots:
    """A slot for each connection. Safe to use from several threads.

    ``patience`` is for how many seconds a slot that another thread holds is waited for.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._lock = threading.Lock()
        self._slots: dict[str, Slot] = {}

    @contextlib.contextmanager
    def holding(self, connection: str) -> Iterator[Slot]:
        """Hold the slot of ``connection``, which is made where there is none.

        :raises ShellBusy: another thread holds it for too long.
        """
        deadline = time.monotonic() + self._patience
        while True:
            with self._lock:
                slot = self._slots.setdefault(connection, Slot())
            if not slot.lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
                raise ShellBusy("The connection's shell is being started or stopped; try again.")
            try:
                # Who waited for a slot that was given up meanwhile would start a shell that nobody finds.
                if self._slots.get(connection) is slot:
                    yield slot
                    return
            finally:
                slot.lock.release()

    def give_up(self, connection: str) -> None:
        """Drop the slot of a connection, which the caller holds."""
        with self._lock:
            del self._slots[connection]

    def peek(self, connection: str) -> Shell | None:
        """Return the connection's shell, if it has one."""
        with self._lock:
            slot = self._slots.get(connection)
        return slot.shell if slot else None

    def taken(self) -> list[tuple[str, Slot, Shell]]:
        """Return the connections that have shells, with both."""
        with self._lock:
            return [(connection, slot, slot.shell) for connection, slot in self._slots.items() if slot.shell]
