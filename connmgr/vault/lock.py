"""Allows one daemon per vault: the system releases the lock whenever its holder ends."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from types import TracebackType

from connmgr.errors import StartupError

HOLDER_BYTES = 400


class VaultLock:
    """Holds the lock file ``path`` until :meth:`release`; the file stays, and names its last holder and its address.

    A vault on PostgreSQL needs no lock, because daemons share it.
    :raises StartupError: another process holds it, or the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            raise StartupError(f"The lock file {path} cannot be opened: {error.strerror}.") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._descriptor, HOLDER_BYTES, 0).decode("ascii", "replace").splitlines()
            os.close(self._descriptor)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise StartupError(f"The lock file {path} cannot be locked: {error.strerror}.") from error
            pid, url = [*holder, "", ""][:2]
            where = f" and listens on {url}" if url else ""
            raise StartupError(f"Another connmgr daemon (pid {pid or 'unknown'}) uses this vault{where}.") from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def tell(self, url: str) -> None:
        """Write the holder's address into the file, for programs that find the lock taken."""
        os.pwrite(self._descriptor, f"{os.getpid()}\n{url}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock; calling it again does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> VaultLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
