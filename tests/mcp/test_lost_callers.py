"""Nothing is lost with a caller: clients that give up, and killed clients and bridges."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import anyio
import psutil
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from connmgr.client import LOCAL_MACHINE
from tests.daemon import Daemon
from tests.deadlines import eventually
from tests.mcp.agent import MODES, agent, run, soon
from tests.mcp.bridge import INITIALIZE
from tests.mcp.long_command import ended, job_of, outlasted
from tests.rights import wire
from tests.rights.wire import Holder
from tests.spawner import PROGRAM

END_SECONDS = 20.0


@pytest.fixture
def worker(daemon: Daemon) -> Holder:
    return wire.create(daemon, "connection.read", "shell.any", "job")


def bridge() -> psutil.Process:
    """Return the process of the server that a client of this process has started."""
    children = [(one, _words(one)) for one in psutil.Process().children(recursive=True)]
    [one] = [one for one, words in children if "mcp" in words and "--http" not in words]
    return one


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        # The process may have ended, as earlier ones of this process may have.
        return []


@pytest.mark.parametrize("mode", MODES)
def test_a_command_ends_with_its_exit_code_after_its_client_has_given_up(
    daemon: Daemon, worker: Holder, mode: str
) -> None:
    async def work() -> None:
        told = await outlasted(daemon, worker, mode, 4.0, timeout=2.0)
        assert (told["state"], told["exitCode"], told["stdout"]) == ("exited", 7, f"{mode}\n")

    run(work)


def test_a_killed_bridge_loses_neither_output_nor_exit_code(daemon: Daemon, worker: Holder, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    command = f"echo before; cat {gate}; echo after; exit 7"

    async def call(client: Client) -> None:
        with pytest.raises(MCPError):
            await client.call_tool("run_command", {"system": "local", "command": command, "wait": 45})

    async def work() -> None:
        async with agent(daemon, worker, program=[str(PROGRAM)]) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(call, client)
            await soon(lambda: running_commands(daemon), "the job was not started", holds=lambda seen: command in seen)
            os.kill(bridge().pid, signal.SIGKILL)
        gate.write_text("opened\n")
        async with agent(daemon, worker) as client:
            told = await ended(client, await job_of(client, command))
            assert (told["exitCode"], told["stdout"]) == (7, "before\nopened\nafter\n")

    run(work)


def running_commands(daemon: Daemon) -> list[str | None]:
    return [one.command for one in daemon.client.jobs.query(states=["running"])]


def kill(client: subprocess.Popen[bytes]) -> None:
    """Close the pipes, as the system does for a killed client."""
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.close()
    client.stdout.close()


ENDS: dict[str, tuple[Callable[[subprocess.Popen[bytes]], None], int]] = {
    "client": (kill, 0),
    "SIGINT": (lambda client: client.send_signal(signal.SIGINT), -signal.SIGINT),
    "SIGTERM": (lambda client: client.send_signal(signal.SIGTERM), -signal.SIGTERM),
}
"""Ways to end a bridge, and their exit codes."""


@pytest.mark.parametrize("what", ENDS)
def test_a_bridge_ends_while_a_call_waits_and_loses_nothing_either(
    daemon: Daemon, worker: Holder, tmp_path: Path, what: str
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    command = f"echo before; cat {gate}; exit 7"
    call = {"name": "run_command", "arguments": {"system": "local", "command": command, "wait": 45}}
    messages = [
        INITIALIZE,
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call},
    ]
    before = {one.status.session for one in daemon.client.shell.list(LOCAL_MACHINE)}
    client = subprocess.Popen(
        [str(PROGRAM), "--url", daemon.url, "mcp"],
        env={**daemon.environment, "CONNMGR_TOKEN": worker.secret},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    end, code = ENDS[what]
    with client:
        assert client.stdin is not None
        assert client.stderr is not None
        client.stdin.write("".join(f"{json.dumps(message)}\n" for message in messages).encode())
        client.stdin.flush()
        eventually(lambda: running_commands(daemon), "the job was not started", holds=lambda seen: command in seen)
        end(client)
        try:
            client.wait(END_SECONDS)
        finally:
            client.kill()
        assert (client.returncode, client.stderr.read().decode()) == (code, "")
    assert {one.status.session for one in daemon.client.shell.list(LOCAL_MACHINE)} <= before, "a shell is left"
    gate.write_text("opened\n")

    async def work() -> None:
        async with agent(daemon, worker) as client:
            told = await ended(client, await job_of(client, command))
            assert (told["exitCode"], told["stdout"]) == (7, "before\nopened\n")

    run(work)
