"""The table of the connections' shells."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from connmgr.cancellation import NEVER, Cancellation
from connmgr.engine.fair_lock import FairLock
from connmgr.errors import SessionLimit, ShellBusy
from connmgr.plugin import Deadline
from connmgr.shares import refused
from connmgr.shell.shell import Shell

MAX_SHELLS = 16
"""Most shells of one connection, including those that are being started."""


MAX_GAVE_WAY = 1000
"""Most shells that gave way and are remembered; then the oldest is forgotten."""


class ShellName(NamedTuple):
    """A connection and the name of one of its shells; ``session`` is None for the connection's own shell."""

    connection: str
    session: str | None = None


@dataclass
class Entry:
    """The place of one shell; ``lock`` is held while it is started or stopped.

    ``stale`` says that the connection was changed or removed after its data was read for the shell. A stale shell is
    never returned; the thread that holds its entry ends it. ``lost`` says that a shell of this name was lost, and none
    was started since.
    """

    lock: FairLock = field(default_factory=FairLock)
    shell: Shell | None = None
    stale: bool = False
    lost: bool = False
    holder: str | None = None
    """Whose share of the connection's shells it counts for: a token's id, or None for the owner's."""


class ShellTable:
    """An entry for each shell that runs or is being started. Safe to use from several threads.

    ``timeout`` is the longest wait in seconds for an entry that another thread holds.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._lock = threading.Lock()
        self._entries: dict[str, dict[str | None, Entry]] = {}
        self._gave_way: dict[ShellName, None] = {}

    @contextlib.contextmanager
    def holding(
        self,
        name: ShellName,
        timeout: float | None = None,
        cancellation: Cancellation = NEVER,
        *,
        make: bool = False,
        holder: str | None = None,
    ) -> Iterator[Entry]:
        """Hold the entry of a shell. Drop it afterwards if it is empty, unless a shell was lost there.

        If there is no entry, ``make`` adds one, which counts for ``holder``; otherwise an empty entry outside the table
        is held.
        :raises ShellBusy: another thread holds it for longer than ``timeout`` seconds, by default the table's.
        :raises connmgr.errors.CommandCancelled: it was cancelled while another thread held the entry.
        :raises SessionLimit: one would be added, and the connection has :data:`MAX_SHELLS`, or the holder its share.
        """
        deadline = Deadline(self._timeout if timeout is None else timeout)
        while True:
            entry = self._made(name, holder) if make else self._entry(name)
            if entry is None:
                yield Entry()
                return
            try:
                entry.lock.acquire(deadline.left(), cancellation)
            except TimeoutError:
                raise ShellBusy("The connection's shell is being started or stopped; try again.") from None
            try:
                # A shell that is started in an entry that was dropped meanwhile would never be found.
                if self._entry(name) is entry:
                    try:
                        yield entry
                    finally:
                        self._drop_empty(name, entry)
                    return
            finally:
                entry.lock.release()

    def _entry(self, name: ShellName) -> Entry | None:
        with self._lock:
            return self._entries.get(name.connection, {}).get(name.session)

    def _made(self, name: ShellName, holder: str | None) -> Entry:
        with self._lock:
            entries = self._entries.setdefault(name.connection, {})
            if name.session not in entries and len(entries) >= MAX_SHELLS:
                left = [one for one, entry in entries.items() if entry.lost and not entry.lock.taken]
                if not left:
                    raise SessionLimit(f"The connection has {MAX_SHELLS} shells; stop one of them first.")
                del entries[left[0]]
            if name.session not in entries:
                held = [one.holder for one in entries.values() if not one.lost or one.lock.taken]
                if (why := refused(MAX_SHELLS, holder, held)) is not None:
                    raise SessionLimit(f"Of the connection's {MAX_SHELLS} shells {why}; stop one of them first.")
                entries[name.session] = Entry(lost=name in self._gave_way, holder=holder)
                self._gave_way.pop(name, None)
            return entries[name.session]

    def remember_lost(self, name: ShellName) -> None:
        """Note that a shell ended unasked: it gave way to another, was idle for long, or its connection was changed.

        Whoever uses the name next is told that its shell was lost.
        """
        with self._lock:
            self._gave_way[name] = None
            if len(self._gave_way) > MAX_GAVE_WAY:
                del self._gave_way[next(iter(self._gave_way))]

    def _drop_empty(self, name: ShellName, entry: Entry) -> None:
        with self._lock:
            if entry.shell is None and not entry.lost:
                del self._entries[name.connection][name.session]
                if not self._entries[name.connection]:
                    del self._entries[name.connection]

    def mark_stale(self, connections: Iterable[str]) -> list[ShellName]:
        """Make the shells of ``connections`` stale, including those that are being started; return their names."""
        marked = []
        with self._lock:
            for connection in connections:
                for session, entry in self._entries.get(connection, {}).items():
                    entry.stale = True
                    marked.append(ShellName(connection, session))
        return marked

    def peek(self, name: ShellName) -> Shell | None:
        """Return the shell of that name, if it runs and is not stale."""
        entry = self._entry(name)
        return entry.shell if entry and not entry.stale else None

    def taken(self, connection: str | None = None) -> list[tuple[ShellName, Entry, Shell]]:
        """Return all entries with a shell, or those of one connection."""
        with self._lock:
            return [
                (ShellName(one, session), entry, entry.shell)
                for one, entries in self._entries.items()
                if connection in {None, one}
                for session, entry in entries.items()
                if entry.shell
            ]
