"""Each tool, called by the official clients over both transports and in both modes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from mcp import Client

from tests.daemon import Daemon
from tests.mcp import official
from tests.mcp.agent import MODES, agent, content, run
from tests.mcp.bridge import HttpBridge
from tests.mcp.every_tool import ELSEWHERE, SAVED, SCOPES, use_each_tool
from tests.rights import wire
from tests.rights.wire import Holder

TRANSPORTS = ("stdio", "http")
PROGRESS_SECONDS = 5


@pytest.fixture(scope="module")
def holder(daemon: Daemon) -> Iterator[Holder]:
    daemon.client.command.save(SAVED, ["printf", "%s", {"parameter": "word"}], parameters={"word": {"re": ".*"}})
    yield wire.create(daemon, *SCOPES)
    daemon.client.command.remove(SAVED)


@asynccontextmanager
async def sdk(daemon: Daemon, bridge: HttpBridge, holder: Holder, transport: str, mode: str) -> AsyncIterator[Client]:
    """Yield the SDK's client."""
    by = agent(daemon, holder, mode=mode) if transport == "stdio" else bridge.agent(holder, mode=mode)
    async with by as client:
        yield client


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_sdk_s_client_calls_each(
    daemon: Daemon, bridge: HttpBridge, holder: Holder, tmp_path: Path, transport: str, mode: str
) -> None:
    async def work() -> None:
        async with sdk(daemon, bridge, holder, transport, mode) as client:

            async def ask(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
                return content(await client.call_tool(name, dict(arguments)))

            listed = {one.name for one in (await client.list_tools()).tools if not one.name.startswith("saved_")}
            assert await use_each_tool(ask, tmp_path) == listed - ELSEWHERE

    run(work)


@pytest.mark.usefixtures("official_clients")
@pytest.mark.timeout(official.INSTALL_SECONDS + official.RUN_SECONDS)
def test_the_typescript_sdk_s_client_calls_each(
    daemon: Daemon, bridge: HttpBridge, holder: Holder, tmp_path: Path
) -> None:
    with official.SdkClient(bridge.url, holder.secret, tmp_path) as client:

        async def ask(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
            return await anyio.to_thread.run_sync(client.call, name, arguments)

        async def work() -> None:
            await use_each_tool(ask, tmp_path)

        run(work)


def test_progress_comes_by_http(bridge: HttpBridge, holder: Holder) -> None:
    command = {"system": "local", "command": f"sleep {PROGRESS_SECONDS + 1}", "wait": 3 * PROGRESS_SECONDS}

    async def work(mode: str) -> None:
        told: list[float] = []

        async def progress(seconds: float, _: float | None, __: str | None) -> None:
            told.append(seconds)

        async with bridge.agent(holder, mode=mode) as client:
            ended = content(await client.call_tool("run_command", command, progress_callback=progress))
        assert ended["exitCode"] == 0
        assert told
        assert told[0] == pytest.approx(PROGRESS_SECONDS, abs=2)

    async def both() -> None:
        async with anyio.create_task_group() as tasks:
            for mode in MODES:
                tasks.start_soon(work, mode)

    run(both)
