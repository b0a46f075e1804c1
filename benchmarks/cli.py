"""Processes of the command line: their start, and ``connmgr exec`` beside ssh over an open connection.

Run it with ``python -m benchmarks.cli``.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.daemon import temporary_daemon
from benchmarks.openssh import master, ssh_connection
from benchmarks.timing import interleaved, print_table, print_timings
from tests.cli.program import DIRECTORY, CommandLine
from tests.plugins.oneself import ssh_server
from tests.plugins.sshd import Sshd

REPEAT = "python -m benchmarks.cli"
CONNMGR = str(DIRECTORY / "connmgr")
START_GOAL = 120.0
"""Goal in milliseconds for the start of every command but ``serve``."""


def main() -> None:
    """Measure the program's start and imports, then a command over SSH through it and through ControlMaster."""
    with tempfile.TemporaryDirectory() as home, temporary_daemon() as daemon, ssh_server(Path(home)) as server:
        connmgr = CommandLine(daemon)
        _start(connmgr)
        _exec(connmgr, server)


def _start(connmgr: CommandLine) -> None:
    def run(*argv: str) -> Callable[[], object]:
        return lambda: subprocess.run(
            argv, env=connmgr.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True
        )

    subjects = {
        "python -c pass": run(sys.executable, "-c", "pass"),
        "connmgr --version": run(CONNMGR, "--version"),
        "connmgr exec --help": run(CONNMGR, "exec", "--help"),
        "connmgr ls": run(CONNMGR, "ls"),
        "connmgr exec local -- true": run(CONNMGR, "exec", "local", "--", "true"),
    }
    taken = interleaved(subjects, calls=3, rounds=7)
    title = f"Whole processes; a start takes at most {START_GOAL:g} ms on a quiet machine"
    print_timings(title, taken, base="python -c pass", repeat=REPEAT)
    _imports(connmgr)


def _imports(connmgr: CommandLine) -> None:
    """Print the time of each import of ``connmgr exec`` with an option, alone and with its own imports."""
    argv = [sys.executable, "-X", "importtime", CONNMGR, "exec", "--help"]
    done = subprocess.run(argv, env=connmgr.environment, capture_output=True, text=True, check=True)
    rows = re.findall(r"^import time:\s+(\d+) \|\s+(\d+) \|\s+(\S+)$", done.stderr, re.MULTILINE)
    heaviest = sorted(rows, key=lambda row: -int(row[1]))
    shown = [
        (name, f"{int(own) / 1e3:.1f}", f"{int(all_) / 1e3:.1f}") for own, all_, name in heaviest if "." not in name
    ]
    print_table("Imports of connmgr exec", ("", "own ms", "in all ms"), shown[:8], repeat=REPEAT)


def _exec(connmgr: CommandLine, server: Sshd) -> None:
    connection = ssh_connection(connmgr.daemon, server)
    with master(server) as options:
        target = ["-i", str(server.client_key), "-p", str(server.port), f"{server.user}@127.0.0.1", "true"]

        # As at a prompt, where the commands of one POSIX session share a shell.
        environment = {name: value for name, value in connmgr.environment.items() if name != "CONNMGR_SESSION"}

        def run(*argv: str, alone: bool = False) -> Callable[[], object]:
            return lambda: subprocess.run(
                argv, env=environment, stdin=subprocess.DEVNULL, check=True, start_new_session=alone
            )

        execute = (CONNMGR, "exec", connection, "--", "true")
        subjects = {
            "python -c pass": run(sys.executable, "-c", "pass"),
            "ssh -S … true": run("ssh", *options, *target),
            "connmgr exec … true": run(*execute),
            "connmgr exec … true, each in a new POSIX session": run(*execute, alone=True),
            "ssh … true, no master": run("ssh", *options, "-S", "none", *target),
        }
        taken = interleaved(subjects, calls=3, rounds=15)
    print_timings("One command over ssh, as a whole process", taken, base="ssh -S … true", repeat=REPEAT)


if __name__ == "__main__":
    main()
