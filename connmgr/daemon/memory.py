"""Keeps the memory of large output and files from staying with the process after it was freed."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
LARGE_BLOCK = 256 * 1024
KEPT = 1024 * 1024


def return_large_blocks() -> None:
    """Have the C library give blocks of 256 KiB and more back to the system as soon as they are freed.

    glibc otherwise raises that threshold with use (mallopt(3)), and each thread's arena keeps what it once held. After
    eight commands at once with 12 MB of output each the daemon kept 230 MiB; with it, 5 MiB. Setting that has it also
    return what is free at an arena's end beyond 128 KiB, and fetch it again, page by page, for each piece of a file:
    a quarter of the time that sending one took. So up to 1 MiB is kept. Other C libraries are left alone.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK)
            libc.mallopt(_M_TRIM_THRESHOLD, KEPT)
