"""What a terminal shows while a command waits or transfers. Nothing is shown where stderr is no terminal."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from connmgr.cli.output import visible
from connmgr.client import Progress

PATIENCE_SECONDS = 1.0
"""Nothing is said of what takes no longer."""

WIPE = "\r\x1b[K"
_SHOWN = "connmgr.progress"


def hush() -> None:
    """End what this module shows for the running command: something is asked on the terminal."""
    end = click.get_current_context().meta.pop(_SHOWN, None)
    if end is not None:
        end()


class Waiting:
    """A line on stderr that counts the seconds, wiped when the wait is over; a thread writes it."""

    def __init__(self, what: str) -> None:
        self._what = visible(what)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._count, name="progress", daemon=True)
        self._thread.start()

    def over(self) -> None:
        """Wipe the line; it does not come again."""
        self._over.set()
        self._thread.join()

    def _count(self) -> None:
        began = time.monotonic()
        shown = False
        # A terminal that is gone needs no line.
        with contextlib.suppress(OSError, ValueError):
            while not self._over.wait(PATIENCE_SECONDS):
                sys.stderr.write(f"{WIPE}{self._what}: {time.monotonic() - began:.0f} s")
                sys.stderr.flush()
                shown = True
            if shown:
                sys.stderr.write(WIPE)
                sys.stderr.flush()


@contextlib.contextmanager
def waiting(what: str) -> Iterator[Callable[[], None]]:
    """Say on a terminal how long ``what`` takes, until the block ends or the function that it gives is called."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    shown = Waiting(what)
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
