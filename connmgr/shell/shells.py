"""The running shells: one per connection, and further named ones.

:class:`ShellTable` finds, starts, lends and ends them; a :class:`ShellRef` names one. :class:`ShellEntries` has an
entry for each shell, which is held while it is started or stopped, so that threads wait for one shell and not for all.
At the end of this module: how a shell is described, and which shells nobody needs any more.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from connmgr import processes
from connmgr.cancellation import NEVER, Cancellation
from connmgr.computing import Switching
from connmgr.contract.event import SHELL
from connmgr.engine.envelope import Command
from connmgr.engine.session import FairLock, Session
from connmgr.engine.start import SessionInfo
from connmgr.engine.state import ShellSnapshot
from connmgr.errors import NoShell, OperationError, ScopeDenied, SessionLimit, ShellBusy, VaultUnavailable
from connmgr.events import Publish, unheard
from connmgr.links.chain import Target
from connmgr.links.link import Outdated, admitted_connections
from connmgr.links.table import LinkTable
from connmgr.plugin import Deadline
from connmgr.poller import Poller
from connmgr.registry import Registry
from connmgr.secrets.principals import Access
from connmgr.shares import refused
from connmgr.shell.opening import PROBE_SECONDS, Shell, ShellOpener
from connmgr.vault import Connection, Vault
from connmgr.vault.names import base_of

logger = logging.getLogger("connmgr.shell")

MAX_SHELLS = 16
"""Most shells of one connection, including those that are being started."""

NO_SHELL = "No shell session is running on this connection; start it first."

MAX_GAVE_WAY = 1000
"""Most shells that gave way and are remembered; then the oldest is forgotten."""

MAX_INTERVAL_SECONDS = 30.0
"""Longest interval of the search for shells that nobody needs."""

UNSEEN_SECONDS = 600.0
"""Seconds of idleness that end a shell of the command line if its POSIX session cannot be seen from here."""


class ShellRef(NamedTuple):
    """A connection and the name of one of its shells; ``session`` is None for the connection's own shell."""

    connection: str
    session: str | None = None


@dataclass
class ShellEntry:
    """The place of one shell; ``lock`` is held while it is started or stopped.

    ``stale`` says that the connection was changed or removed after its data was read for the shell. A stale shell is
    never returned; the thread that holds its entry ends it. ``lost`` says that a shell of this name was lost, and none
    was started since.
    """

    name: ShellRef
    lock: FairLock = field(default_factory=FairLock)
    shell: Shell | None = None
    stale: bool = False
    lost: bool = False
    holder: str | None = None
    """Whose share of the connection's shells it counts for: a token's id, or None for the owner's."""


