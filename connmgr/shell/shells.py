"""The running shells: one per connection, and further named ones."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from connmgr.cancellation import NEVER, Cancellation
from connmgr.engine.session import Session
from connmgr.engine.start import ShellInfo
from connmgr.engine.surroundings import Surroundings
from connmgr.errors import NoShell, OperationError, SessionLimit, ShellBusy, VaultUnavailable
from connmgr.links.chain import Target
from connmgr.links.table import LinkTable
from connmgr.plugin import Deadline
from connmgr.registry import Registry
from connmgr.secrets.principals import Access
from connmgr.shell.idle import IdleCloser, dispensable
from connmgr.shell.opener import PROBE_SECONDS, Opener
from connmgr.shell.shell import Shell
from connmgr.shell.status import ShellStatus, found_inside, state_of, status_of
from connmgr.shell.table import Entry, ShellName, ShellTable
from connmgr.vault import Connection, Vault
from connmgr.vault.admission import Outdated, admitted
from connmgr.vault.elevated import base_of

logger = logging.getLogger("connmgr.shell")


class Started(NamedTuple):
    """A running shell; ``restarted`` says that the last one was lost, with its directory and variables."""

    info: ShellInfo
    restarted: bool


class Shells:
    """Starts, finds and ends shell sessions. Safe to use from several threads.

    A shell is named by its connection and ``session``, which is None for the connection's default shell. ``max_output``
    is in bytes per stream, the timeouts are in seconds; ``idle_timeout`` 0 keeps idle sessions for ever. ``orphans`` is
    the file that names local shells; see :class:`Opener`.
    """

    def __init__(
        self,
        vault: Vault,
        registry: Registry,
        links: LinkTable,
        *,
        max_output: int,
        idle_timeout: float,
        start_timeout: float,
        orphans: Path,
    ) -> None:
        self._vault = vault
        self._links = links
        self._opener = Opener(vault, registry, links, timeout=start_timeout, max_output=max_output, orphans=orphans)
        self._start_timeout = start_timeout
        self._table = ShellTable(timeout=start_timeout)
        self._describing = threading.Lock()
        self._idle_closer = IdleCloser(self._table, self._opener.empty, idle_timeout)

    def start(
        self, connection: str, access: Access, session: str | None = None, cancellation: Cancellation = NEVER
    ) -> Started:
        """Start the shell, unless it runs and answers.

        :raises connmgr.errors.CommandCancelled: it was cancelled while it waited for another thread.
        :raises connmgr.errors.UnknownConnection: there is no such connection.
        :raises connmgr.errors.SecretLocked: ``access`` may not open a secret on the way.
        :raises connmgr.errors.SessionLimit: the connection has the most shells allowed.
        :raises connmgr.errors.OperationError: the shell could not be started.
        """
        self._vault.connections.get(connection)
        with self._made(ShellName(connection, session), cancellation, access.holder) as entry:
            running = entry.shell
            info = self._started(connection, entry, access, cancellation).session.info
            started, entry.lost = Started(info, entry.lost), False
            if entry.shell is running:
                return started
        self._vault.connections.touch(connection)
        try:
            self._vault.connections.set_state(connection, state_of(info))
        except VaultUnavailable as error:
            # The shell runs, and can be used.
            logger.warning("The state of connection %s is not stored: %s", connection, error.message)
        return started

    @contextlib.contextmanager
    def using(self, connection: str, access: Access, session: str | None = None) -> Iterator[Session]:
        """Yield the session of the running shell, for commands and files; end the shell if it is lost.

        :raises NoShell: it does not run.
        :raises connmgr.errors.SecretLocked: ``access`` may not open a secret that it runs on.
        """
        name = ShellName(connection, session)
        shell = self._admitted(name, access)
        try:
            with shell.session.borrowed():
                yield shell.session
        finally:
            if not shell.session.alive:
                self._discard(name, shell, lost=True)
            self._vault.connections.touch(connection)

    def surroundings(self, connection: str, session: str | None = None) -> Surroundings | None:
        """Return the state of a running shell as it was last seen, or None if it does not run."""
        shell = self._table.peek(ShellName(connection, session))
        return shell.session.surroundings if shell is not None and shell.session.alive else None

    def leave_silent(self, connection: str, session: str | None) -> None:
        """Abandon an idle shell whose far side gives no overdue sign of life."""
        shell = self._table.peek(ShellName(connection, session))
        if shell is not None:
            shell.leave_silent(PROBE_SECONDS)

    def admitted(
        self, connections: Iterable[Connection], access: Access, session: str | None = None
    ) -> list[Connection]:
        """Return the ``connections`` whose shells run, are not silent, and may be used by ``access``.

        For the others :meth:`using` raises the reason.
        """
        running = (
            (shell.admission, one)
            for one in connections
            if (shell := self._table.peek(ShellName(one.id, session))) and shell.lease.link.first.answers(0.0)
        )
        return admitted(running, access)

    def forward_agent(self, connections: Iterable[str], session: str | None = None) -> bool:
        """Whether one of the running shells of ``connections`` can use a forwarded ssh-agent."""
        shells = (self._table.peek(ShellName(one, session)) for one in connections)
        return any(shell.lease.link.first.forwards_agent for shell in shells if shell is not None)

    def stop(self, connection: str, access: Access, session: str | None = None) -> None:
        """End the shell and its running command, and return when it has exited; raise NoShell if it does not run."""
        self._admitted(ShellName(connection, session), access)
        self.end(connection, session)

    def end(self, connection: str, session: str | None) -> None:
        """End the shell as :meth:`stop` does, if it runs, and forget that it was lost; only the starter calls this."""
        with self._holding(ShellName(connection, session)) as entry:
            entry.lost = False
            self._opener.empty(entry)

    def stop_all(self, connection: str, access: Access) -> None:
        """End all shells of the connection as :meth:`stop` does; the next shell gets a new link.

        :raises NoShell: none runs.
        """
        running = []
        for name, _, _ in self._table.taken(connection):
            with contextlib.suppress(NoShell):
                self._admitted(name, access)
                running.append(name)
        if not running:
            raise self._no_shell(connection)
        # Jobs may keep the link open for a while.
        self._links.forget([connection])
        with ThreadPoolExecutor(len(running), "stop-shells") as pool:
            ends = [pool.submit(self.end, *name) for name in running]
        for end in ends:
            end.result()

    def status(self, connection: str | None = None) -> list[ShellStatus]:
        """Describe the running shells, of one connection or all, without asking them; notice ended ones.

        Those of elevated connections over it belong to a connection.

        :raises connmgr.errors.UnknownConnection: there is no such connection.
        """
        if connection is not None:
            self._vault.connections.get(connection)
        # One at a time: describing a shell takes its lock, and another description would see it busy.
        with self._describing:
            return [
                status_of(name, shell)
                for name, _, shell in self._table.taken()
                if connection in (None, name.connection, base_of(name.connection))
            ]

    def probe(self, target: Target, access: Access) -> ShellInfo:
        """Test whether a shell can be opened on ``target``; see :meth:`Opener.probe`."""
        return self._opener.probe(target, access)

    def refresh(self, connection: str, access: Access) -> None:
        """Test whether the connection can be opened, and store the result as its state.

        :raises connmgr.errors.OperationError: it cannot; the state then contains the error's code.
        """
        record = self._vault.connections.get(connection)
        try:
            info = self._seen(record, access)
        except OperationError as error:
            # Other errors concern the caller or the daemon, not the connection.
            self._vault.connections.set_state(connection, {**found_inside(record.state), "error": error.code})
            raise
        inside = {"running": True} if found_inside(record.state) else {}
        self._vault.connections.set_state(connection, {**state_of(info), **inside})

    def forget(self, connections: Iterable[str]) -> None:
        """End the shells of removed or changed connections. From now on neither they nor their links are found.

        :raises ShellBusy: a shell is still being started or stopped, and ends after that; all others were ended.
        """
        changed = list(connections)
        # Before the shells, so that a new start does not find the old link.
        self._links.forget(changed)
        with contextlib.ExitStack() as ending:
            for name in self._table.mark_stale(changed):
                ending.callback(self._end_stale, name)

    def close(self, timeout: float) -> None:
        """End every shell within about ``timeout`` seconds; none can be started afterwards."""
        self._opener.close()
        shells = self._table.taken()
        if shells:
            with ThreadPoolExecutor(min(32, len(shells)), "close-shells") as pool:
                for name, entry, shell in shells:
                    pool.submit(self._close_one, name, entry, shell, timeout)
        self._idle_closer.close(timeout)

    @contextlib.contextmanager
    def _holding(
        self, name: ShellName, cancellation: Cancellation = NEVER, *, make: bool = False, holder: str | None = None
    ) -> Iterator[Entry]:
        """Hold the entry of a shell; afterwards end the shell if its connection was changed meanwhile."""
        with self._table.holding(name, cancellation=cancellation, make=make, holder=holder) as entry:
            try:
                yield entry
            finally:
                self._renew(entry)

    @contextlib.contextmanager
    def _made(self, name: ShellName, cancellation: Cancellation, holder: str | None) -> Iterator[Entry]:
        """Hold the entry of a shell that is to start; at the limit a shell of the command line gives way."""
        with contextlib.ExitStack() as held:
            while True:
                try:
                    entry = held.enter_context(self._holding(name, cancellation, make=True, holder=holder))
                except SessionLimit:
                    if not self._makes_room(name.connection, holder):
                        raise
                else:
                    break
            yield entry

    def _makes_room(self, connection: str, holder: str | None) -> bool:
        """End the least needed shell of the command line; return False if there is none to end.

        For a token that is one of its own.
        """
        taken = self._table.taken(connection)
        for name in dispensable([(one, shell) for one, entry, shell in taken if holder in (None, entry.holder)]):
            with contextlib.suppress(ShellBusy), self._table.holding(name, timeout=0.0) as entry:
                # Another request may have begun to use it.
                if entry.shell is not None and entry.shell.session.idle_seconds:
                    self._opener.empty(entry)
                    self._table.remember_lost(name)
                    return True
        return False

    def _renew(self, entry: Entry) -> None:
        if entry.stale:
            self._opener.empty(entry)
            entry.stale = entry.lost = False

    def _end_stale(self, name: ShellName) -> None:
        try:
            with self._holding(name) as entry:
                ends = entry.stale and entry.shell is not None
            if ends:
                # Whoever used it has not asked for a new directory and new variables.
                self._table.remember_lost(name)
        except ShellBusy as error:
            raise ShellBusy(
                "The change is stored. A shell that is being started or stopped will end afterwards."
            ) from error

    def _started(self, connection: str, entry: Entry, access: Access, cancellation: Cancellation) -> Shell:
        """Return the shell of ``entry``, which the caller holds; start one if none runs on the current data."""
        deadline = Deadline(self._start_timeout)
        while True:
            # Later changes of the connection mark the entry as stale.
            self._renew(entry)
            shell = self._opener.fill(entry, connection, access, cancellation)
            if not entry.stale:
                return shell
            if deadline.passed:
                raise ShellBusy("The connection kept changing while its shell started; try again.")

    def _no_shell(self, connection: str) -> NoShell:
        self._vault.connections.get(connection)
        return NoShell("No shell session is running on this connection; start it first.")

    def _admitted(self, name: ShellName, access: Access) -> Shell:
        """Return the running shell if ``access`` may use it; end it if its connection was changed.

        :raises connmgr.errors.SecretLocked: ``access`` may not open a secret that it runs on.
        :raises NoShell: it does not run, or no longer.
        """
        shell = self._table.peek(name)
        if shell is None:
            raise self._no_shell(name.connection)
        try:
            shell.admission.check(access)
        except Outdated:
            # Another daemon of the same vault changed it; changes by this daemon are marked in the table.
            with contextlib.suppress(ShellBusy):
                # Another thread holds the entry, and notices the change or ends the shell.
                self._discard(name, shell)
            self._vault.connections.get(name.connection)
            raise NoShell("The connection was changed, and its shell was ended; start it again.") from None
        return shell

    def _seen(self, record: Connection, access: Access) -> ShellInfo:
        """Describe the shell of a connection: the running one, or one opened for this."""
        with contextlib.suppress(NoShell):
            session = self._admitted(ShellName(record.id), access).session
            if session.probe(PROBE_SECONDS):
                return session.info
        target, lease = Target.stored(record), self._links.peek(record.id)
        if lease is None:
            return self.probe(target, access)
        try:
            borrowed = lease.link.is_borrowed and lease.link.usable
            # The daemon cannot repeat a login for which a client lent something.
            return self._opener.probe_over(lease, access) if borrowed else self.probe(target, access)
        finally:
            lease.release()

    def _discard(self, name: ShellName, shell: Shell, *, lost: bool = False) -> None:
        with self._holding(name) as entry:
            if entry.shell is shell:
                entry.lost = lost
                self._opener.empty(entry)

    def _close_one(self, name: ShellName, entry: Entry, shell: Shell, timeout: float) -> None:
        try:
            self._opener.end(shell, timeout)
            entry.shell = None
        except BaseException:
            # A plugin may raise any exception, and no caller waits for this result.
            logger.exception("The shell of connection %s failed to end cleanly.", name.connection)
