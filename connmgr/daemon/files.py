"""Files and directories that only the daemon's user may use."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path

from connmgr.errors import StartupError

CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def private_directory(path: Path, purpose: str) -> None:
    """Make ``path`` a directory of mode 0700, or check that it is one; an empty one of ours is closed to others.

    :raises StartupError: it cannot be created, is not ours, or is open to others; ``purpose`` names it.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
        if status.st_uid == os.geteuid() and status.st_mode & 0o077 and not any(path.iterdir()):
            path.chmod(0o700)
            status = path.stat()
    except FileExistsError:
        raise StartupError(f"The {purpose} {path} is not a directory.") from None
    except OSError as error:
        raise StartupError(f"The {purpose} {path} cannot be used: {error.strerror}.") from error
    if status.st_uid != os.geteuid():
        raise StartupError(f"The {purpose} {path} belongs to another user; use one of your own.")
    if status.st_mode & 0o077:
        raise StartupError(f"The {purpose} {path} is open to others: run chmod 700 {path}")


def read_private(path: Path, limit: int) -> str | None:
    """Return the text in a file of ours, mode 0600, at most ``limit`` bytes; None if there is none.

    :raises StartupError: it is open to others, not ours, a link, or no file.
    """
    try:
        # O_NONBLOCK, so that a FIFO is refused instead of waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise StartupError(f"The file {path} cannot be read: {reason}.") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise StartupError(f"The file {path} is not a file of your own.")
        if status.st_mode & 0o077:
            raise StartupError(f"The file {path} is open to others: run chmod 600 {path}")
        return os.read(descriptor, limit).decode("utf-8", "replace")
    finally:
        os.close(descriptor)


def replace_private(path: Path, text: str) -> None:
    """Replace the content of ``path``, mode 0600, atomically and durably.

    :raises StartupError: it cannot be written.
    """
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(fresh, CREATE, 0o600)
        try:
            os.write(descriptor, text.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise StartupError(f"The file {path} cannot be written: {error.strerror}.") from error
