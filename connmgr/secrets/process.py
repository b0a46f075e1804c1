"""Keeps the process's memory from the disk and from other programs."""

from __future__ import annotations

import ctypes
import os
import resource
import sys

_PR_SET_DUMPABLE = 4


def harden() -> None:
    """Switch core dumps off, and on Linux hide this process's memory from the user's other processes.

    Without the dumpable flag, files under ``/proc/<pid>`` belong to root and the user's debuggers cannot attach.
    Programs started from here have the flag again, and may raise the limit of core dumps.
    :raises OSError: the kernel refused.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
