"""Sessions of a connection for programs with many processes: each session is used by one process at a time."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

from connmgr.client.address import default_auth_file

MAX_SLOTS = 12
"""Most sessions per connection; the daemon allows 16 for all programs together."""


class Slot:
    """A session of a connection that no other process of this ``program`` and user uses; ``session`` is its name.

    It is left open for the next process, which need not start a shell. If all sessions are in use, it waits for the one
    chosen by this process's id.
    """

    def __init__(self, program: str, connection: str) -> None:
        directory = _directory(program)
        for number in range(1, MAX_SLOTS + 1):
            self.session = f"{program}-{number}"
            self._lock = _opened(directory, connection, number)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._lock)
            else:
                return
        number = 1 + os.getpid() % MAX_SLOTS
        self.session = f"{program}-{number}"
        self._lock = _opened(directory, connection, number)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def release(self) -> None:
        """Leave the session to other processes."""
        os.close(self._lock)


def is_slot(program: str, session: str | None) -> bool:
    """Whether ``session`` is the name of a slot of ``program``."""
    return session is not None and session.startswith(f"{program}-")


def _directory(program: str) -> Path:
    """Return the directory of the locks: beside the auth file, or in tmp if no daemon of this machine has created that.

    :raises OSError: it cannot be created, or belongs to another user.
    """
    beside = default_auth_file().parent
    if beside.is_dir():
        directory = beside / program
    else:
        directory = Path(tempfile.gettempdir()) / f"connmgr-{os.geteuid()}-{program}"
    directory.mkdir(mode=0o700, exist_ok=True)
    if directory.is_symlink() or directory.stat().st_uid != os.geteuid():
        raise PermissionError(f"{directory} belongs to another user: remove it, or have it removed.")
    return directory


def _opened(directory: Path, connection: str, number: int) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(directory / f"{connection}.{number}", flags, 0o600)
