"""Files of the daemon's machine that a connection or a configuration names: read without ever waiting for them."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

LIMIT = 16 << 20
"""Bytes that a file may have: the longest lists of known hosts have a fraction of that."""


def read(path: Path) -> tuple[bytes, os.stat_result]:
    """Return what a regular file holds, and its status; ``/dev/null`` stands for an empty one, as with ``ssh``.

    :raises OSError: with a ``strerror`` for people: it cannot be opened, is a FIFO, a device or a directory, or has
        more than :data:`LIMIT` bytes.
    """
    # O_NONBLOCK: to open a FIFO would be to wait for somebody who writes to it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == os.stat(os.devnull).st_rdev:  # noqa: PTH116 - a constant
            return b"", status
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        content = file.read(LIMIT + 1)
    if len(content) > LIMIT:
        raise OSError(errno.EFBIG, f"it has more than {LIMIT >> 20} MiB", str(path))
    return content, status
