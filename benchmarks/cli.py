"""Processes of the command line: their start, and ``connmgr exec`` beside ssh over an open connection.

Run it with ``python -m benchmarks.cli``.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.daemon import temporary_daemon
from benchmarks.timing import interleaved, print_table, print_timings
from tests.cli.program import DIRECTORY, CommandLine
from tests.plugins.sshd import Sshd, privilege_separation

REPEAT = "python -m benchmarks.cli"
CONNMGR = str(DIRECTORY / "connmgr")
START_GOAL = 120.0
"""Goal in milliseconds for the start of every command but ``serve``."""


def main() -> None:
    """Measure the program's start and imports, then a command over SSH through it and through ControlMaster."""
    with temporary_daemon() as daemon, privilege_separation():
        connmgr, server = CommandLine(daemon), Sshd()
        try:
            _start(connmgr)
            _exec(connmgr, server)
        finally:
            server.close()


def _start(connmgr: CommandLine) -> None:
    def run(*argv: str) -> Callable[[], object]:
        return lambda: subprocess.run(argv, env=connmgr.environment, stdout=subprocess.DEVNULL, check=True)

    subjects = {
        "python -c pass": run(sys.executable, "-c", "pass"),
        "connmgr --version": run(CONNMGR, "--version"),
        "connmgr exec --help": run(CONNMGR, "exec", "--help"),
        "connmgr ls": run(CONNMGR, "ls"),
    }
    taken = interleaved(subjects, calls=3, rounds=7)
    title = f"Whole processes; a start takes at most {START_GOAL:g} ms on a quiet machine"
    print_timings(title, taken, base="python -c pass", repeat=REPEAT)
    _imports(connmgr)


def _imports(connmgr: CommandLine) -> None:
    """Print the time of each import of ``connmgr exec``, alone and with its own imports."""
    argv = [sys.executable, "-X", "importtime", CONNMGR, "exec", "--help"]
    done = subprocess.run(argv, env=connmgr.environment, capture_output=True, text=True, check=True)
    rows = re.findall(r"^import time:\s+(\d+) \|\s+(\d+) \|\s+(\S+)$", done.stderr, re.MULTILINE)
    heaviest = sorted(rows, key=lambda row: -int(row[1]))
    shown = [
        (name, f"{int(own) / 1e3:.1f}", f"{int(all_) / 1e3:.1f}") for own, all_, name in heaviest if "." not in name
    ]
    print_table("Imports of connmgr exec", ("", "own ms", "in all ms"), shown[:8], repeat=REPEAT)


def _exec(connmgr: CommandLine, server: Sshd) -> None:
    connmgr.add_ssh("server", server)
    connmgr("exec", "server", "--", "true")
    with tempfile.TemporaryDirectory() as directory:
        options = _options(server, Path(directory))
        master = subprocess.Popen(["ssh", *options, "-M", "-N", "x"], stdin=subprocess.DEVNULL)
        try:
            _wait_for(["ssh", *options, "-O", "check", "x"])
            subjects = {
                "ssh -S … true": lambda: subprocess.run(["ssh", *options, "x", "true"], check=True),
                "connmgr exec … true": lambda: connmgr("exec", "server", "--", "true"),
                "connmgr exec … true, each in a new POSIX session": lambda: connmgr(
                    "exec", "server", "--", "true", environment={"CONNMGR_SESSION": ""}
                ),
                "ssh … true, no master": lambda: subprocess.run(
                    ["ssh", *options, "-S", "none", "x", "true"], check=True
                ),
            }
            taken = interleaved(subjects, calls=3, rounds=7)
        finally:
            master.terminate()
            master.wait(20)
    print_timings("One command over ssh, as a whole process", taken, base="ssh -S … true", repeat=REPEAT)


def _options(server: Sshd, directory: Path) -> Sequence[str]:
    known_hosts = directory / "known_hosts"
    known_hosts.write_text(server.known_hosts("x"))
    settings = {
        "HostName": "127.0.0.1",
        "HostKeyAlias": "x",
        "Port": str(server.port),
        "User": server.user,
        "IdentityFile": str(server.client_key),
        "UserKnownHostsFile": str(known_hosts),
        "ControlPath": str(directory / "master"),
    }
    return ["-F", "none", *(word for name, value in settings.items() for word in ("-o", f"{name}={value}"))]


def _wait_for(argv: Sequence[str]) -> None:
    for _ in range(200):
        if subprocess.run(argv, capture_output=True, check=False).returncode == 0:
            return
        time.sleep(0.05)
    raise TimeoutError(f"{argv[0]} is not ready")


if __name__ == "__main__":
    main()
