"""A command of 200 s that an agent's client gives up on after 60: it ends with its exit code.

Run it with ``python -m benchmarks.mcp_patience``; it takes as long as the command.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import anyio

from tests.daemon import Daemon
from tests.mcp.agent import MODES
from tests.mcp.patience import outlasted
from tests.rights import wire

SECONDS, PATIENCE = 200.0, 60.0


def main(arguments: Sequence[str] = ()) -> None:
    """Run it in each of the client's modes at once, and exit with 1 where an exit code or output is lost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mcp_patience")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long the command takes")
    parser.add_argument("--patience", type=float, default=PATIENCE, help="how long the client waits")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="cm-", ignore_cleanup_errors=True) as directory:
        daemon = Daemon(Path(directory) / "daemon")
        found = anyio.run(_all, daemon, given.seconds, given.patience)
        daemon.stop()
    for mode, told in found.items():
        print(f"{mode:8}{told['state']:8}exit code {told['exitCode']}, stdout {told['stdout']!r}")
    if any((told["exitCode"], told["stdout"]) != (7, f"{mode}\n") for mode, told in found.items()):
        sys.exit(1)


async def _all(daemon: Daemon, seconds: float, patience: float) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    holder = wire.create(daemon, "connection.read", "shell.any", "job")

    async def one(mode: str) -> None:
        found[mode] = await outlasted(daemon, holder, mode, seconds, patience)

    async with anyio.create_task_group() as tasks:
        for mode in MODES:
            tasks.start_soon(one, mode)
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
