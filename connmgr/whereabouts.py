"""The file beside an auth file that tells clients where the daemon listens."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import NamedTuple

from connmgr.peers import is_trusted

MAX_FILE_BYTES = 4096


class Whereabouts(NamedTuple):
    """A running daemon: its ``url``, its process, and its ``version``.

    ``started`` is the clock ticks from the machine's boot to the start of the process, None if the system does not
    tell.
    """

    url: str
    pid: int
    started: int | None
    version: str

    def text(self) -> str:
        """Return the content of the file, for :func:`read`."""
        return json.dumps(self._asdict()) + "\n"


def file_of(auth_file: Path) -> Path:
    """Return the path of this file for the daemon with this ``auth_file``."""
    # Several daemons may have their auth files in one directory.
    return auth_file.with_name("daemon.json" if auth_file.name == "auth" else f"{auth_file.name}.daemon.json")


def find(auth_file: Path) -> Whereabouts | None:
    """Return the content for the daemon with this ``auth_file``, or None if it does not run or left no file."""
    try:
        return read(file_of(auth_file))
    except OSError:
        return None


def read(path: Path) -> Whereabouts:
    """Return the content that a running daemon has written to ``path``.

    :raises OSError: there is no such file, or it is not trusted, as its ``strerror`` says: others could have written
        it, it is not a daemon's, or its daemon does not run (:class:`ProcessLookupError`).
    """
    # O_NONBLOCK, so that a FIFO is refused instead of waited for.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or not is_trusted(status.st_uid):
            raise PermissionError(errno.EPERM, "it is not a file of this user or root", str(path))
        if status.st_mode & 0o077:
            raise PermissionError(errno.EPERM, "it is open to others", str(path))
        found = _parsed(os.read(descriptor, MAX_FILE_BYTES))
    finally:
        os.close(descriptor)
    if found is None:
        raise OSError(errno.EINVAL, "it is not a daemon's", str(path))
    if not _runs(found):
        raise ProcessLookupError(errno.ESRCH, f"its daemon, process {found.pid}, does not run", str(path))
    return found


def url_of(host: str, port: int | str) -> str:
    """Return the URL of a daemon that listens on ``host``; a wildcard address is reached over loopback."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - nothing is bound
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def start_of(pid: int) -> int | None:
    """Return the clock ticks from boot to the start of a process, or None without ``/proc``.

    :raises ProcessLookupError: no such process runs.
    """
    try:
        # The program's name may contain blanks and parentheses.
        state, *fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (OSError, ValueError):
        os.kill(pid, 0)
        return None
    if state in b"ZX":
        raise ProcessLookupError(errno.ESRCH, "it has ended")
    return int(fields[18])


def _parsed(content: bytes) -> Whereabouts | None:
    try:
        found = Whereabouts(**json.loads(content))
    except (ValueError, TypeError, RecursionError):
        return None
    texts = isinstance(found.url, str) and isinstance(found.version, str)
    numbers = isinstance(found.pid, int) and found.pid > 0 and isinstance(found.started, int | None)
    return found if texts and numbers else None


def _runs(found: Whereabouts) -> bool:
    try:
        return found.started == start_of(found.pid)
    except PermissionError:
        # Another user's process has this id.
        return False
    except (ProcessLookupError, OverflowError):
        return False
