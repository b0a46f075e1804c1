"""A command that takes longer than the client that asked for it waits."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from mcp import Client
from mcp.shared.exceptions import MCPError

from tests.daemon import Daemon
from tests.mcp.agent import agent, content
from tests.rights.wire import Holder

SPARE_SECONDS = 60.0


async def outlasted(daemon: Daemon, holder: Holder, mode: str, seconds: float, patience: float) -> dict[str, Any]:
    """Return how a command of ``seconds`` ends, whose call gives up after ``patience``: as read_job tells.

    It ends with 7 and prints ``mode``. The call asks for as long a wait as there is.
    """
    command = f"sleep {seconds:g}; echo {mode}; exit 7"
    async with agent(daemon, holder, mode=mode, seconds=seconds + SPARE_SECONDS) as client:
        with suppress(MCPError):
            arguments = {"system": "local", "command": command, "wait": 45}
            await client.call_tool("run_command", arguments, read_timeout_seconds=patience)
        return await ended(client, await job_of(client, command))


async def job_of(client: Client, command: str) -> str:
    """Return the job that runs ``command``."""
    jobs = content(await client.call_tool("list_jobs", {"ended": True}))["jobs"]
    [job] = [one["job"] for one in jobs if one["command"] == command]
    return str(job)


async def ended(client: Client, job: str) -> dict[str, Any]:
    """Return how a job is at its end."""
    while True:
        told = content(await client.call_tool("read_job", {"job": job, "wait": 45}))
        if told["state"] != "running":
            return told
