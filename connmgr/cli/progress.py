"""Lines on stderr while a command waits or transfers, and the questions that replace them.

Without a terminal the only line says that a command waits for another one.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from connmgr.cli.plain import QUIET_SECONDS
from connmgr.client import ClientError
from connmgr.printable import gist, visible

if TYPE_CHECKING:
    import socket

    import click

    from connmgr.client import Client, Progress
    from connmgr.contract.shell import RunningCommandInfo as RunningCommand


LOOK_SECONDS, LONGEST_LOOK_SECONDS = 1.0, 10.0
"""Interval of the questions about the command ahead: at first, and at most."""

ANSWER_SECONDS = 2.0
"""Limit for the daemon's answer to such a question."""

NAMED = 3
"""Names in the line about many connections; more would not fit."""

WIPE = "\r\x1b[K"
_SHOWN = "connmgr.progress"


def hush() -> None:
    """Remove the line of this module for the running command, because something is asked on the terminal."""
    end = _context().meta.pop(_SHOWN, None)
    if end is not None:
        end()


def replaceable(context: click.Context, end: Callable[[], None]) -> None:
    """Let questions of the command of ``context`` remove a line that ``end`` wipes."""
    context.meta[_SHOWN] = end


def _context() -> click.Context:
    # The front shows such a line, too, and loads no library for it.
    from click import get_current_context

    return get_current_context()


def has_terminal() -> bool:
    """Whether somebody can be asked: standard input may be a pipe or a file, but not standard error."""
    if not sys.stderr.isatty():
        return False
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def ask_secret(prompt: str) -> str:
    """Ask for a password or passphrase on the terminal, without echo."""
    # Imported here, because most commands ask nothing.
    import getpass

    hush()
    return getpass.getpass(f"{prompt}: ")


class CommandAhead(NamedTuple):
    """A command that runs before one's own, for ``seconds``; ``gist`` is its text, as far as one may see it."""

    gist: str
    seconds: float

    def after(self, seconds: float) -> str:
        """Return what to say of it ``seconds`` later."""
        return f"waiting for {self.gist}, running for {self.seconds + seconds:.0f} s in this shell"


Ahead = Callable[[float], CommandAhead | None]
"""Called with the seconds waited so far; returns the command ahead, None without one."""


def ahead_in(client: Client, connection: str, session: str | None) -> Ahead:
    """Return a function that asks the daemon, by an HTTP connection of its own, for the command that a shell runs."""

    def ask(waited: float) -> CommandAhead | None:
        if client.session_token is None:
            return None
        with contextlib.suppress(ClientError), client.clone(ANSWER_SECONDS) as other:
            for shell in other.shell.list(connection):
                ran = shell.command_seconds
                # A command that began before this request is another's; only the daemon's clock tells when it began.
                is_it = (shell.status.connection, shell.status.session) == (connection, session)
                if is_it and ran is not None and ran > waited and shell.status.waiting:
                    return CommandAhead(_gist(shell.running), ran)
        return None

    return ask


def _gist(running: RunningCommand | None) -> str:
    if running is None:
        return "another's command"
    by = running.client if running.token is None else f"{running.client} with the token {running.token}"
    return f"`{gist(running.command.strip())}` of {visible(by)}"


def touches(client: Client, waited: float) -> Callable[[], None]:
    """Say on the terminal when a login waits for the touch of a security key; return a function that ends that."""
    from connmgr.client.sessions import TouchWatch

    def tell(name: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"{WIPE}connmgr: {visible(name)}: touch your security key to log in\n")
            sys.stderr.flush()

    return TouchWatch(client, tell, waited=waited).over


def patience(client: Client) -> None:
    """Let each request of ``client`` that is not answered at once tell of touches that it waits for, at a terminal."""
    if not sys.stderr.isatty():
        return
    watches: list[Callable[[], None]] = []

    def wait(answering: socket.socket) -> None:
        news = select.poll()
        news.register(answering, select.POLLIN)
        while watches:
            watches.pop()()
        # A handshake goes to no machine, so that nobody has to touch a key for it.
        if not news.poll(QUIET_SECONDS * 1000) and client.session_token is not None:
            watches.append(touches(client, QUIET_SECONDS))

    client.patience(wait)


