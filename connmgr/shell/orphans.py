"""Finds the local shells that a killed daemon left behind, and ends them at the next start."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

logger = logging.getLogger("connmgr.shell")

REAP_SECONDS = 3.0
START_TOLERANCE_SECONDS = 0.05
"""Seconds by which two readings of one process's start time may differ."""


class Orphans:
    """A file that names each local shell by process id and start time, so that no other process is mistaken for one.

    If it cannot be written, for example on a full disk, this is logged; the next change writes the whole file again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._shells: dict[int, float] = {}

    def reap(self) -> int:
        """Kill the shells in the file, with their child processes, and return their number."""
        left = self._read()
        killed = [pid for pid, started in left.items() if _kill_left(pid, started)]
        self._write()
        return len(killed)

    def remember(self, pid: int) -> None:
        """Add a new shell to the file."""
        # Imported here, because the daemon works without this file.
        import psutil

        with self._lock, contextlib.suppress(psutil.Error):
            self._shells[pid] = psutil.Process(pid).create_time()
            self._write()

    def forget(self, pid: int) -> None:
        """Remove a shell that has ended from the file."""
        with self._lock:
            if self._shells.pop(pid, None) is not None:
                self._write()

    def _read(self) -> dict[int, float]:
        try:
            entries = json.loads(self._path.read_text())
            return {int(pid): float(started) for pid, started in entries.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError):
            return {}  # cut short by a crash: its content cannot be trusted

    def _write(self) -> None:
        try:
            self._replace()
        except OSError as error:
            # The shells work without the file. An ended shell that is still named in it is distinguished from other
            # processes by its start time.
            logger.warning("Shells left by a killed daemon may not be found: %s: %s.", self._path.name, error.strerror)

    def _replace(self) -> None:
        descriptor, name = tempfile.mkstemp(prefix=".shells-", dir=self._path.parent)
        try:
            with os.fdopen(descriptor, "w") as file:
                json.dump(self._shells, file)
            Path(name).replace(self._path)
        except BaseException:
            Path(name).unlink()
            raise


def _kill_left(pid: int, started: float) -> bool:
    """Kill the shell with its child processes, if it still runs; return whether it did."""
    import psutil

    with contextlib.suppress(psutil.Error):
        shell = psutil.Process(pid)
        if abs(shell.create_time() - started) <= START_TOLERANCE_SECONDS:
            _kill_tree(shell)
            return True
    return False


def _kill_tree(shell: psutil.Process) -> None:
    import psutil

    tree = [shell, *shell.children(recursive=True)]
    for process in tree:
        with contextlib.suppress(psutil.Error):
            process.suspend()
    for process in {*tree, *shell.children(recursive=True)}:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(tree, REAP_SECONDS)
