"""Tools with types and annotations, terminals, saved commands, tunnels, resources and prompts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from connmgr.client import LOCAL_MACHINE
from connmgr.mcp.tools import TOOLS
from tests.api.wire import add
from tests.daemon import Daemon
from tests.mcp.agent import LOCAL, MODES
from tests.mcp.near import EVERYTHING, Agent, run
from tests.ports import reserved_port

LOOKING = {"show_approval", "list_systems", "find", "list_commands"}
READING = {*LOOKING, "search_files", "read_file", "list_files", "find_file", "get_file_info"}


@pytest.mark.parametrize("mode", MODES)
def test_each_tool_tells_its_types_units_and_what_it_does(daemon: Daemon, mode: str) -> None:
    async def work(agent: Agent) -> None:
        listed = {one.name: one for one in (await agent.client.list_tools()).tools}
        assert listed.keys() == {one.name for one in TOOLS}
        for one in listed.values():
            assert one.description
            assert one.description[0].isupper()
            assert one.input_schema["additionalProperties"] is False
            for name, parameter in one.input_schema["properties"].items():
                assert parameter.get("description"), (one.name, name)
            assert one.output_schema is not None
            assert one.output_schema["type"] == "object"
            hints = one.annotations
            assert hints is not None
            assert not (hints.read_only_hint and hints.destructive_hint)
        read_only = {name for name, one in listed.items() if one.annotations and one.annotations.read_only_hint}
        assert read_only == READING | {"read_job", "list_jobs", "read_screen", "read_run"}
        assert listed["run_command"].input_schema["properties"]["wait"]["maximum"] == 45

    run(daemon, work, mode=mode)


@pytest.mark.parametrize(
    ("scopes", "listed"),
    [
        (("connection.read", "fs.read"), READING),
        (("connection.read",), LOOKING),
        (("connection.read", "shell.argv"), LOOKING | {"run_on_many", "read_run", "stop_run"}),
        (("connection.read", "job"), LOOKING | {"list_jobs", "read_job", "stop_job"}),
        (("connection.read", "tunnel"), LOOKING | {"toggle_state"}),
        ((*EVERYTHING, "vault.admin", "token.create"), {one.name for one in TOOLS}),
    ],
)
def test_only_what_the_scopes_allow_is_listed(daemon: Daemon, scopes: tuple[str, ...], listed: set[str]) -> None:
    async def work(agent: Agent) -> None:
        assert {one.name for one in (await agent.client.list_tools()).tools} == listed

    run(daemon, work, scopes=scopes)


def test_unlisted_tools_do_not_exist(daemon: Daemon) -> None:
    async def work(agent: Agent) -> None:
        told = await agent.client.call_tool("run_command", {**LOCAL, "command": "true"})
        assert told.is_error
        assert "Unknown tool" in str(told.content)

    run(daemon, work, scopes=("connection.read",))


def test_a_terminal_shows_what_a_person_would_see(daemon: Daemon) -> None:
    async def work(agent: Agent) -> None:
        opened = await agent.call(
            "open_terminal",
            **LOCAL,
            argv=["/bin/sh", "-c", "read line; echo got $line; cat"],
            columns=40,
            rows=10,
            wait=0,
        )
        terminal = opened["terminal"]
        assert (opened["columns"], opened["rows"], opened["state"]) == (40, 10, "running")
        typed = await agent.call("send_keys", terminal=terminal, text="a b", keys=["enter"], contains="got", wait=20)
        assert "got a b" in typed["lines"]
        assert (await agent.call("read_screen", terminal=terminal))["lines"] == typed["lines"]
        assert await agent.refused("send_keys", terminal=terminal, keys=["no-key"]) == "invalid_arguments"
        await agent.call("send_keys", terminal=terminal, keys=["ctrl-d"], wait=20)
        assert (await agent.call("close_terminal", terminal=terminal)) == {"terminal": terminal}
        assert await agent.refused("send_keys", terminal=terminal, text="x") == "terminal_ended"
        assert await agent.refused("read_screen", terminal=LOCAL_MACHINE) == "unknown_terminal"

    run(daemon, work)


def test_saved_commands_are_tools_with_types(daemon: Daemon) -> None:
    saved = {"level": {"in": ["low", "high"], "description": "How much."}, "times": {"integer": {"max": 5}}}
    words: list[Any] = ["printf", "%s %s", {"parameter": "level"}, {"parameter": "times"}]
    daemon.client.command.save("tell.level", words, parameters=saved, description="Tells the level.")

    async def work(agent: Agent) -> None:
        (tool,) = (one for one in (await agent.client.list_tools()).tools if one.name.startswith("saved_"))
        assert tool.name == "saved_tell_level"
        assert tool.description == "The saved command tell.level. Tells the level."
        schema = tool.input_schema["properties"]["arguments"]
        assert schema["properties"] == {
            "level": {"type": "string", "enum": ["low", "high"], "description": "How much."},
            "times": {"type": "integer", "minimum": 0, "maximum": 5},
        }
        arguments = {"level": "low", "times": 3}
        assert (await agent.call(tool.name, **LOCAL, arguments=arguments))["stdout"] == "low 3"
        assert (await agent.call("run_saved_command", **LOCAL, name="tell.level", arguments=arguments))["stdout"] == (
            "low 3"
        )
        [listed] = (await agent.call("list_commands"))["commands"]
        assert (listed["name"], listed["parameters"]["required"]) == ("tell.level", ["level", "times"])
        assert await agent.refused(tool.name, **LOCAL, arguments={"level": "other", "times": 3}) == "invalid_request"
        assert await agent.refused("run_saved_command", **LOCAL, name="none") == "unknown_command"

    async def without_commands(agent: Agent) -> None:
        assert not [one for one in (await agent.client.list_tools()).tools if one.name.startswith("saved_")]

    try:
        run(daemon, work)
        run(daemon, without_commands, scopes=("connection.read", "fs.read"))
    finally:
        daemon.client.command.remove("tell.level")


def test_a_tunnel_is_opened_and_closed(own_daemon: Daemon) -> None:
    with reserved_port() as local, reserved_port() as remote:
        tunnel = add(
            own_daemon.client,
            "way",
            type="sshLocalTunnel",
            host={"storeId": LOCAL_MACHINE},
            localPort=local,
            remoteHost="127.0.0.1",
            remotePort=remote,
        )

        async def work(agent: Agent) -> None:
            opened = await agent.call("toggle_state", system="way", state=True)
            assert (opened["id"], opened["state"], opened["error"]) == (tunnel, "open", None)
            assert opened["address"].endswith(f":{local}")
            systems = {one["name"]: one for one in (await agent.call("list_systems"))["systems"]}
            assert [one["running"] for name, one in systems.items() if name.endswith("way")] == [True]
            assert (await agent.call("toggle_state", system="way", state=False))["state"] == "stopped"
            assert await agent.refused("toggle_state", **LOCAL, state=True) == "not_toggleable"

        run(own_daemon, work)


@pytest.mark.parametrize("mode", MODES)
def test_systems_and_jobs_are_resources(daemon: Daemon, mode: str) -> None:
    async def work(agent: Agent) -> None:
        uris = {str(one.uri): one for one in (await agent.client.list_resources()).resources}
        local = uris[f"connmgr://system/{LOCAL_MACHINE}"]
        assert local.name == "local machine"
        [facts] = (await agent.client.read_resource(local.uri)).contents
        told = json.loads(facts.text)  # type: ignore[union-attr]
        assert (told["name"], told["type"], told["osType"], told["error"]) == ("local machine", "local", "linux", None)
        systems = (await agent.call("list_systems", filter="local"))["systems"]
        assert [(one["name"], one["os"]) for one in systems] == [("local machine", told["os"])]
        ran = await agent.call("run_command", **LOCAL, command="echo out; printf 'e\\033rr' >&2")
        for stream, text in (("stdout", "out\n"), ("stderr", "e\\x1brr")):
            [output] = (await agent.client.read_resource(f"connmgr://job/{ran['job']}/{stream}")).contents
            assert output.text == text  # type: ignore[union-attr]
        with pytest.raises(MCPError, match="unknown_job"):
            await agent.client.read_resource(f"connmgr://job/{LOCAL_MACHINE}/stdout")
        with pytest.raises(MCPError, match="is not a uuid"):
            await agent.client.read_resource("connmgr://system/local")

    run(daemon, work, mode=mode)


def test_a_system_that_cannot_be_reached_is_described_with_the_reason(own_daemon: Daemon, closed_port: int) -> None:
    system = add(own_daemon.client, "web", type="ssh", host="127.0.0.1", port=closed_port, user="me")

    async def work(agent: Agent) -> None:
        [facts] = (await agent.client.read_resource(f"connmgr://system/{system}")).contents
        told = json.loads(facts.text)  # type: ignore[union-attr]
        assert (told["hosts"], told["os"]) == ([f"me@127.0.0.1:{closed_port}"], None)
        assert told["error"].startswith("host_refused: ")
        assert await agent.refused("run_command", system="web", command="true") == "host_refused"

    run(own_daemon, work)


def test_a_name_that_means_several_is_refused_with_all_of_them(own_daemon: Daemon) -> None:
    for name in ("one", "two"):
        host = add(own_daemon.client, name, type="ssh", host=f"{name}.example", user="me")
        add(own_daemon.client, "web", type="shellEnvironment", host=host)

    async def work(agent: Agent) -> None:
        told = await agent.client.call_tool("run_command", {"system": "web", "command": "true"})
        assert all(name in str(told.content) for name in ("default/one/web", "default/two/web"))
        told = await agent.client.call_tool("run_command", {"system": "we", "command": "true"})
        assert "Did you mean one/web, two/web?" in str(told.content)

    run(own_daemon, work)


def test_prompts_and_instructions(daemon: Daemon) -> None:
    async def work(agent: Agent) -> None:
        prompts = {one.name: one for one in (await agent.client.list_prompts()).prompts}
        assert prompts.keys() == {"diagnose", "run_on_many", "change_setting"}
        told = await agent.client.get_prompt("diagnose", {"system": "web", "symptom": "It is slow."})
        assert "'web'. What is known: It is slow." in str(told.messages[0].content)
        assert "never an instruction" in (agent.client.instructions or "")

    run(daemon, work)


@pytest.mark.parametrize("secret", ["cmgr_nothing", ""])
def test_a_token_that_is_not_valid_makes_no_server(daemon: Daemon, secret: str) -> None:
    from connmgr.client import Client, ClientError
    from connmgr.mcp.bridge import Bridge

    client = Client(daemon.url, api_key=secret or "no key", foreign=True)
    with client, pytest.raises(ClientError):
        Bridge(client)
