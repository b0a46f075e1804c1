"""An agent whose server is in the tests' own process, so that it starts fast."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
from mcp import Client

from connmgr import client as connmgr_client
from connmgr.mcp.bridge import Bridge
from connmgr.mcp.server import BridgeServer
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS
from tests.mcp.agent import content, refused
from tests.rights import wire
from tests.rights.wire import Holder

EVERYTHING = ("connection.read", "shell.any", "job", "fs.read", "fs.write", "terminal", "tunnel")


class Agent:
    """An agent with its ``client``, for the answers and errors of tools."""

    def __init__(self, client: Client, bridge: Bridge) -> None:
        self.client = client
        self.bridge = bridge

    async def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Return a tool's answer, which must not be an error."""
        return content(await self.client.call_tool(tool, arguments))

    async def refused(self, tool: str, /, **arguments: Any) -> str:
        """Return the code of a tool's error."""
        return str(refused(await self.client.call_tool(tool, arguments))["code"])


def run(
    daemon: Daemon,
    work: Callable[[Agent], Awaitable[None]],
    *,
    scopes: tuple[str, ...] = EVERYTHING,
    holder: Holder | None = None,
    **client: Any,
) -> None:
    """Run ``work`` with an agent that has a token of ``scopes``, or the holder's."""

    async def begin() -> None:
        async with near(daemon, holder or wire.create(daemon, *scopes), **client) as agent:
            await work(agent)

    anyio.run(begin)


@asynccontextmanager
async def near(daemon: Daemon, holder: Holder, **client: Any) -> AsyncIterator[Agent]:
    """Yield an agent with a holder's token."""
    bridge = Bridge(connmgr_client.Client(daemon.url, api_key=holder.secret, foreign=True, timeout=DEADLINE_SECONDS))
    try:
        with anyio.fail_after(DEADLINE_SECONDS):
            server = await anyio.to_thread.run_sync(BridgeServer, bridge)
            async with Client(server, read_timeout_seconds=DEADLINE_SECONDS, **client) as connected:
                yield Agent(connected, bridge)
    finally:
        bridge.close()
