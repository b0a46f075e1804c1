"""What a terminal shows while a command waits or transfers. Nothing is shown where stderr is no terminal."""

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

PATIENCE_SECONDS = 1.0
"""Nothing is said of what takes no longer."""

LOOK_SECONDS, LONGEST_LOOK_SECONDS = 1.0, 10.0
"""Between two questions what is waited for: at first, and at most."""

ANSWER_SECONDS = 2.0
"""For the daemon to answer such a question."""

WIPE = "\r\x1b[K"
_SHOWN = "connmgr.progress"


def hush() -> None:
    """End what this module shows for the running command: something is asked on the terminal."""
    end = click.get_current_context().meta.pop(_SHOWN, None)
    if end is not None:
        end()


Ahead = Callable[[float], float | None]
"""Is told for how many seconds one has waited; returns for how many another's command has run that is before one's own,
or None if there is none."""


def ahead_in(client: Client, connection: str, session: str | None) -> Ahead:
    """Return what asks the daemon, over an HTTP connection of its own, which command a shell of ``connection`` runs."""

    def ask(waited: float) -> float | None:
        if client.session_token is None:
            return None
        with contextlib.suppress(ClientError), client.clone(ANSWER_SECONDS) as other:
            for shell in other.shell.list(connection):
                ran = shell.command_seconds
                # What began before the request came is another's; the daemon's clock alone tells when it began.
                if shell.status.session == session and ran is not None and ran > waited and shell.status.waiting:
                    return ran
        return None

    return ask


class Waiting:
    """A line on stderr that counts the seconds, wiped when the wait is over; a thread writes it.

    Where a command is ``ahead``, the line tells for how long that has run.
    """

    def __init__(self, what: str, ahead: Ahead | None = None) -> None:
        self._what = visible(what)
        self._ahead = ahead
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._count, name="progress", daemon=True)
        self._thread.start()

    def over(self) -> None:
        """Wipe the line; it does not come again."""
        self._over.set()
        self._thread.join()

    def _count(self) -> None:
        shown, ran, looked, pause = False, None, 0.0, LOOK_SECONDS
        # A terminal that is gone needs no line.
        with contextlib.suppress(OSError, ValueError):
            while not self._over.wait(PATIENCE_SECONDS):
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
    """Say on a terminal how long ``what`` takes, until the block ends or the function that it gives is called."""
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
    """Show on a terminal how far the transfer of a file is, by the function that it gives."""
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
