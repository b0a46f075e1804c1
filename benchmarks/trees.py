"""3,000 small files over SSH, up and down, by ``connmgr cp -r`` beside ``scp -r`` and rsync over a ControlMaster.

Run it with ``python -m benchmarks.trees``. Each target is a new directory.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.daemon import temporary_daemon
from benchmarks.openssh import master, ssh_connection
from benchmarks.timing import interleaved, print_timings
from tests.daemon import Daemon
from tests.plugins.oneself import ssh_server
from tests.plugins.sshd import Sshd

FILES = 3000
PER_DIRECTORY = 100
SIZE = 2000
REPEAT = "python -m benchmarks.trees"


def main() -> None:
    """Measure both ways."""
    with tempfile.TemporaryDirectory() as scratch, temporary_daemon() as daemon:
        directory = Path(scratch)
        plant(directory / "tree")
        home = directory / "home"
        home.mkdir()
        with ssh_server(home, Subsystem="sftp internal-sftp") as server, master(server) as options:
            _measure(daemon, server, directory, options)


def plant(tree: Path, files: int = FILES) -> None:
    """Write the files below ``tree``."""
    for number in range(files):
        path = tree / f"{number // PER_DIRECTORY:03}" / f"{number:05}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(SIZE))


def _measure(daemon: Daemon, server: Sshd, directory: Path, options: list[str]) -> None:
    connection = ssh_connection(daemon, server)
    daemon.client.shell.start(connection)
    tree, host, names = directory / "tree", f"{server.user}@127.0.0.1", itertools.count()
    ssh = " ".join(["ssh", *options])

    def fresh(run: Callable[[str], None]) -> Callable[[], None]:
        def call() -> None:
            target = directory / f"copy{next(names)}"
            run(str(target))
            shutil.rmtree(target)

        return call

    # The copies are removed in the same way for all.
    calls = {
        "up: scp -r": fresh(lambda to: _run("scp", "-qr", *options, str(tree), f"{host}:{to}")),
        "up: connmgr cp -r": fresh(lambda to: _cp(daemon, str(tree), f"{connection}:{to}")),
        "down: scp -r": fresh(lambda to: _run("scp", "-qr", *options, f"{host}:{tree}", to)),
        "down: connmgr cp -r": fresh(lambda to: _cp(daemon, f"{connection}:{tree}", to)),
    }
    if shutil.which("rsync"):
        calls["up: rsync -r"] = fresh(lambda to: _run("rsync", "-r", "-e", ssh, f"{tree}/", f"{host}:{to}"))
        calls["down: rsync -r"] = fresh(lambda to: _run("rsync", "-r", "-e", ssh, f"{host}:{tree}/", to))
    taken = interleaved(calls, calls=1)
    for way in ("up", "down"):
        some = {name: seconds for name, seconds in taken.items() if name.startswith(way)}
        print_timings(f"{FILES} files of {SIZE} bytes {way} over SSH", some, base=f"{way}: scp -r", repeat=REPEAT)


def _cp(daemon: Daemon, source: str, target: str) -> None:
    environment = {**daemon.environment, "CONNMGR_PORT": daemon.url.rpartition(":")[2]}
    argv = [str(Path(sys.executable).parent / "connmgr"), "cp", "-r", "-q", source, target]
    subprocess.run(argv, env=environment, check=True, timeout=120)


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, timeout=120)


if __name__ == "__main__":
    main()
