"""The shells that run, one a connection."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from connmgr.engine.session import Session
from connmgr.engine.start import ShellInfo
from connmgr.errors import NoShell, OperationError, ShellBusy, Stopping, VaultUnavailable
from connmgr.links.chain import Target
from connmgr.plugin import Deadline
from connmgr.registry import Registry
from connmgr.secrets.principals import Access
from connmgr.shell.idle import IdleCloser
from connmgr.shell.orphans import Orphans
from connmgr.shell.shell import STOP_SECONDS, Shell, open_shell
from connmgr.shell.status import ShellStatus, state_of, status_of
from connmgr.shell.table import Entry, ShellTable
from connmgr.vault import Connection, Vault
from connmgr.vault.admission import Outdated

logger = logging.getLogger("connmgr.shell")

PROBE_SECONDS = 5.0
"""Time in which a shell that seems to run must answer, or it is ended."""


class Shells:
    """Starts, finds and ends shell sessions. Safe to use from several threads.

    ``max_output`` is in bytes a stream, the timeouts are in seconds; ``idle_timeout`` 0 keeps idle sessions for ever.
    ``orphans`` is the file that names local shells. Those that a killed daemon left behind are ended at once.
    """

    def __init__(
        self,
        vault: Vault,
        registry: Registry,
        *,
        max_output: int,
        idle_timeout: float,
        start_timeout: float,
        orphans: Path,
    ) -> None:
        self._vault = vault
        self._registry = registry
        self._max_output = max_output
        self._start_timeout = start_timeout
        self._orphans = Orphans(orphans)
        self._orphans.reap()
        self._table = ShellTable(patience=start_timeout)
        self._describing = threading.Lock()
        self._closing = threading.Event()
        self._idle_closer = IdleCloser(self._table, self._end, idle_timeout)

    def start(self, connection: str, access: Access) -> ShellInfo:
        """Start the connection's shell, unless it runs, and describe it.

        :raises connmgr.errors.UnknownConnection: there is no such connection.
        :raises connmgr.errors.SecretLocked: ``access`` may not open a secret on the way.
        :raises connmgr.errors.OperationError: the shell could not be started.
        """
        self._vault.connections.get(connection)
        with self._holding(connection) as entry:
            running = entry.shell
            info = self._started(connection, entry, access).session.info
            if entry.shell is running:
                return info
        self._vault.connections.touch(connection)
        try:
            self._vault.connections.set_state(connection, state_of(info))
        except VaultUnavailable as error:
            # The shell runs, and can be used.
            logger.warning("The state of connection %s is not stored: %s", connection, error.message)
        return info

    @contextlib.contextmanager
    def using(self, connection: str, access: Access) -> Iterator[Session]:
        """Lend the session of the connection's running shell, for commands and files; end the shell if it is lost.

        :raises NoShell: none is running.
        :raises connmgr.errors.SecretLocked: ``access`` may not open a secret that it runs on.
        """
        shell = self._admitted(connection, access)
        try:
            with shell.session.borrowed():
                yield shell.session
        finally:
            if not shell.session.alive:
                self._discard(connection, shell)
            self._vault.connections.touch(connection)

    def stop(self, connection: str, access: Access) -> None:
        """End the connection's shell with what runs in it, and return once it has exited.

        :raises NoShell: none is running.
        """
        self._admitted(connection, access)
        with self._holding(connection) as entry:
            self._end(entry)

    def probe(self, target: Target, access: Access) -> ShellInfo:
        """Open a shell on ``target``, describe it, and close it again.

        :raises connmgr.errors.OperationError: it could not be opened.
        """
        shell = self._open(target, access)
        shell.stop(STOP_SECONDS)
        return shell.session.info

    def status(self) -> list[ShellStatus]:
        """Describe the shells that run, without asking them; one that has ended is noticed."""
        # One at a time: to look at a shell takes its turn, and would show it as busy to another.
        with self._describing:
            return [status_of(connection, shell) for connection, _, shell in self._table.taken()]

    def refresh(self, connection: str, access: Access) -> None:
        """Find out whether the connection can be opened, and store what was found as its state.

        :raises connmgr.errors.OperationError: it cannot; the state then names the error's code.
        """
        record = self._vault.connections.get(connection)
        try:
            info = self._seen(record, access)
        except OperationError as error:
            # Other errors tell about the caller or the daemon, not about the connection.
            self._vault.connections.set_state(connection, {"error": error.code})
            raise
        self._vault.connections.set_state(connection, state_of(info))

    def forget(self, connections: Iterable[str]) -> None:
        """End the shells of connections that were removed or changed. Nobody finds them from now on.

        :raises ShellBusy: a shell is still being started or stopped, and ends after that; all others were ended.
        """
        with contextlib.ExitStack() as ending:
            for connection in self._table.mark_stale(connections):
                ending.callback(self._end_stale, connection)

    def close(self, timeout: float) -> None:
        """End every shell within about ``timeout`` seconds; nothing can be started afterwards."""
        self._closing.set()
        shells = self._table.taken()
        if shells:
            with ThreadPoolExecutor(min(32, len(shells)), "close-shells") as pool:
                for connection, entry, shell in shells:
                    pool.submit(self._close_one, connection, entry, shell, timeout)
        self._idle_closer.close(timeout)

    @contextlib.contextmanager
    def _holding(self, connection: str) -> Iterator[Entry]:
        """Hold the entry of ``connection``, and end its shell at last if the connection was changed meanwhile."""
        with self._table.holding(connection) as entry:
            try:
                yield entry
            finally:
                self._renew(entry)

    def _renew(self, entry: Entry) -> None:
        if entry.stale:
            self._end(entry)
            entry.stale = False

    def _end_stale(self, connection: str) -> None:
        try:
            with self._holding(connection):
                pass
        except ShellBusy as error:
            raise ShellBusy(
                "The change is stored. A shell that is just being started or stopped ends after that."
            ) from error

    def _started(self, connection: str, entry: Entry, access: Access) -> Shell:
        """Return the shell of ``entry``, which the caller holds; start one if none runs on the current data."""
        deadline = Deadline(self._start_timeout)
        while True:
            self._renew(entry)
            # Later changes of the connection mark the entry as stale.
            record = self._vault.connections.get(connection)
            shell = self._answering(entry, access)
            if shell is None:
                shell = entry.shell = self._open(Target.stored(record), access)
                if shell.lease.link.transport.runs_locally:
                    self._orphans.remember(shell.session.pid)
            if not entry.stale:
                return shell
            if deadline.passed:
                raise ShellBusy("The connection kept changing while its shell started; try again.")

    def _answering(self, entry: Entry, access: Access) -> Shell | None:
        """Return the shell of ``entry``; end it if it does not answer, or if its connection was changed."""
        shell = entry.shell
        if shell is None:
            return None
        with contextlib.suppress(Outdated):
            shell.admission.check(access)
            if shell.session.probe(PROBE_SECONDS):
                return shell
        self._end(entry)
        return None

    def _open(self, target: Target, access: Access) -> Shell:
        self._refuse_when_closing()
        shell = open_shell(
            self._vault,
            self._registry,
            target,
            access,
            timeout=self._start_timeout,
            max_output=self._max_output,
        )
        try:
            # `close` may have listed the shells before this one was among them.
            self._refuse_when_closing()
        except Stopping:
            shell.stop(STOP_SECONDS)
            raise
        return shell

    def _refuse_when_closing(self) -> None:
        if self._closing.is_set():
            raise Stopping("The daemon is shutting down.")

    def _running(self, connection: str) -> Shell:
        shell = self._table.peek(connection)
        if shell is None:
            self._vault.connections.get(connection)
            raise NoShell("No shell session is running on this connection; start it first.")
        return shell

    def _admitted(self, connection: str, access: Access) -> Shell:
        """Return the connection's running shell if ``access`` may use it; end it if its connection was changed.

        :raises connmgr.errors.SecretLocked: ``access`` may not open a secret that it runs on.
        :raises NoShell: none is running, or none any more.
        """
        shell = self._running(connection)
        try:
            shell.admission.check(access)
        except Outdated:
            # Another daemon of the same vault changed it; changes of this daemon are marked in the table.
            with contextlib.suppress(ShellBusy):
                # Another thread holds the entry: it finds the same, or ends the shell.
                self._discard(connection, shell)
            self._vault.connections.get(connection)
            raise NoShell("The connection was changed, and its shell was ended; start it again.") from None
        return shell

    def _seen(self, record: Connection, access: Access) -> ShellInfo:
        """Describe the shell of a connection: the running one, or one that is opened for a moment."""
        with contextlib.suppress(NoShell):
            session = self._admitted(record.id, access).session
            if session.probe(PROBE_SECONDS):
                return session.info
        return self.probe(Target.stored(record), access)

    def _discard(self, connection: str, lost: Shell) -> None:
        with self._holding(connection) as entry:
            if entry.shell is lost:
                self._end(entry)

    def _end(self, entry: Entry) -> None:
        shell, entry.shell = entry.shell, None
        if shell is not None:
            self._stop(shell, STOP_SECONDS)

    def _stop(self, shell: Shell, timeout: float) -> None:
        try:
            shell.stop(timeout)
        finally:
            self._orphans.forget(shell.session.pid)

    def _close_one(self, connection: str, entry: Entry, shell: Shell, timeout: float) -> None:
        try:
            self._stop(shell, timeout)
            entry.shell = None
        except BaseException:
            # A plugin may raise anything, and nobody waits for this result.
            logger.exception("The shell of connection %s did not end as it should.", connection)
