"""Idle connections to the HTTP server."""

from __future__ import annotations

import asyncio

import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from uvicorn.server import ServerState

from connmgr.mcp import callers
from connmgr.mcp.callers import AgentConnection
from tests.deadlines import DEADLINE_SECONDS

BEGUN = b"GET / HTTP/1.1\r\nHost: here\r\nX: "
WHOLE = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"


@pytest.mark.parametrize("said", [b"", b"GET", BEGUN, WHOLE + BEGUN])
def test_who_asks_nothing_is_closed(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "HEADER_SECONDS", 0.1)
    asyncio.run(asyncio.wait_for(_closed(said), DEADLINE_SECONDS))


def test_who_asks_now_and_then_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "HEADER_SECONDS", 0.4)
    asyncio.run(asyncio.wait_for(_kept(), DEADLINE_SECONDS))


async def _closed(said: bytes) -> None:
    async with await _server() as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(said)
        answer = await reader.read()
        assert answer.count(b"200 OK") == said.count(WHOLE)
        writer.close()


async def _kept() -> None:
    async with await _server() as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        for _ in range(10):
            writer.write(WHOLE)
            assert b"200 OK" in await reader.readuntil(b"served")
            await asyncio.sleep(0.1)
        writer.close()


async def _server() -> asyncio.Server:
    config = uvicorn.Config(PlainTextResponse("served"), lifespan="off", log_config=None)
    state = ServerState()
    return await asyncio.get_running_loop().create_server(lambda: AgentConnection(config, state, {}), "127.0.0.1", 0)
