"""What the process does so that its memory is not written to a disk or shown to others."""

from __future__ import annotations

import ctypes
import os
import resource
import sys

_PR_SET_DUMPABLE = 4


def harden() -> None:
    """Switch core dumps off, and on Linux keep the user's other processes from reading this one's memory.

    Only the soft limit is lowered: a command run in a shell may still ask for core dumps of its own. A kernel that
    pipes cores to a program ignores that limit, but not the dumpable flag. With the flag off, ``mem`` and ``environ``
    under ``/proc/<pid>`` belong to root, and no debugger of the same user can attach. Programs started from here have
    it on again.
    :raises OSError: the kernel refused.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
