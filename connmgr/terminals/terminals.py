"""The terminals of all connections: opens, finds and ends them."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial

from connmgr.cancellation import NEVER, Cancellation
from connmgr.engine.state import ShellSnapshot
from connmgr.errors import ShellBusy, Stopping, TerminalLimit, UnknownTerminal
from connmgr.links.channels import open_on_link
from connmgr.links.link import Link, Outdated
from connmgr.links.table import LinkTable
from connmgr.pipes.streams import Streams
from connmgr.plugin import Channel, Deadline, Pty
from connmgr.rights.ground import Ground
from connmgr.secrets.principals import Access
from connmgr.terminals.output import Output
from connmgr.terminals.recording import Recordings
from connmgr.terminals.starting import Program
from connmgr.terminals.terminal import RUNNING, Origin, Terminal
from connmgr.vault import Vault

KEPT_SECONDS = 300.0
"""Time for which an ended terminal can still be queried."""

MAX_ENDED = 64
"""Most ended terminals that are kept; the one that ended first is dropped."""

TIDY_SECONDS = 30.0
CLOSE_SECONDS = 5.0
"""Longest wait for a closed terminal to end."""


@dataclass(frozen=True)
class TerminalLimits:
    """Most terminals per connection and in all; one without clients ends after ``unattended`` seconds, 0: never."""

    of_connection: int
    in_all: int
    unattended: float


@dataclass(frozen=True)
class Wanted:
    """A terminal to open: its command or argv, or an interactive shell, in the state of a session if given."""

    connection: str
    pty: Pty
    command: str | tuple[str, ...] | None = None
    session: str | None = None
    surroundings: ShellSnapshot | None = None
    record: bool = False
    sent: Mapping[str, str] = field(default_factory=dict)
    """Variables of the client's environment."""
    token: str | None = None
    """The id of the token with which it is opened; None for the owner's."""

    ground: Ground | None = None
    """The ground on which it was approved; None if it needed no approval."""

    when_ended: Callable[[str, int | None], object] | None = None
    """Called once, in a thread that may block, with the terminal's id and the exit status, None if that is unknown."""


