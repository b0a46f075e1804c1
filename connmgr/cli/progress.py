"""Lines on a terminal while a command waits or transfers; nothing is shown if stderr is no terminal."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from connmgr.client import Client, ClientError, Progress
from connmgr.printable import visible

QUIET_SECONDS = 1.0
"""Shorter waits are not shown."""

LOOK_SECONDS, LONGEST_LOOK_SECONDS = 1.0, 10.0
"""Interval of the questions about the command ahead: at first, and at most."""

ANSWER_SECONDS = 2.0
"""Limit for the daemon's answer to such a question."""

WIPE = "\r\x1b[K"
_SHOWN = "connmgr.progress"


def hush() -> None:
    """Remove the line of this module for the running command, because something is asked on the terminal."""
    end = click.get_current_context().meta.pop(_SHOWN, None)
    if end is not None:
        end()


Ahead = Callable[[float], float | None]
"""Called with the seconds waited so far; returns for how many seconds the command ahead has run, None without one."""


def ahead_in(client: Client, connection: str, session: str | None) -> Ahead:
    """Return a function that asks the daemon, by an HTTP connection of its own, for the command that a shell runs."""

    def ask(waited: float) -> float | None:
        if client.session_token is None:
            return None
        with contextlib.suppress(ClientError), client.clone(ANSWER_SECONDS) as other:
            for shell in other.shell.list(connection):
                ran = shell.command_seconds
                # A command that began before this request is another's; only the daemon's clock tells when it began.
                if shell.status.session == session and ran is not None and ran > waited and shell.status.waiting:
                    return ran
        return None

    return ask


class Waiting:
    """A line on stderr that counts the seconds, wiped when the wait is over; a thread writes it.

    If a command is ``ahead``, the line says for how long that command has run.
    """

    def __init__(self, what: str, ahead: Ahead | None = None) -> None:
        self._what = visible(what)
        self._ahead = ahead
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._count, name="progress", daemon=True)
        self._thread.start()

    def over(self) -> None:
        """Wipe the line for good."""
        self._over.set()
        self._thread.join()

    def _count(self) -> None:
        shown, ran, looked, pause = False, None, 0.0, LOOK_SECONDS
        # The terminal may be gone.
        with contextlib.suppress(OSError, ValueError):
            while not self._over.wait(QUIET_SECONDS):
                waited = time.monotonic() - self._began
                if self._ahead is not None and waited >= looked + pause:
                    looked, ran, pause = waited, self._ahead(waited), min(2 * pause, LONGEST_LOOK_SECONDS)
                sys.stderr.write(f"{WIPE}{self._what}: {_said(waited, None if ran is None else ran + waited - looked)}")
                sys.stderr.flush()
                shown = True
            if shown:
                sys.stderr.write(WIPE)
                sys.stderr.flush()


def _said(waited: float, ran: float | None) -> str:
    return f"{waited:.0f} s" if ran is None else f"waits for a command that has run for {ran:.0f} s"


@contextlib.contextmanager
def waiting(what: str, ahead: Ahead | None = None) -> Iterator[Callable[[], None]]:
    """Show on a terminal how long ``what`` takes, until the block ends or the yielded function is called."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    shown = Waiting(what, ahead)
    click.get_current_context().meta[_SHOWN] = shown.over
    try:
        yield shown.over
    finally:
        shown.over()


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
    with Progress(text, *columns, console=Console(stderr=True)) as shown:
        click.get_current_context().meta[_SHOWN] = shown.stop
        task = shown.add_task(Path(name).name, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)
