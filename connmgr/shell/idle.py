"""Ends shells that nobody needs any more, and finds the one that gives way to a new one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from typing import NamedTuple

from connmgr import processes
from connmgr.errors import ShellBusy
from connmgr.shell.shell import Shell
from connmgr.shell.table import Entry, ShellName, ShellTable

logger = logging.getLogger("connmgr.shell")

MAX_INTERVAL_SECONDS = 30.0
"""Longest interval of the checks."""

UNSEEN_SECONDS = 600.0
"""Idleness after which a shell of a command line is ended whose POSIX session cannot be seen from here."""


class _Use(NamedTuple):
    """How much a shell is needed: ``over`` says that the terminal, or the like, to which it belongs has ended."""

    over: bool
    idle: float
    name: ShellName


def unneeded(shells: Collection[tuple[ShellName, Shell]], timeout: float) -> list[ShellName]:
    """Return the idle ones of ``shells`` to end: after ``timeout`` seconds (0: never), or with their POSIX session.

    The last shell of a connection stays even then, because the link ends with it: a command that cron runs each hour
    need not log in each time.
    """
    ended, left = list[ShellName](), dict[str, int]()
    for name, _ in shells:
        left[name.connection] = left.get(name.connection, 0) + 1
    uses = sorted((_use(name, shell) for name, shell in shells), key=lambda use: use[:2], reverse=True)
    for over, idle, name in uses:
        expired = bool(timeout) and idle > timeout
        if idle and (expired or (over and left[name.connection] > 1)):
            ended.append(name)
            left[name.connection] -= 1
    return ended


def dispensable(shells: Collection[tuple[ShellName, Shell]]) -> list[ShellName]:
    """Return those of a connection's ``shells`` that may end for a new one: the command line's idle ones.

    The least needed comes first.
    """
    uses = [_use(name, shell) for name, shell in shells if processes.posix_session_of(name.session)]
    return [use.name for use in sorted(uses, key=lambda use: use[:2], reverse=True) if use.idle]


def _use(name: ShellName, shell: Shell) -> _Use:
    own, idle = processes.posix_session_of(name.session), shell.session.idle_seconds
    over = own is not None and (idle > UNSEEN_SECONDS if own.is_over is None else own.is_over)
    return _Use(over, idle, name)


class IdleCloser:
    """A thread that calls ``end`` for the shells of ``table`` that nobody needs, as :func:`unneeded` says."""

    def __init__(self, table: ShellTable, end: Callable[[Entry], None], timeout: float) -> None:
        self._table = table
        self._end = end
        self._timeout = timeout
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="idle-shells", daemon=True)
        self._thread.start()

    def close(self, timeout: float) -> None:
        """End the thread; wait up to ``timeout`` seconds for a shell that it is ending."""
        self._closing.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        interval = min(MAX_INTERVAL_SECONDS, self._timeout / 4) if self._timeout else MAX_INTERVAL_SECONDS
        while not self._closing.wait(interval):
            for name in self._unneeded():
                try:
                    self._end_if_idle(name)
                except ShellBusy:
                    # Another thread starts or stops it.
                    continue
                except BaseException:
                    # A plugin may raise any exception, and must not keep the other shells open.
                    logger.exception("The idle shell of connection %s failed to end cleanly.", name.connection)

    def _unneeded(self) -> list[ShellName]:
        return unneeded([(name, shell) for name, _, shell in self._table.taken()], self._timeout)

    def _end_if_idle(self, name: ShellName) -> None:
        with self._table.holding(name, timeout=0.0) as entry:
            # It may have been used meanwhile, or be another one.
            if entry.shell is not None and name in self._unneeded():
                self._end(entry)
                self._table.remember_lost(name)