class Waiting:
    """A line on stderr that counts the seconds, wiped when the wait is over; a thread writes it.

    If a command is ``ahead``, the line says which, and for how long it has run. Without a terminal only that is said,
    once, and stays.
    """

    def __init__(self, what: str, ahead: Ahead | None = None, *, waited: float = 0.0) -> None:
        self._what = visible(what)
        self._ahead = ahead
        self._began = time.monotonic() - waited
        self._first_pause = max(0.0, QUIET_SECONDS - waited)
        self._over = threading.Event()
        # A daemon thread, so that a stopped terminal (Ctrl-S) cannot keep the program from ending.
        run = self._count if sys.stderr.isatty() else self._tell_once
        self._thread = threading.Thread(target=run, name="progress", daemon=True)
        self._thread.start()

    def say(self, what: str) -> None:
        """Count the seconds of ``what`` from now on."""
        self._what = visible(what)

    def over(self) -> None:
        """Wipe the line for good."""
        self._over.set()
        self._thread.join()

    def _count(self) -> None:
        is_shown, command, last_look, pause = False, None, 0.0, LOOK_SECONDS
        # The terminal may be gone.
        with contextlib.suppress(OSError, ValueError):
            # Commands that are over in a second show nothing: a line that comes and goes at once only flickers.
            while not self._over.wait(QUIET_SECONDS if is_shown else self._first_pause):
                waited = time.monotonic() - self._began
                if self._ahead is not None and waited >= last_look + pause:
                    last_look, command, pause = waited, self._ahead(waited), min(2 * pause, LONGEST_LOOK_SECONDS)
                text = f"{waited:.0f} s" if command is None else command.after(waited - last_look)
                sys.stderr.write(f"{WIPE}{self._what}: {text}")
                sys.stderr.flush()
                is_shown = True
            if is_shown:
                sys.stderr.write(WIPE)
                sys.stderr.flush()

    def _tell_once(self) -> None:
        pause = self._first_pause
        # The reader of stderr may be gone.
        with contextlib.suppress(OSError, ValueError):
            while self._ahead is not None and not self._over.wait(pause):
                command = self._ahead(time.monotonic() - self._began)
                # The wait may have ended while the daemon was asked.
                if command is not None and not self._over.is_set():
                    sys.stderr.write(f"connmgr: {self._what}: {command.after(0)}\n")
                    sys.stderr.flush()
                    return
                pause = min(max(LOOK_SECONDS, 2 * pause), LONGEST_LOOK_SECONDS)


@contextlib.contextmanager
def waiting(what: str, ahead: Ahead | None = None) -> Iterator[Callable[[], None]]:
    """Show how long ``what`` takes, until the block ends or the yielded function is called.

    Without a terminal, say only if it waits for a command that is ``ahead``.
    """
    if ahead is None and not sys.stderr.isatty():
        yield lambda: None
        return
    line = Waiting(what, ahead)
    replaceable(_context(), line.over)
    try:
        yield line.over
    finally:
        line.over()


Counted = Callable[[Sequence[str], int], None]
"""Called with the names of the connections that are not done, and with the number of those that failed."""


@contextlib.contextmanager
def counting(names: Sequence[str]) -> Iterator[Counted]:
    """Show on a terminal how many of ``names`` are done, and a few that are not; the yielded function updates it."""

    def text(left: Sequence[str], failed: int) -> str:
        some = f", waiting for {', '.join(left[:NAMED])}{', …' * (len(left) > NAMED)}" if left else ""
        return f"{len(names) - len(left)} of {len(names)} done{f', {failed} failed' if failed else ''}{some}"

    if not sys.stderr.isatty():
        yield lambda _left, _failed: None
        return
    line = Waiting(text(names, 0))
    replaceable(_context(), line.over)
    try:
        yield lambda left, failed: line.say(text(left, failed))
    finally:
        line.over()


@contextlib.contextmanager
def transferring(name: str, *, quiet: bool) -> Iterator[Progress | None]:
    """Yield a function that shows on a terminal how far the transfer of a file is."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn())
    text = TextColumn("{task.description}", markup=False)
    with Progress(text, *columns, console=Console(stderr=True)) as bar:
        replaceable(_context(), bar.stop)
        task = bar.add_task(Path(name).name, total=None)
        yield lambda position, total: bar.update(task, completed=position, total=total)