class ShellEntries:
    """An entry for each shell that runs or is being started. Safe to use from several threads.

    ``timeout`` is the longest wait in seconds for an entry that another thread holds.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._lock = threading.Lock()
        self._entries: dict[str, dict[str | None, ShellEntry]] = {}
        self._gave_way: dict[ShellRef, None] = {}

    @contextlib.contextmanager
    def holding(
        self,
        name: ShellRef,
        timeout: float | None = None,
        cancellation: Cancellation = NEVER,
        *,
        make: bool = False,
        holder: str | None = None,
    ) -> Iterator[ShellEntry]:
        """Hold the entry of a shell. Drop it afterwards if it is empty, unless a shell was lost there.

        If there is no entry, ``make`` adds one, which counts for ``holder``; without ``make``, an empty entry that is
        not in the table is yielded.
        :raises ShellBusy: another thread holds it for longer than ``timeout`` seconds, by default the table's.
        :raises connmgr.errors.CommandCancelled: the request was cancelled while another thread held the entry.
        :raises SessionLimit: the connection already has :data:`MAX_SHELLS` shells, or the holder its share of them.
        """
        deadline = Deadline(self._timeout if timeout is None else timeout)
        while True:
            entry = self._made(name, holder) if make else self._entry(name)
            if entry is None:
                yield ShellEntry(name)
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

    def _entry(self, name: ShellRef) -> ShellEntry | None:
        with self._lock:
            return self._entries.get(name.connection, {}).get(name.session)

    def _made(self, name: ShellRef, holder: str | None) -> ShellEntry:
        with self._lock:
            entries = self._entries.setdefault(name.connection, {})
            if name.session not in entries and len(entries) >= MAX_SHELLS:
                lost = [session for session, entry in entries.items() if entry.lost and not entry.lock.taken]
                if not lost:
                    raise SessionLimit(f"The connection has {MAX_SHELLS} shells; stop one of them first.")
                del entries[lost[0]]
            if name.session not in entries:
                holders = [entry.holder for entry in entries.values() if not entry.lost or entry.lock.taken]
                if (why := refused(MAX_SHELLS, holder, holders)) is not None:
                    raise SessionLimit(f"Of the connection's {MAX_SHELLS} shells {why}; stop one of them first.")
                entries[name.session] = ShellEntry(name, lost=name in self._gave_way, holder=holder)
                self._gave_way.pop(name, None)
            return entries[name.session]

    def remember_lost(self, name: ShellRef) -> None:
        """Note that a shell ended without a request: to make room, for idleness, or because its connection changed.

        The next user of the name learns that its shell was lost.
        """
        with self._lock:
            self._gave_way[name] = None
            if len(self._gave_way) > MAX_GAVE_WAY:
                del self._gave_way[next(iter(self._gave_way))]

    def _drop_empty(self, name: ShellRef, entry: ShellEntry) -> None:
        with self._lock:
            if entry.shell is None and not entry.lost:
                del self._entries[name.connection][name.session]
                if not self._entries[name.connection]:
                    del self._entries[name.connection]

    def mark_stale(self, connections: Iterable[str]) -> list[ShellRef]:
        """Make the shells of ``connections`` stale, including those that are being started; return their names."""
        marked = []
        with self._lock:
            for connection in connections:
                for session, entry in self._entries.get(connection, {}).items():
                    entry.stale = True
                    marked.append(ShellRef(connection, session))
        return marked

    def peek(self, name: ShellRef) -> Shell | None:
        """Return the shell of that name, if it runs and is not stale."""
        entry = self._entry(name)
        return entry.shell if entry and not entry.stale else None

    def taken(self, connection: str | None = None) -> list[tuple[ShellRef, ShellEntry, Shell]]:
        """Return all entries with a shell, or those of one connection."""
        with self._lock:
            return [
                (ShellRef(connection_id, session), entry, entry.shell)
                for connection_id, entries in self._entries.items()
                if connection in {None, connection_id}
                for session, entry in entries.items()
                if entry.shell
            ]


class ShellStart(NamedTuple):
    """A running shell; ``restarted`` says that the last one was lost, with its directory and variables."""

    info: SessionInfo
    restarted: bool


class ShellTable:
    """Starts, finds and ends shell sessions. Safe to use from several threads.

    A shell is named by its connection and ``session``, which is None for the connection's default shell. ``max_output``
    is in bytes per stream, the timeouts are in seconds; ``idle_timeout`` 0 keeps idle sessions for ever. ``orphans`` is
    the file that names local shells; see :class:`ShellOpener`.
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
        publish: Publish = unheard,
    ) -> None:
        self._vault = vault
        self._links = links
        self._publish = publish
        self._opener = ShellOpener(
            vault, registry, links, timeout=start_timeout, max_output=max_output, orphans=orphans
        )
        self._start_timeout = start_timeout
        self._entries = ShellEntries(timeout=start_timeout)
        self._describing = threading.Lock()
        self.switching = Switching()
        """For those who read from many shells at once."""

        self._idle_closer = IdleCloser(self._entries, self._empty, idle_timeout)

    def start(
        self, connection: str, access: Access, session: str | None = None, cancellation: Cancellation = NEVER
    ) -> ShellStart:
        """Start the shell, unless it runs and answers.

        :raises connmgr.errors.CommandCancelled: it was cancelled while it waited for another thread.
        :raises connmgr.errors.UnknownConnection: there is no such connection.
        :raises connmgr.errors.SecretLocked: ``access`` may not open a secret on the way.
        :raises connmgr.errors.SessionLimit: the connection has the most shells allowed.
        :raises connmgr.errors.OperationError: the shell could not be started.
        """
        self._vault.connections.get(connection)
        with self._made(ShellRef(connection, session), cancellation, access.holder) as entry:
            running = entry.shell
            info = self._started(connection, entry, access, cancellation).session.info
            started, entry.lost = ShellStart(info, entry.lost), False
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
        name = ShellRef(connection, session)
        # The entry is not held meanwhile, for a stop must not wait for a command's end. Who uses a shell that is
        # stopped now gets ShellStopped.
        shell = self._admitted(name, access)
        running = shell.session
        running.borrow()
        try:
            yield running
        finally:
            running.give_back()
            if not running.alive:
                self._discard(name, shell, lost=True)
            self._vault.connections.touch(connection)

    def surroundings(self, connection: str, session: str | None = None) -> ShellSnapshot | None:
        """Return the state of a running shell as it was last seen, or None if it does not run."""
        shell = self._entries.peek(ShellRef(connection, session))
        return shell.session.surroundings if shell is not None and shell.session.alive else None

    def leave_silent(self, connection: str, session: str | None) -> None:
        """Abandon an idle shell whose remote host owes a sign of life and gives none (:meth:`Shell.leave_silent`)."""
        shell = self._entries.peek(ShellRef(connection, session))
        if shell is not None:
            shell.leave_silent(PROBE_SECONDS)

    def admitted(
        self, connections: Iterable[Connection], access: Access, session: str | None = None
    ) -> list[Connection]:
        """Return the ``connections`` whose shells run, are not silent, and may be used by ``access``.

        For the others :meth:`using` raises the reason.
        """
        running = (
            (shell.admission, connection)
            for connection in connections
            if (shell := self._answering(connection.id, session)) is not None
        )
        return admitted_connections(running, access)

    def lately_admitted(self, connections: Iterable[str], access: Access, session: str | None) -> set[str]:
        """Return those of :meth:`admitted` that are known without reading anything: used a moment ago."""
        return {
            connection
            for connection in connections
            if (shell := self._answering(connection, session)) is not None and shell.admission.has_admitted(access)
        }

    def _answering(self, connection: str, session: str | None) -> Shell | None:
        shell = self._entries.peek(ShellRef(connection, session))
        return shell if shell is not None and shell.lease.link.first.answers(0.0) else None

    def forward_agent(self, connections: Iterable[str], session: str | None = None) -> bool:
        """Whether one of the running shells of ``connections`` can use a forwarded ssh-agent."""
        shells = (self._entries.peek(ShellRef(connection, session)) for connection in connections)
        return any(shell.lease.link.first.forwards_agent for shell in shells if shell is not None)

    def stop(self, connection: str, access: Access, session: str | None = None, *, only_own: bool = False) -> None:
        """End the shell and its running command, and return when it has exited; raise NoShell if it does not run.

        :raises connmgr.errors.ScopeDenied: with ``only_own``, somebody else than the holder of ``access`` started it.
        """
        self._admitted(ShellRef(connection, session), access)
        with self._holding(ShellRef(connection, session)) as entry:
            if only_own and entry.holder != access.holder:
                raise ScopeDenied(
                    "The token may only look (readOnly): it cannot stop a shell that others have started."
                )
            entry.lost = False
            self._empty(entry)

    def end(self, connection: str, session: str | None) -> None:
        """End the shell as :meth:`stop` does, if it runs, and forget that it was lost; only the starter calls this."""
        with self._holding(ShellRef(connection, session)) as entry:
            entry.lost = False
            self._empty(entry)

    def stop_all(self, connection: str, access: Access) -> None:
        """End all shells of the connection as :meth:`stop` does; the next shell gets a new link.

        :raises NoShell: none runs.
        """
        running = []
        for name, _, _ in self._entries.taken(connection):
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

    def status(self, connection: str | None = None) -> list[ShellActivity]:
        """Describe the running shells, of one connection or all, without asking them; notice ended ones.

        The shells of elevated connections over a connection count as its own.

        :raises connmgr.errors.UnknownConnection: there is no such connection.
        """
        if connection is not None:
            self._vault.connections.get(connection)
        # One at a time: describing a shell takes its lock, and another description would see it busy.
        with self._describing:
            return [
                status_of(name, shell)
                for name, _, shell in self._entries.taken()
                if connection in (None, name.connection, base_of(name.connection))
            ]

    def probe(self, target: Target, access: Access) -> SessionInfo:
        """Test whether a shell can be opened on ``target``; see :meth:`ShellOpener.probe`."""
        return self._opener.probe(target, access)

    def refresh(self, connection: str, access: Access) -> None:
        """Test whether the connection can be opened, and store the result as its state.

        :raises connmgr.errors.OperationError: it cannot; the state then contains the error's code.
        """
        record = self._vault.connections.get(connection)
        try:
            info = self._describe(record, access)
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
            for name in self._entries.mark_stale(changed):
                ending.callback(self._end_stale, name)

    def close(self, timeout: float) -> None:
        """End every shell within about ``timeout`` seconds; none can be started afterwards."""
        self._opener.close()
        shells = self._entries.taken()
        if shells:
            with ThreadPoolExecutor(min(32, len(shells)), "close-shells") as pool:
                for name, entry, shell in shells:
                    pool.submit(self._close_one, name, entry, shell, timeout)
        self._idle_closer.close(timeout)

    @contextlib.contextmanager
    def _holding(
        self, name: ShellRef, cancellation: Cancellation = NEVER, *, make: bool = False, holder: str | None = None
    ) -> Iterator[ShellEntry]:
        """Hold the entry of a shell; afterwards end the shell if its connection was changed meanwhile."""
        with self._entries.holding(name, cancellation=cancellation, make=make, holder=holder) as entry:
            try:
                yield entry
            finally:
                self._renew(entry)

    @contextlib.contextmanager
    def _made(self, name: ShellRef, cancellation: Cancellation, holder: str | None) -> Iterator[ShellEntry]:
        """Hold the entry of a shell that will start; at the limit, end an idle shell of the command line for it."""
        with contextlib.ExitStack() as holding:
            while True:
                try:
                    entry = holding.enter_context(self._holding(name, cancellation, make=True, holder=holder))
                except SessionLimit:
                    if not self._makes_room(name.connection, holder):
                        raise
                else:
                    break
            yield entry

    def _makes_room(self, connection: str, holder: str | None) -> bool:
        """End the least needed shell of the command line; return False if there is none to end.

        A ``holder`` other than the owner ends only its own.
        """
        in_use = self._entries.taken(connection)
        for name in dispensable([(ref, shell) for ref, entry, shell in in_use if holder in (None, entry.holder)]):
            with contextlib.suppress(ShellBusy), self._entries.holding(name, timeout=0.0) as entry:
                # Another request may have begun to use it.
                if entry.shell is not None and entry.shell.session.idle_seconds:
                    self._empty(entry)
                    self._entries.remember_lost(name)
                    return True
        return False

    def _renew(self, entry: ShellEntry) -> None:
        if entry.stale:
            self._empty(entry)
            entry.stale = entry.lost = False

    def _end_stale(self, name: ShellRef) -> None:
        try:
            with self._holding(name) as entry:
                ends = entry.stale and entry.shell is not None
            if ends:
                # Whoever used it has not asked for a new directory and new variables.
                self._entries.remember_lost(name)
        except ShellBusy as error:
            raise ShellBusy(
                "The change is stored. A shell that is being started or stopped will end afterwards."
            ) from error

    def _started(self, connection: str, entry: ShellEntry, access: Access, cancellation: Cancellation) -> Shell:
        """Return the shell of ``entry``, which the caller holds; start one if none runs on the current data."""
        deadline = Deadline(self._start_timeout)
        while True:
            # Later changes of the connection mark the entry as stale.
            self._renew(entry)
            shell = self._fill(entry, connection, access, cancellation)
            if not entry.stale:
                return shell
            if deadline.passed:
                raise ShellBusy("The connection kept changing while its shell started; try again.")

    def _fill(self, entry: ShellEntry, connection: str, access: Access, cancellation: Cancellation) -> Shell:
        """Return the shell of ``entry``, which the caller holds; open one if none on the current data answers."""
        shell = entry.shell
        if shell is not None:
            with contextlib.suppress(Outdated):
                shell.admission.check(access)
                shell.leave_silent(PROBE_SECONDS)
                if shell.session.probe(PROBE_SECONDS):
                    return shell
                entry.lost = True
            self._empty(entry)
        shell = entry.shell = self._opener.open(connection, access, cancellation)
        self._tell("started", entry.name)
        return shell

    def _empty(self, entry: ShellEntry) -> None:
        """End the shell of ``entry``, which the caller holds."""
        shell, entry.shell = entry.shell, None
        if shell is not None:
            self._tell("ended", entry.name)
            self._opener.end(shell)

    def _tell(self, change: str, name: ShellRef) -> None:
        self._publish(SHELL, change, name.connection, **({} if name.session is None else {"session": name.session}))

    def _no_shell(self, connection: str) -> NoShell:
        self._vault.connections.get(connection)
        return NoShell(NO_SHELL)

    def _admitted(self, name: ShellRef, access: Access) -> Shell:
        """Return the running shell if ``access`` may use it; end it if its connection was changed.

        :raises connmgr.errors.SecretLocked: ``access`` may not open a secret that it runs on.
        :raises NoShell: it does not run, or no longer.
        """
        shell = self._entries.peek(name)
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

    def _describe(self, record: Connection, access: Access) -> SessionInfo:
        """Describe the shell of a connection: the running one, or one opened for this."""
        with contextlib.suppress(NoShell):
            session = self._admitted(ShellRef(record.id), access).session
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

    def _discard(self, name: ShellRef, shell: Shell, *, lost: bool = False) -> None:
        with self._holding(name) as entry:
            if entry.shell is shell:
                entry.lost = lost
                self._empty(entry)

    def _close_one(self, name: ShellRef, entry: ShellEntry, shell: Shell, timeout: float) -> None:
        try:
            self._opener.end(shell, timeout)
            entry.shell = None
        except BaseException:
            # A plugin may raise any exception, and no caller waits for this result.
            logger.exception("The shell of connection %s failed to end cleanly.", name.connection)


