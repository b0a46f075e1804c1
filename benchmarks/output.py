"""100 MB of a command's standard output: the time, and the growth of the daemon's memory.

Run it with ``python -m benchmarks.output``. At the default limit the daemon drops most of the output;
with a higher limit it answers all.
"""

from __future__ import annotations

import subprocess
import threading
import time

import psutil

from benchmarks.daemon import local_connection, temporary_daemon
from benchmarks.timing import print_table

MEGABYTE = 1_000_000
SIZE = 100 * MEGABYTE
COMMAND = f"yes 'one hundred megabytes of text' | head -c {SIZE}"
SAMPLES_PER_SECOND = 200


class PeakMemory:
    """The peak of a process's resident memory during the block, in bytes above the value before it."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._done = threading.Event()
        self._watcher = threading.Thread(target=self._watch)
        self._before = self._peak = 0

    def __enter__(self) -> PeakMemory:
        self._before = self._peak = self._process.memory_info().rss
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._watcher.join()

    @property
    def growth(self) -> int:
        return self._peak - self._before

    def _watch(self) -> None:
        while not self._done.wait(1 / SAMPLES_PER_SECOND):
            self._peak = max(self._peak, self._process.memory_info().rss)


def main() -> None:
    """Measure one command with dropped output, with whole output, and without the daemon."""
    rows = [_daemon("default limit"), _daemon("all of it kept", "--max-output", str(128 * 1024 * 1024)), _subprocess()]
    heads = ("", "received MB", "seconds", "MB/s", "daemon grew MiB", "after MiB")
    print_table("100 MB of standard output, local bash", heads, rows, repeat="python -m benchmarks.output")


def _daemon(title: str, *options: str) -> tuple[str, ...]:
    with temporary_daemon(*options) as daemon:
        connection = local_connection(daemon, "bash")
        with PeakMemory(daemon.pid) as memory:
            before = psutil.Process(daemon.pid).memory_info().rss
            start = time.perf_counter()
            answer = daemon.client.post("/shell/exec", connection=connection, command=COMMAND)
            taken = time.perf_counter() - start
        after = psutil.Process(daemon.pid).memory_info().rss - before
    received = len(answer["stdout"])
    return _row(f"/shell/exec, {title}", received, taken, f"{memory.growth / 2**20:.1f}", f"{after / 2**20:.1f}")


def _subprocess() -> tuple[str, ...]:
    start = time.perf_counter()
    finished = subprocess.run(["bash", "-c", COMMAND], stdout=subprocess.PIPE, check=True)
    return _row("subprocess.run(['bash', '-c', …])", len(finished.stdout), time.perf_counter() - start, "", "")


def _row(title: str, received: int, seconds: float, grew: str, after: str) -> tuple[str, ...]:
    return title, f"{received / MEGABYTE:.1f}", f"{seconds:.2f}", f"{SIZE / MEGABYTE / seconds:.0f}", grew, after


if __name__ == "__main__":
    main()
