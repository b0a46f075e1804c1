"""The MCP server for an agent: lists, answers and refusals."""

from __future__ import annotations

import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from connmgr.client import LOCAL_MACHINE
from tests.daemon import Daemon
from tests.mcp.agent import MODES, agent, content, refused, run
from tests.rights import wire

WORKER = ("connection.read", "shell.any", "job")


@pytest.mark.parametrize("mode", MODES)
def test_an_agent_lists_systems_and_runs_commands(daemon: Daemon, mode: str) -> None:
    async def work() -> None:
        async with agent(daemon, wire.create(daemon, *WORKER), mode=mode) as client:
            names = {one.name for one in (await client.list_tools()).tools}
            assert {"list_systems", "run_command"} <= names
            systems = content(await client.call_tool("list_systems", {}))["systems"]
            assert LOCAL_MACHINE in {one["id"] for one in systems}
            ran = content(await client.call_tool("run_command", {"system": "local", "command": "echo out; exit 3"}))
            assert (ran["state"], ran["exitCode"], ran["stdout"]) == ("exited", 3, "out\n")
            missing = await client.call_tool("run_command", {"system": "nowhere", "command": "true"})
            assert refused(missing)["code"] == "unknown_connection"

    run(work)


@pytest.mark.parametrize("mode", MODES)
def test_an_unknown_prompt_is_the_client_s_fault(daemon: Daemon, mode: str) -> None:
    async def work() -> None:
        async with agent(daemon, wire.create(daemon, *WORKER), mode=mode) as client:
            assert (await client.get_prompt("diagnose", {"system": "local"})).messages
            with pytest.raises(MCPError) as refusal:
                await client.get_prompt("nothing", {})
            assert refusal.value.error.code == INVALID_PARAMS

    run(work)


@pytest.mark.parametrize(("arguments", "told"), [({}, "system"), ({"system": "local", "symptoms": "slow"}, "symptoms")])
@pytest.mark.parametrize("mode", MODES)
def test_wrong_arguments_of_a_prompt_are_the_client_s_fault(
    daemon: Daemon, mode: str, arguments: dict[str, str], told: str
) -> None:
    async def work() -> None:
        async with agent(daemon, wire.create(daemon, *WORKER), mode=mode) as client:
            with pytest.raises(MCPError, match=told) as refusal:
                await client.get_prompt("diagnose", arguments)
            assert refusal.value.error.code == INVALID_PARAMS

    run(work)


@pytest.mark.parametrize(
    ("scopes", "listed"), [(("connection.read",), {"list_systems"}), (("shell.any",), set()), (("job",), set())]
)
def test_only_tools_that_the_scopes_allow_are_listed(daemon: Daemon, scopes: tuple[str, ...], listed: set[str]) -> None:
    async def work() -> None:
        async with agent(daemon, wire.create(daemon, *scopes)) as client:
            assert {one.name for one in (await client.list_tools()).tools} >= listed
            assert "run_command" not in {one.name for one in (await client.list_tools()).tools}

    run(work)
