"""The auth file: local clients read it to prove that they run as the same user."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
from pathlib import Path

from connmgr.daemon.files import CREATE, private_directory
from connmgr.daemon.path_check import check_path
from connmgr.errors import StartupError

_OURS = re.compile(rb"connmgr-[A-Za-z0-9_-]{43}\n?")
_MAX_FILE_BYTES = 100


class AuthFile:
    """A file, mode 0600, with a new secret; it exists from construction to :meth:`remove`.

    A leftover of a dead daemon at ``path`` is replaced. A missing directory is created; it must belong to this user or
    root, and no other user may be able to replace the file: see :func:`check_path`.
    :raises StartupError: something else is at ``path``, such as a running daemon's auth file, or it cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self.content = f"connmgr-{secrets.token_urlsafe(32)}"
        self._path = path
        if not path.parent.exists():
            private_directory(path.parent, "directory of the auth file")
        check_path(path)
        _remove_leftover(path)
        try:
            self._descriptor = os.open(path, CREATE, 0o600)
        except OSError as error:
            raise StartupError(f"The auth file {path} cannot be made: {error.strerror}.") from error
        try:
            # Locked while the daemon lives; a file without the lock is a leftover.
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(self._descriptor, 0o600)
            os.write(self._descriptor, self.content.encode() + b"\n")
        except OSError as error:
            self.remove()
            raise StartupError(f"The auth file {path} cannot be written: {error.strerror}.") from error

    def remove(self) -> None:
        """Remove the file if it is still this one; calling it again does nothing."""
        if self._descriptor < 0:
            return
        own = os.fstat(self._descriptor)
        try:
            found = self._path.lstat()
            if (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino):
                self._path.unlink()
        except FileNotFoundError:
            return
        finally:
            os.close(self._descriptor)
            self._descriptor = -1


def _remove_leftover(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StartupError(f"Something else is at the path of the auth file, {path}; remove it.") from error
    try:
        status = os.fstat(descriptor)
        ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink == 1
        if not ours or not _OURS.fullmatch(os.read(descriptor, _MAX_FILE_BYTES)):
            raise StartupError(f"Something else is at the path of the auth file, {path}; remove it.")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartupError(f"Another daemon uses the auth file {path}; choose one with --auth-file.") from None
        path.unlink()
    finally:
        os.close(descriptor)
