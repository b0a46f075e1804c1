"""A command that runs longer than its client waits."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from mcp import Client
from mcp.shared.exceptions import MCPError

from tests.daemon import Daemon
from tests.mcp.agent import agent, content
from tests.rights.wire import Holder

SPARE_SECONDS = 60.0


async def outlasted(daemon: Daemon, holder: Holder, mode: str, seconds: float, timeout: float) -> dict[str, Any]:
    """Run a command of ``seconds`` by a call that gives up after ``timeout``; return read_job's answer at its end.

    The command prints ``mode`` and exits with 7. The call requests the longest wait.
    """
    command = f"sleep {seconds:g}; echo {mode}; exit 7"
    async with agent(daemon, holder, mode=mode, seconds=seconds + SPARE_SECONDS) as client:
        with suppress(MCPError):
            arguments = {"system": "local", "command": command, "wait": 45}
            await client.call_tool("run_command", arguments, read_timeout_seconds=timeout)
        return await ended(client, await job_of(client, command))


async def job_of(client: Client, command: str) -> str:
    """Return the job that runs ``command``."""
    jobs = content(await client.call_tool("list_jobs", {"ended": True}))["jobs"]
    [job] = [one["job"] for one in jobs if one["command"] == command]
    return str(job)


async def ended(client: Client, job: str) -> dict[str, Any]:
    """Wait for the end of a job, and return read_job's answer."""
    while True:
        told = content(await client.call_tool("read_job", {"job": job, "wait": 45}))
        if told["state"] != "running":
            return told
