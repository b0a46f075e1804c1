"""A command of 200 s whose call an agent's client gives up after 60 s: its exit code is kept.

Run it with ``python -m benchmarks.mcp_timeout``; it takes as long as the command.
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
from tests.mcp.long_command import outlasted
from tests.rights import wire

COMMAND_SECONDS, CLIENT_SECONDS = 200.0, 60.0


def main(arguments: Sequence[str] = ()) -> None:
    """Run it in all modes of the client at once, and exit with 1 if an exit code or output is lost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mcp_timeout")
    parser.add_argument("--seconds", type=float, default=COMMAND_SECONDS, help="how long the command takes")
    parser.add_argument("--timeout", type=float, default=CLIENT_SECONDS, help="how long the client waits")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="cm-", ignore_cleanup_errors=True) as directory:
        daemon = Daemon(Path(directory) / "daemon")
        found = anyio.run(_all, daemon, given.seconds, given.timeout)
        daemon.stop()
    for mode, told in found.items():
        print(f"{mode:8}{told['state']:8}exit code {told['exitCode']}, stdout {told['stdout']!r}")
    if any((told["exitCode"], told["stdout"]) != (7, f"{mode}\n") for mode, told in found.items()):
        sys.exit(1)


async def _all(daemon: Daemon, seconds: float, timeout: float) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    holder = wire.create(daemon, "connection.read", "shell.any", "job")

    async def one(mode: str) -> None:
        found[mode] = await outlasted(daemon, holder, mode, seconds, timeout)

    async with anyio.create_task_group() as tasks:
        for mode in MODES:
            tasks.start_soon(one, mode)
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
