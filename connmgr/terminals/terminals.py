"""The terminals of all connections: opens, finds and ends them, and starts their programs on the remote host."""

from __future__ import annotations

import contextlib
import re
import shlex
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial

from connmgr.cancellation import NEVER, Cancellation
from connmgr.contract.event import TERMINAL, WAITING
from connmgr.contract.terminal import RUNNING
from connmgr.engine.dialects import become
from connmgr.engine.script import Source, exports, new_nonce, script_argv
from connmgr.engine.state import ShellSnapshot
from connmgr.engine.waiting import WaitingWork, blocked, waiting_work
from connmgr.errors import (
    ConnectTimeout,
    ConnmgrError,
    ShellBusy,
    ShellStartFailed,
    Stopping,
    TerminalLimit,
    UnknownTerminal,
    UnsupportedShell,
)
from connmgr.events import Publish, unheard
from connmgr.jobs.launch import Launch
from connmgr.links.channels import open_on_link
from connmgr.links.link import Link, Outdated
from connmgr.links.table import LinkTable
from connmgr.pipes.streams import Streams
from connmgr.plugin import Channel, Deadline, Pty, Transport
from connmgr.rights.ground import Ground
from connmgr.secrets.principals import Access
from connmgr.shares import refused
from connmgr.terminals.output import TerminalOutput
from connmgr.terminals.recording import COMMAND, COMMAND_CHARACTERS, CONNECTION, OPENER, Recordings
from connmgr.terminals.terminal import Origin, Terminal
from connmgr.vault import Vault

KEPT_SECONDS = 300.0
"""Time for which an ended terminal can still be queried."""

MAX_ENDED = 64
"""Most ended terminals that are kept; the one that ended first is dropped."""

TIDY_SECONDS = 30.0
CLOSE_SECONDS = 5.0
"""Longest wait for a closed terminal to end."""

GREETING_BYTES = 256 << 10
"""Most bytes that start-up files may print before the terminal is ready for a session's state."""

WAITING_SECONDS = 10.0
"""Longest look at whether terminals of one link wait for input."""

LATE = "The shell did not read the session's directory and variables in time."

_LOGIN = Source(__package__, "login")
_SESSION = Source(__package__, "session")
_MARK = "CONNMGR_TERMINAL="
"""Followed by a terminal's id: what each of its processes has in its environment."""

_BECOME = 'exec "$@"'


@dataclass(frozen=True)
class TerminalLimits:
    """Most terminals per connection and in all; one without clients ends after ``unattended`` seconds, 0: never."""

    of_connection: int
    in_all: int
    unattended: float


