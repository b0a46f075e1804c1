"""Exchanges two names again and again, for tests of programs that check a name and then use it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LIMIT = 1_000_000
PAUSE = "os.urandom(1)[0] / 255 / 1000"
"""Seconds between two exchanges, in Python: random, up to the duration of a program's step, so that an exchange may
come between any two steps."""

# Two names take turns, each in one step, so that there is always one of the two.
_SWAPPER = f"""
import ctypes, os, sys, time
one, other = (os.fsencode(path) for path in sys.argv[1:])
renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
print("ready", flush=True)
for _ in range({LIMIT}):
    if renameat2(-100, one, -100, other, 2) and ctypes.get_errno() != 2:
        sys.exit(os.strerror(ctypes.get_errno()))
    time.sleep({PAUSE})
"""


@contextmanager
def swapped(one: Path, other: Path) -> Iterator[None]:
    """Exchange two names again and again, at random moments."""
    argv = [sys.executable, "-c", _SWAPPER, str(one), str(other)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as swapper:
        assert swapper.stdout
        try:
            assert swapper.stdout.readline() == b"ready\n"
            yield
            assert swapper.poll() is None, "the exchange ended too early"
        finally:
            swapper.kill()
