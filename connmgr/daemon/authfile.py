"""The auth file: what a local client reads to prove that it runs as the same user."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
from pathlib import Path

from connmgr.daemon.files import CREATE, private_directory
from connmgr.daemon.way import check_way
from connmgr.errors import StartupError

_OURS = re.compile(rb"connmgr-[A-Za-z0-9_-]{43}\n?")
_LIMIT = 100


class AuthFile:
    """A file, mode 0600, with a fresh secret as its whole content; there from its construction to :meth:`remove`.

    ``path`` may lie in a directory of ours, made where there is none, or of root's; neither there nor above may another
    user put anything in its place: only a sticky directory such as ``/tmp`` may be written to by others. What a dead
    daemon left there is replaced.
    :raises StartupError: anything else is at ``path``, a running daemon's auth file too, or it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.content = f"connmgr-{secrets.token_urlsafe(32)}"
        self._path = path
        if not path.parent.exists():
            private_directory(path.parent, "directory of the auth file")
        check_way(path)
        _remove_leftover(path)
        try:
            self._descriptor = os.open(path, CREATE, 0o600)
        except OSError as error:
            raise StartupError(f"The auth file {path} cannot be made: {error.strerror}.") from error
        try:
            # Held while the daemon lives: another one sees by it that the file is no leftover.
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(self._descriptor, 0o600)
            os.write(self._descriptor, self.content.encode() + b"\n")
        except OSError as error:
            self.remove()
            raise StartupError(f"The auth file {path} cannot be written: {error.strerror}.") from error

    def remove(self) -> None:
        """Remove the file, if it is still this one; calling it again does nothing."""
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
        if not ours or not _OURS.fullmatch(os.read(descriptor, _LIMIT)):
            raise StartupError(f"Something else is at the path of the auth file, {path}; remove it.")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartupError(f"Another daemon uses the auth file {path}; choose one with --auth-file.") from None
        path.unlink()
    finally:
        os.close(descriptor)