@dataclass(frozen=True)
class TerminalSpec:
    """A terminal to open: its command or argv, or an interactive shell; with ``surroundings`` in a session's state."""

    connection: str
    pty: Pty
    command: str | tuple[str, ...] | None = None
    session: str | None = None
    surroundings: ShellSnapshot | None = None
    record: bool = False
    sent: Mapping[str, str] = field(default_factory=dict)
    """Variables of the client's environment."""
    token: str | None = None
    """The id of the token with which it is opened; None for the owner."""

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
        publish: Publish = unheard,
    ) -> None:
        self._vault = vault
        self._publish = publish
        self._links = links
        self._streams = streams
        self.recordings = recordings
        self._limits = limits
        self._timeout = timeout
        self._lock = threading.Lock()
        self._terminals: dict[str, Terminal] = {}
        self._opening: list[tuple[str, str | None]] = []
        self._closed = self._tidying = False

    def open(self, spec: TerminalSpec, access: Access, cancellation: Cancellation = NEVER) -> Terminal:
        """Open a terminal.

        :raises connmgr.errors.CommandCancelled: the request was cancelled before the program started.
        :raises TerminalLimit: a limit is reached.
        :raises connmgr.errors.UnknownConnection: there is no such connection.
        :raises connmgr.errors.SecretLocked: ``access`` may not open a secret on the way.
        :raises connmgr.errors.OperationError: it could not be opened.
        """
        connection, pty = spec.connection, spec.pty
        shell = self._vault.connections.get(connection).data.get("shell")
        id = str(uuid.uuid4())
        with self._place(connection, access.holder), contextlib.ExitStack() as cleanup:
            about = {CONNECTION: connection, OPENER: spec.token, COMMAND: _recorded(spec.command)}
            begin = partial(self.recordings.begin, id, pty.columns, pty.rows, pty.term, access.holder, about)
            recording = begin() if spec.record else None
            if recording is not None:
                cleanup.callback(recording.close)
            program = partial(TerminalProgram, id, pty, spec.command, shell, spec.surroundings)
            printed: list[bytes] = []
            lease, channel = open_on_link(
                self._links,
                connection,
                access,
                partial(_start, program, spec.sent, printed),
                self._timeout,
                cancellation,
                spec.ground,
            )
            cleanup.pop_all()

            def ended(status: int | None) -> None:
                lease.release()
                if spec.when_ended is not None:
                    spec.when_ended(id, status)

            opened = datetime.now(timezone.utc)
            origin = Origin(id, connection, spec.session, spec.command, pty.term, opened, spec.token, access.holder)
            terminal = Terminal(
                self._streams,
                origin,
                TerminalOutput(pty.columns, pty.rows),
                lease,
                channel,
                b"".join(printed),
                recording,
                ended,
                self._tell,
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
        opened = [terminal for terminal in self.all() if terminal.origin.token in tokens]
        self._close([terminal for terminal in opened if on is None or terminal.origin.connection in on], 0.0)

    def all(self) -> list[Terminal]:
        """Return the terminals that run or ended lately, the oldest first."""
        self._tidy()
        with self._lock:
            return list(self._terminals.values())

    def silent(self, terminals: Iterable[Terminal]) -> list[Terminal]:
        """Return the ``terminals`` whose programs may wait for input and are due for a look now."""
        silent = []
        for terminal in terminals:
            if terminal.state != RUNNING:
                continue
            if not terminal.lull.note(terminal.output.end):
                self._note_waiting(terminal, None)
            elif terminal.lull.is_due(waits=terminal.waiting is not None):
                silent.append(terminal)
        return silent

    def look(self, silent: Iterable[Terminal]) -> None:
        """Find out which ``silent`` terminals wait for input; where a machine does not answer, nothing changes."""
        by_link: dict[Link, list[Terminal]] = {}
        stirs: dict[Terminal, int] = {}
        for terminal in silent:
            terminal.lull.look()
            stirs[terminal] = terminal.lull.stirs
            by_link.setdefault(terminal.lease.link, []).append(terminal)
        for link, terminals in by_link.items():
            marks = {_MARK + terminal.origin.id: terminal for terminal in terminals}
            try:
                blocked_terminals = blocked(link.transport, link.helpers, marks, WAITING_SECONDS)
            except ConnmgrError:
                # Such as a container without a shell, or a link that breaks now, which ends its terminals anyway.
                continue
            for mark, terminal in marks.items():
                # Before the look at the screen, so that output that comes meanwhile counts as news at the next look.
                end = terminal.output.end
                with terminal.output.look() as (screen, _):
                    lines = [line.rstrip() for line in screen.grid.lines[: screen.y + 1]]
                work = waiting_work(blocked_terminals.get(mark), lines, before=terminal.waiting)
                # Not if it has got input meanwhile, perhaps what it waited for.
                if terminal.state == RUNNING and terminal.lull.note(end) and terminal.lull.stirs == stirs[terminal]:
                    self._note_waiting(terminal, work)

    def _note_waiting(self, terminal: Terminal, work: WaitingWork | None) -> None:
        before, terminal.waiting = terminal.waiting, work
        if (before is None) != (work is None):
            self._tell(terminal, RUNNING if work is None else WAITING)

    def close_all(self, connection: str, access: Access) -> int:
        """Close the terminals of a connection; return how many there were.

        :raises connmgr.errors.SecretLocked: ``access`` may not open a secret that one runs on; none was closed.
        """
        running = [
            terminal
            for terminal in self.all()
            if terminal.origin.connection == connection and terminal.state == RUNNING
        ]
        for terminal in running:
            with contextlib.suppress(Outdated):
                terminal.lease.link.admission.check(access)
        self._close(running)
        return len(running)

    def forget(self, connections: Iterable[str]) -> None:
        """Close the terminals of removed or changed connections; from now on they are not found."""
        changed = set(connections)
        # Before the terminals: one that is being opened on the old link is not in the table yet, and finds its link
        # retired when it is added (_keep).
        self._links.forget(changed)
        self._forget([terminal for terminal in self.all() if terminal.origin.connection in changed])

    def close(self, timeout: float) -> None:
        """Close all terminals within about ``timeout`` seconds; none can be opened afterwards."""
        with self._lock:
            self._closed = True
            terminals = list(self._terminals.values())
        self._close(terminals, timeout)

    @contextlib.contextmanager
    def _place(self, connection: str, holder: str | None) -> Iterator[None]:
        """Count a terminal that is being opened, for the share of ``holder`` too."""
        self._tidy()
        with self._lock:
            if self._closed:
                raise Stopping("The daemon is shutting down.")
            running = [terminal.origin for terminal in self._terminals.values() if terminal.state == RUNNING]
            holders = [*((holder_of.connection, holder_of.holder) for holder_of in running), *self._opening]
            of_connection, in_all = self._limits.of_connection, self._limits.in_all
            there = [holder_of for where, holder_of in holders if where == connection]
            if len(there) >= of_connection:
                raise TerminalLimit(f"The connection already has {of_connection} terminals; close one of them first.")
            if (why := refused(of_connection, holder, there)) is not None:
                raise TerminalLimit(f"Of the connection's {of_connection} terminals {why}; close one of them first.")
            if len(holders) >= in_all:
                raise TerminalLimit(f"Too many open terminals ({in_all}); close one of them first.")
            if (why := refused(in_all, holder, [holder_of for _, holder_of in holders])) is not None:
                raise TerminalLimit(f"Of {in_all} terminals {why}; close one of them first.")
            self._opening.append((connection, holder))
        try:
            yield
        finally:
            with self._lock:
                self._opening.remove((connection, holder))

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
        # Not whether the link is usable: a program that has ended by now has released the last lease, and closed it.
        if terminal.lease.link.retired:
            self._forget([terminal])
            raise ShellBusy("The connection was changed while the terminal was opened; try again.")

    def _forget(self, terminals: Iterable[Terminal]) -> None:
        for terminal in terminals:
            with self._lock:
                entry = self._terminals.pop(terminal.origin.id, None)
            terminal.close()
            if entry is not None:
                # After its end, which the loop tells.
                self._streams.loop.call(partial(self._tell, entry, "removed"))

    def _tell(self, terminal: Terminal, change: str) -> None:
        origin = terminal.origin
        self._publish(
            TERMINAL,
            change,
            origin.connection,
            origin.id,
            token=origin.token,
            state=terminal.state,
            exit_code=terminal.exit_code,
            clients=terminal.clients,
        )

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
        """Close terminals that were unused for too long, and forget terminals that ended long ago."""
        now = datetime.now(timezone.utc)
        with self._lock:
            ended = [terminal for terminal in self._terminals.values() if terminal.ended is not None]
            ended.sort(key=lambda terminal: terminal.ended or now)
            old = [each for each in ended if each.ended and (now - each.ended).total_seconds() > KEPT_SECONDS]
            for terminal in {*old, *ended[: max(0, len(ended) - MAX_ENDED)]}:
                del self._terminals[terminal.origin.id]
                self._tell(terminal, "removed")
                terminal.drop()
            running = [terminal for terminal in self._terminals.values() if terminal.state == RUNNING]
        for terminal in running:
            if 0 < self._limits.unattended < terminal.idle_seconds:
                terminal.close()


def _recorded(command: str | tuple[str, ...] | None) -> str | None:
    text = shlex.join(command) if isinstance(command, tuple) else command
    return None if text is None else text[:COMMAND_CHARACTERS]


def _start(
    program: Callable[[Mapping[str, str]], TerminalProgram],
    sent: Mapping[str, str],
    printed: list[bytes],
    link: Link,
    timeout: float,
) -> Channel:
    channel, early = program(link.environment.select(sent)).start(link.transport, timeout)
    printed[:] = [early]
    return channel


@dataclass(frozen=True)
class TerminalProgram:
    """The program of a terminal: the text or argv ``command``, or an interactive shell.

    ``id`` marks it in its environment. With ``surroundings`` it begins in the state of that session, in its shell;
    otherwise as after a login, in the shell started by the words of ``shell``, by default the login shell.
    """

    id: str
    pty: Pty
    command: str | tuple[str, ...] | None = None
    shell: str | None = None
    surroundings: ShellSnapshot | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables to set, in place of those of the login or session."""

    @property
    def _words(self) -> list[str]:
        if isinstance(self.command, tuple):
            return [self.id, "argv", "", *self.command]
        shell = _split(self.shell) if self.surroundings is None else _interactive(self.surroundings)
        return [self.id, "shell" if self.command is None else "command", self.command or "", *shell]

    def _script(self, source: Source) -> str:
        return become() + source.text if isinstance(self.command, tuple) else source.text

    def _login(self) -> str:
        return exports(self.environment).decode() + self._script(_LOGIN)

    def start(self, transport: Transport, timeout: float) -> tuple[Channel, bytes]:
        """Start it within ``timeout`` seconds; return its channel, and its output so far.

        :raises connmgr.errors.OperationError: it could not be started.
        """
        if self.surroundings is None:
            argv = script_argv(self._login(), self._words, own_locale=True)
            return transport.open_channel(argv, pty=self.pty, timeout=timeout), b""
        deadline, mark = Deadline(timeout), new_nonce()
        own = self.surroundings
        words = [*own.argv, "-c", self._script(_SESSION), "sh", mark, *self._words]
        argv = script_argv(_BECOME, words, own_locale=True)
        channel = transport.open_channel(argv, pty=self.pty, timeout=timeout)
        try:
            return channel, _set_state(channel, own, exports(self.environment), mark.encode(), deadline)
        except BaseException:
            channel.close()
            raise


def _interactive(surroundings: ShellSnapshot) -> Sequence[str]:
    """Return the words that start a session's shell, without the options that skip its start-up files."""
    if surroundings.interpreter:
        return (surroundings.interpreter.shell,)
    return surroundings.argv[: len(surroundings.argv) - len(surroundings.dialect.options)]


def _split(shell: str | None) -> Sequence[str]:
    try:
        return shlex.split(shell or "")
    except ValueError as error:
        raise UnsupportedShell(f"shell: {error}.") from None


def _set_state(
    channel: Channel, surroundings: ShellSnapshot, exported: bytes, mark: bytes, deadline: Deadline
) -> bytes:
    """Send a session's state, then ``exported``, when the remote shell is ready; return the output after that.

    The state travels on the terminal's input, because an argv shows it to every user of the host (ps). The program must
    say that it is ready first: until its script has switched off the terminal's echo and line editing, what is sent
    would appear on the screen, and a line longer than 4,095 bytes would be cut (N_TTY_BUF_SIZE of Linux).
    """
    try:
        _await(channel, re.compile(rb"\n" + mark + rb"\n"), deadline)
        setting = Launch(id="", surroundings=surroundings).setting + exported
        channel.sendall(setting + mark + b"\n", deadline.left())
        return _await(channel, re.compile(mark + rb"\.\r?\n"), deadline)
    except TimeoutError:
        raise ConnectTimeout(LATE) from None
    except (EOFError, OSError):
        raise ShellStartFailed("The shell ended before it read the session's directory and variables.") from None


def _await(channel: Channel, ready: re.Pattern[bytes], deadline: Deadline) -> bytes:
    """Wait for ``ready``, and return the output after it."""
    printed = b""
    while (match := ready.search(printed)) is None:
        if deadline.passed:
            raise ConnectTimeout(LATE)
        if len(printed) > GREETING_BYTES:
            raise ShellStartFailed("The shell's start-up files printed too much before the session's state was sent.")
        printed += channel.recv(deadline.left())[0]
    return printed[match.end() :]
