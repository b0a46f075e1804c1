"""Whether the files are closed to other users, and no file is newer than the clock says."""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from connmgr import paths
from connmgr.cli.doctor.finding import OK, PROBLEM, WARNING, Examined, Finding

MIN_FREE_BYTES = 100 * 1024 * 1024
MAX_CLOCK_SKEW_SECONDS = 300.0


def data_directory(examined: Examined) -> Iterator[Finding]:
    """Examine the data directory, each file in it, and the free space on its disk."""
    directory = examined.settings.data_dir
    if not directory.exists():
        yield Finding("data directory", OK, f"{directory} is made at the first start")
        return
    yield private("data directory", directory, 0o700)
    wrong = [found for path in sorted(directory.iterdir()) if (found := _private_entry(path)).result != OK]
    yield from wrong
    if not wrong:
        yield Finding("files", OK, "all in the data directory are closed to others")
    free = shutil.disk_usage(directory).free
    if free < MIN_FREE_BYTES:
        yield Finding("disk", WARNING, f"{free >> 20} MiB are free at {directory}", "Make room, or move --data-dir.")
    else:
        yield Finding("disk", OK, f"{free >> 20} MiB are free")


def _private_entry(path: Path) -> Finding:
    return private(path.name, path, 0o700 if path.is_dir() else 0o600)


def private(subject: str, path: Path, mode: int) -> Finding:
    """Judge whether ``path`` is this user's own and closed to others, as with ``mode``."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return Finding(subject, PROBLEM, f"{path} is a symbolic link", "Put the file itself there.")
    if status.st_uid != os.geteuid():
        return Finding(subject, PROBLEM, f"{path} belongs to another user", "Run connmgr as that user, or chown it.")
    if status.st_mode & 0o077:
        return Finding(subject, PROBLEM, f"{path} is open to others", f"chmod {mode:o} {path}")
    return Finding(subject, OK, f"{path} is closed to others")


def config(examined: Examined) -> Iterator[Finding]:
    """Examine who may read and write the configuration file."""
    path = paths.config_file(os.environ)
    if not path.exists():
        yield Finding("config.toml", OK, "there is none")
    elif path.stat().st_mode & 0o022:
        yield Finding("config.toml", PROBLEM, f"others may write {path}", f"chmod 600 {path}")
    elif path.stat().st_mode & 0o044 and examined.settings.database_url:
        message = f"others may read {path}, and the database's password if it holds one"
        yield Finding("config.toml", WARNING, message, f"chmod 600 {path}")
    else:
        yield Finding("config.toml", OK, str(path))


def clock(examined: Examined) -> Iterator[Finding]:
    """Compare the clock with the times of the vault's files."""
    directory = examined.settings.data_dir
    files = list(directory.glob("*")) if directory.exists() else []
    ahead = max((path.lstat().st_mtime for path in files), default=0.0) - time.time()
    if ahead > MAX_CLOCK_SKEW_SECONDS:
        advice = "Set the clock: times in the vault, the log and certificates depend on it."
        yield Finding("clock", PROBLEM, f"files of the vault are from {ahead:.0f} s in the future", advice)
    else:
        yield Finding("clock", OK, time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()))