class Terminals:
    """Opens terminals, and keeps them for a while after their end. Safe to use from several threads.

    ``timeout`` is the longest time to open one, in seconds.
    """

    def __init__(
        self,
        vault: Vault,
        links: LinkTable,
        streams: Streams,
        recordings: Recordings,
        limits: TerminalLimits,
        timeout: float,
    ) -> None:
        self._vault = vault
        self._links = links
        self._streams = streams
        self._recordings = recordings
        self._limits = limits
        self._timeout = timeout
        self._lock = threading.Lock()
        self._terminals: dict[str, Terminal] = {}
        self._opening: Counter[str] = Counter()
        self._closed = self._tidying = False

    def open(self, wanted: Wanted, access: Access, cancellation: Cancellation = NEVER) -> Terminal:
        """Open a terminal.

        :raises connmgr.errors.CommandCancelled: it was cancelled before its program started.
        :raises TerminalLimit: a limit is reached.
        :raises connmgr.errors.UnknownConnection: there is no such connection.
        :raises connmgr.errors.SecretLocked: ``access`` may not open a secret on the way.
        :raises connmgr.errors.OperationError: it could not be opened.
        """
        connection, pty = wanted.connection, wanted.pty
        shell = self._vault.connections.get(connection).data.get("shell")
        id = str(uuid.uuid4())
        with self._place(connection), contextlib.ExitStack() as cleanup:
            recording = self._recordings.begin(id, pty.columns, pty.rows, pty.term) if wanted.record else None
            if recording is not None:
                cleanup.callback(recording.close)
            program = partial(Program, id, pty, wanted.command, shell, wanted.surroundings)
            printed: list[bytes] = []
            lease, channel = open_on_link(
                self._links,
                connection,
                access,
                partial(_start, program, wanted.sent, printed),
                self._timeout,
                cancellation,
                wanted.ground,
            )
            cleanup.pop_all()

            def ended(status: int | None) -> None:
                lease.release()
                if wanted.when_ended is not None:
                    wanted.when_ended(id, status)

            opened = datetime.now(timezone.utc)
            origin = Origin(id, connection, wanted.session, wanted.command, pty.term, opened, wanted.token)
            terminal = Terminal(
                self._streams,
                origin,
                Output(pty.columns, pty.rows),
                lease,
                channel,
                b"".join(printed),
                recording,
                ended,
            )
            self._keep(terminal)
        self._vault.connections.touch(connection)
        return terminal

    def find(self, id: str, access: Access) -> Terminal:
        """Return a terminal that ``access`` may use.

        :raises UnknownTerminal: there is none, or its connection was changed or removed.
        :raises connmgr.errors.SecretLocked: ``access`` may not open a secret that it runs on.
        """
        self._tidy()
        with self._lock:
            terminal = self._terminals.get(id)
        if terminal is None:
            raise UnknownTerminal(id)
        try:
            terminal.lease.link.admission.check(access)
        except Outdated:
            # Another daemon of the same vault changed the connection. An ended terminal may still be queried.
            if terminal.state == RUNNING:
                self._forget([terminal])
                raise UnknownTerminal(id) from None
        return terminal

    def origin_of(self, id: str) -> Origin | None:
        """Return the request that opened a terminal, None for an unknown one."""
        with self._lock:
            terminal = self._terminals.get(id)
        return None if terminal is None else terminal.origin

    def end(self, tokens: Collection[str], on: Collection[str] | None = None) -> None:
        """Close the terminals that were opened with tokens of these ids, ``on`` these connections or all."""
        opened = [one for one in self.all() if one.origin.token in tokens]
        self._close([one for one in opened if on is None or one.origin.connection in on], 0.0)

    def all(self) -> list[Terminal]:
        """Return the terminals that run or ended lately, the oldest first."""
        self._tidy()
        with self._lock:
            return list(self._terminals.values())

    def close_all(self, connection: str, access: Access) -> int:
        """Close the terminals of a connection; return how many there were.

        :raises connmgr.errors.SecretLocked: ``access`` may not open a secret that one runs on; none was closed.
        """
        running = [one for one in self.all() if one.origin.connection == connection and one.state == RUNNING]
        for terminal in running:
            with contextlib.suppress(Outdated):
                terminal.lease.link.admission.check(access)
        self._close(running)
        return len(running)

    def forget(self, connections: Iterable[str]) -> None:
        """Close the terminals of removed or changed connections; from now on they are not found."""
        changed = set(connections)
        # Before the terminals, so that a terminal that is being opened on the old link notices.
        self._links.forget(changed)
        self._forget([one for one in self.all() if one.origin.connection in changed])

    def close(self, timeout: float) -> None:
        """Close all terminals within about ``timeout`` seconds; none can be opened afterwards."""
        with self._lock:
            self._closed = True
            terminals = list(self._terminals.values())
        self._close(terminals, timeout)

    @contextlib.contextmanager
    def _place(self, connection: str) -> Iterator[None]:
        """Count a terminal that is being opened."""
        self._tidy()
        with self._lock:
            if self._closed:
                raise Stopping("The daemon is shutting down.")
            running = Counter(one.origin.connection for one in self._terminals.values() if one.state == RUNNING)
            running += self._opening
            if running[connection] >= self._limits.of_connection:
                raise TerminalLimit(
                    f"The connection has {self._limits.of_connection} terminals; close one of them first."
                )
            if running.total() >= self._limits.in_all:
                raise TerminalLimit(f"{self._limits.in_all} terminals are open; close one of them first.")
            self._opening[connection] += 1
        try:
            yield
        finally:
            with self._lock:
                self._opening[connection] -= 1
                # Otherwise an empty entry would stay for ever.
                self._opening += Counter()

    def _keep(self, terminal: Terminal) -> None:
        with self._lock:
            self._terminals[terminal.origin.id] = terminal
            closed, begins = self._closed, not self._tidying
            self._tidying = True
        if begins:
            self._streams.loop.after(TIDY_SECONDS, self._tidy_again)
        if closed:
            self._close([terminal])
            raise Stopping("The daemon is shutting down.")
        if not terminal.lease.link.usable:
            self._forget([terminal])
            raise ShellBusy("The connection was changed while the terminal was opened; try again.")

    def _forget(self, terminals: Iterable[Terminal]) -> None:
        for terminal in terminals:
            with self._lock:
                self._terminals.pop(terminal.origin.id, None)
            terminal.close()

    def _close(self, terminals: Iterable[Terminal], timeout: float = CLOSE_SECONDS) -> None:
        closing = list(terminals)
        for terminal in closing:
            terminal.close()
        deadline = Deadline(timeout)
        for terminal in closing:
            terminal.wait(deadline.left())

    def _tidy_again(self) -> None:
        self._tidy()
        with self._lock:
            self._tidying = bool(self._terminals)
        if self._tidying:
            self._streams.loop.after(TIDY_SECONDS, self._tidy_again)

    def _tidy(self) -> None:
        """Close terminals that were unused for too long, and forget those that ended long ago."""
        now = datetime.now(timezone.utc)
        with self._lock:
            ended = [one for one in self._terminals.values() if one.ended is not None]
            ended.sort(key=lambda one: one.ended or now)
            old = [one for one in ended if one.ended and (now - one.ended).total_seconds() > KEPT_SECONDS]
            for one in {*old, *ended[: max(0, len(ended) - MAX_ENDED)]}:
                del self._terminals[one.origin.id]
                one.drop()
            left = [one for one in self._terminals.values() if one.state == RUNNING]
        for one in left:
            if 0 < self._limits.unattended < one.idle_seconds:
                one.close()


def _start(
    program: Callable[[Mapping[str, str]], Program],
    sent: Mapping[str, str],
    printed: list[bytes],
    link: Link,
    timeout: float,
) -> Channel:
    channel, early = program(link.environment.select(sent)).start(link.transport, timeout)
    printed[:] = [early]
    return channel
