"""Reads files on the daemon's machine that a connection or a configuration names, without ever blocking."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MAX_FILE_BYTES = 16 << 20
"""Largest file that is read; even long lists of known hosts are far smaller."""


def read(path: Path) -> tuple[bytes, os.stat_result]:
    """Return the content of a regular file, and its status; ``/dev/null`` is an empty one, as for ``ssh``.

    :raises OSError: with a ``strerror`` for people: it cannot be opened, is a FIFO, a device or a directory, or is too
        large.
    """
    # O_NONBLOCK: opening a FIFO would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == os.stat(os.devnull).st_rdev:  # noqa: PTH116 - a constant
            return b"", status
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MAX_FILE_BYTES >> 20} MiB", str(path))
    return content, status