@dataclass(frozen=True)
class ShellActivity:
    """The state of a running shell, ``idle``, ``busy`` or ``lost``, with times in seconds and queued commands.

    ``directory`` is that after its last command; ``since`` is when the shell was started, ``running_since`` when its
    ``running`` command began.
    """

    connection: str
    session: str | None
    state: str
    pid: int
    directory: bytes
    since: datetime
    uptime: float
    idle: float
    waiting: int
    running_since: datetime | None
    running: Command | None = None


def status_of(name: ShellRef, shell: Shell) -> ShellActivity:
    """Describe a shell, as far as known without asking it."""
    session = shell.session
    try:
        session.notice_end()
    except Exception:
        # A plugin may raise any exception, and must not prevent the description of other shells.
        logger.exception("The shell of connection %s cannot be described.", name.connection)
    idle, running, command = session.idle_seconds, session.running_since, session.running_command
    return ShellActivity(
        *name,
        state="lost" if not session.alive else "idle" if idle else "busy",
        pid=session.pid,
        directory=session.directory,
        since=shell.since,
        uptime=time.monotonic() - shell.started,
        idle=idle,
        waiting=session.waiting,
        running_since=None if running is None else datetime.fromtimestamp(running, timezone.utc),
        running=None if running is None else command,
    )


