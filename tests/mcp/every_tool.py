"""A session in which an agent uses every tool, by any client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from tests.mcp.agent import LOCAL

Ask = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]
"""Calls a tool, which must succeed, and returns its structured content."""

SCOPES = ("connection.read", "connection.write", "shell.any", "job", "fs.read", "fs.write", "terminal")
SAVED = "tell"
ELSEWHERE = {"toggle_state", "show_approval"}
"""Tools that need another machine, or a rule that asks."""


async def use_each_tool(ask: Ask, directory: Path) -> set[str]:
    """Use the tools on this machine, with files in ``directory`` and a saved command :data:`SAVED`; return their names.

    That command prints its parameter ``word``.
    """
    used: set[str] = set()

    async def call(tool: str, /, **arguments: Any) -> dict[str, Any]:
        used.add(tool)
        return await ask(tool, arguments)

    await _commands(call)
    await _files(call, directory)
    opened = await call("open_terminal", **LOCAL, argv=["cat"], wait=0)
    typed = await call("send_keys", terminal=opened["terminal"], text="hello", keys=["enter"], contains="hello")
    assert "hello" in typed["lines"]
    assert (await call("read_screen", terminal=opened["terminal"]))["state"] == "running"
    await call("close_terminal", terminal=opened["terminal"])
    return used


async def _commands(call: Callable[..., Awaitable[dict[str, Any]]]) -> None:
    assert (await call("list_systems"))["systems"]
    assert [one["name"] for one in (await call("list_commands"))["commands"]] == [SAVED]
    assert (await call("run_saved_command", **LOCAL, name=SAVED, arguments={"word": "a b"}))["stdout"] == "a b"
    started = await call("run_command", **LOCAL, command="read line; echo got $line; cat", openStdin=True, wait=0)
    await call("write_stdin", job=started["job"], text="this\n")
    assert started["job"] in {one["job"] for one in (await call("list_jobs"))["jobs"]}
    waits = await call("read_job", job=started["job"], wait=40)
    await call("answer_prompt", job=started["job"], question=waits["waiting"]["question"], text="more", wait=0)
    await call("stop_job", job=started["job"])
    ended = await call("read_job", job=started["job"], wait=20)
    assert (ended["state"], ended["stdout"]) == ("killed", "got this\nmore\n")
    ran = await call("run_on_many", systems=["local"], command="echo on each", wait=20)
    assert [(one["count"], one["stdout"]) for one in ran["groups"]] == [(1, "on each")]
    assert (await call("read_run", run=ran["run"], system="local"))["groups"][0]["stdout"] == "on each"
    assert (await call("stop_run", run=ran["run"]))["state"] == "done"
    assert (await call("find", text="local machine"))["systems"]


async def _files(call: Callable[..., Awaitable[dict[str, Any]]], directory: Path) -> None:
    within, file = str(directory / "new"), str(directory / "new" / "file")
    await call("create_directory", **LOCAL, path=within)
    await call("write_file", **LOCAL, path=file, content="one two\n")
    edited = await call("edit_file", **LOCAL, path=file, old="two", new="four")
    undone = await call("undo_changes", **LOCAL, changes=edited["changes"])
    assert [one["state"] for one in undone["results"]] == ["restored"]
    await call("edit_file", **LOCAL, path=file, old="two", new="three")
    assert (await call("read_file", **LOCAL, path=file))["content"] == "one three\n"
    assert [one["name"] for one in (await call("list_files", **LOCAL, path=within))["entries"]] == ["file"]
    searched = await call("search_files", systems=["local"], path=within, text="three")
    assert [(one["path"], one["line"], one["text"]) for one in searched["lines"]] == [("file", 1, "one three")]
    assert (await call("find_file", **LOCAL, pattern=f"{within}/f*"))["entries"]
    assert (await call("get_file_info", **LOCAL, path=file))["size"] == len("one three\n")
