"""docs/AGENTS.md against a real daemon, with a server started by the client configuration on the page."""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from tests.conftest import StartDaemon
from tests.deadlines import DEADLINE_SECONDS
from tests.mcp.person import Person, chosen
from tests.transcripts import typed

PAGE = Path(__file__).parent.parent / "docs" / "AGENTS.md"
BLOCK = re.compile(r"^```(console|json|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
HOSTS = ("web1", "web2", "db")

VARIABLE = {
    r'\b(host|user|directory) "[^"]+"': r'\1 "…"',
    r"\b[0-9a-f]{8}\b(-[0-9a-f-]{27})?": "ID",
    r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d+Z": "TIME",
    r"until \d{2}:\d{2} UTC": "until TIME",
}
"""What differs from run to run."""


def _comparable(text: str, home: Path) -> list[str]:
    text = text.replace(f"{home}/state/", "/home/ada/.local/state/").replace(str(home), "/home/ada")
    for pattern, replacement in VARIABLE.items():
        text = re.sub(pattern, replacement, text)
    return [line.rstrip() for line in text.splitlines()]


class Agent:
    """The client of the page; it starts the configured server at its first call."""

    def __init__(self, home: Path, environment: dict[str, str]) -> None:
        self.person = Person(chosen("once"))
        self._file = home / ".claude.json"
        self._environment = environment
        self._running = AsyncExitStack()
        self._client: Client | None = None
        self._job = self._question = ""

    async def follow(self, text: str) -> None:
        """Make the calls of a block, and compare the answers with the members shown."""
        client = await self._current()
        lines = text.splitlines()
        for asked, shown in zip(lines[::2], lines[1::2], strict=True):
            tool, _, arguments = asked.replace("JOB", self._job).partition(" ")
            result = await client.call_tool(tool, json.loads(arguments.replace("QUESTION", self._question)))
            told: Any = result.structured_content or json.loads(result.content[0].text)  # type: ignore[union-attr]
            expected = json.loads(shown)
            self._job = told.get("job", "") if expected.pop("job", None) else self._job
            self._question = (told.get("waiting") or {}).get("question", self._question)
            assert _part(told, expected) == expected, (asked, told)

    async def _current(self) -> Client:
        if self._client is None:
            server = json.loads(self._file.read_text())["mcpServers"]["connmgr"]
            parameters = StdioServerParameters(
                command=server["command"], args=server["args"], env={**self._environment, **server.get("env", {})}
            )
            client = Client(parameters, read_timeout_seconds=DEADLINE_SECONDS, elicitation_callback=self.person)
            self._client = await self._running.enter_async_context(client)
        return self._client

    async def aclose(self) -> None:
        """Stop the server."""
        await self._running.aclose()
        self._client = None


def _part(told: Any, expected: Any) -> Any:
    """Return the part of ``told`` that has the members of ``expected``."""
    if isinstance(expected, dict):
        return {name: _part(told.get(name), value) for name, value in expected.items()}
    if isinstance(expected, list):
        return [_part(one, value) for one, value in zip(told, expected, strict=True)]
    return told


@pytest.mark.slow
@pytest.mark.needs("bash", "linux", "sshd")
def test_the_page_is_what_happens(
    ssh_home: Path, start_daemon: StartDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon(home=ssh_home, environment={"SHELL": "/bin/bash"})
    for name in HOSTS:
        daemon.client.connection.add(name, {"type": "ssh", "host": name})
    for variable, value in daemon.environment.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    blocks = BLOCK.findall(PAGE.read_text())
    assert {kind for kind, _ in blocks} == {"console", "json", "text"}

    async def work() -> None:
        async with aclosing(Agent(ssh_home, daemon.environment)) as agent:
            for kind, text in blocks:
                if kind == "console":
                    await agent.aclose()
                    shown = await anyio.to_thread.run_sync(typed, text, tmp_path)
                    assert _comparable(shown, ssh_home) == _comparable(text, ssh_home)
                elif kind == "json":
                    await agent.follow(text)
                else:
                    asked = agent.person.asked.pop(0)
                    assert _comparable(asked.message, ssh_home) == _comparable(text, ssh_home)
            assert not agent.person.asked

    anyio.run(work)


def test_the_page_names_every_tool() -> None:
    from connmgr.mcp.tools import TOOLS

    page = PAGE.read_text()
    assert [tool.name for tool in TOOLS if f"`{tool.name}`" not in page] == []