def state_of(info: SessionInfo) -> dict[str, Any]:
    """Return the ``state`` of a connection whose shell has started."""
    return {
        "shellDialect": info.shell_dialect,
        "osType": info.os_type,
        "osName": info.os_name,
        "ttyState": info.tty_state,
    }


def found_inside(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``state`` of a connection to a system that was found inside another connection."""
    return {name: state[name] for name in ("running", "gone") if name in state}


class _Use(NamedTuple):
    """How much a shell is needed: ``over`` says that its POSIX session, such as that of a terminal, has ended."""

    over: bool
    idle: float
    name: ShellRef


def unneeded(shells: Collection[tuple[ShellRef, Shell]], timeout: float) -> list[ShellRef]:
    """Return the idle ``shells`` to end: those idle for ``timeout`` seconds (0: never), or with a POSIX session that
    is over.

    The last shell of a connection does not end with its POSIX session, because the link would end with it: a command
    that cron runs each hour need not log in each time.
    """
    ended, remaining = list[ShellRef](), dict[str, int]()
    for name, _ in shells:
        remaining[name.connection] = remaining.get(name.connection, 0) + 1
    uses = sorted((_use(name, shell) for name, shell in shells), key=lambda use: use[:2], reverse=True)
    for over, idle, name in uses:
        expired = bool(timeout) and idle > timeout
        if idle and (expired or (over and remaining[name.connection] > 1)):
            ended.append(name)
            remaining[name.connection] -= 1
    return ended


def dispensable(shells: Collection[tuple[ShellRef, Shell]]) -> list[ShellRef]:
    """Return the shells of a connection that may end to make room: the command line's idle ones, least needed first."""
    uses = [_use(name, shell) for name, shell in shells if processes.posix_session_of(name.session)]
    return [use.name for use in sorted(uses, key=lambda use: use[:2], reverse=True) if use.idle]


def _use(name: ShellRef, shell: Shell) -> _Use:
    own, idle = processes.posix_session_of(name.session), shell.session.idle_seconds
    over = own is not None and (idle > UNSEEN_SECONDS if own.is_over is None else own.is_over)
    return _Use(over, idle, name)


class IdleCloser:
    """A thread that calls ``end`` for the shells of ``entries`` that nobody needs, as :func:`unneeded` says."""

    def __init__(self, entries: ShellEntries, end: Callable[[ShellEntry], None], timeout: float) -> None:
        self._entries = entries
        self._end = end
        self._timeout = timeout
        self._interval = min(MAX_INTERVAL_SECONDS, timeout / 4) if timeout else MAX_INTERVAL_SECONDS
        self._poller = Poller("idle-shells", self._end_unneeded, self._interval, logger)
        self._poller.begin()

    def close(self, timeout: float) -> None:
        """End the thread; wait up to ``timeout`` seconds for a shell that it is ending."""
        self._poller.close(timeout)

    def _end_unneeded(self) -> float:
        for name in self._unneeded():
            try:
                self._end_if_idle(name)
            except ShellBusy:
                # Another thread starts or stops it.
                continue
            except BaseException:
                # A plugin may raise any exception, and must not keep the other shells open.
                logger.exception("The idle shell of connection %s failed to end cleanly.", name.connection)
        return self._interval

    def _unneeded(self) -> list[ShellRef]:
        return unneeded([(name, shell) for name, _, shell in self._entries.taken()], self._timeout)

    def _end_if_idle(self, name: ShellRef) -> None:
        with self._entries.holding(name, timeout=0.0) as entry:
            # It may have been used meanwhile, or be another one.
            if entry.shell is not None and name in self._unneeded():
                self._end(entry)
                self._entries.remember_lost(name)
