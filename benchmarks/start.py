"""The daemon's start up to its ready line, beside a bare Python and the command line's help.

Run it with ``python -m benchmarks.start``.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.timing import interleaved, print_timings
from tests.daemon import Daemon
from tests.spawner import PROGRAM

PYTHON = "python -c pass"


def main() -> None:
    """Measure a start on a new vault and on an existing one."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        starts: dict[str, list[float]] = {"serve, new vault": [], "serve, existing vault": []}
        for turn in range(6):
            home = root / f"new{turn}"
            starts["serve, new vault"].append(_seconds_to_ready(home))
            starts["serve, existing vault"].append(_seconds_to_ready(home))
        programs = {
            PYTHON: lambda: subprocess.run([sys.executable, "-c", "pass"], check=True),
            "connmgr --version": lambda: subprocess.run([PROGRAM, "--version"], check=True, stdout=subprocess.DEVNULL),
        }
        taken = interleaved(programs, calls=3, rounds=3) | starts
    print_timings(
        "Start of a process to its ready line or its end", taken, base=PYTHON, repeat="python -m benchmarks.start"
    )


def _seconds_to_ready(home: Path) -> float:
    start = time.perf_counter()
    daemon = Daemon(home, program=(str(PROGRAM),))
    taken = time.perf_counter() - start
    daemon.stop()
    return taken


if __name__ == "__main__":
    main()
