"""Connections to the HTTP server that are idle, and those of clients without a valid token."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from uvicorn.server import ServerState

from connmgr.mcp import http
from connmgr.mcp.http import AgentConnection
from tests.deadlines import DEADLINE_SECONDS

BEGUN = b"GET / HTTP/1.1\r\nHost: here\r\nX: "
WHOLE = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"


@pytest.mark.parametrize("said", [b"", b"GET", BEGUN, WHOLE + BEGUN])
def test_an_idle_caller_is_closed(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "HEADER_SECONDS", 0.1)
    asyncio.run(asyncio.wait_for(_closed(said), DEADLINE_SECONDS))


def test_an_occasional_caller_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "HEADER_SECONDS", 0.4)
    asyncio.run(asyncio.wait_for(_kept(), DEADLINE_SECONDS))


def test_refusals_beyond_those_at_once_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MOST_REFUSALS_AT_ONCE", 2)
    monkeypatch.setattr(http, "REFUSAL_SECONDS", 0.1)
    began = time.monotonic()
    asyncio.run(asyncio.wait_for(_turns([_Caller() for _ in range(5)]), DEADLINE_SECONDS))
    assert time.monotonic() - began >= 0.2


def test_who_has_left_takes_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MOST_REFUSALS_AT_ONCE", 1)
    # With the turns of all that have left, the last one would come after the deadline.
    monkeypatch.setattr(http, "REFUSAL_SECONDS", 1.0)
    callers = [_Caller() for _ in range(int(DEADLINE_SECONDS) + 10)]
    asyncio.run(asyncio.wait_for(_turns(callers, leaving=callers[2:-1]), DEADLINE_SECONDS))


class _Caller(SimpleNamespace):
    """What a refusal sees of a connection."""

    transport = SimpleNamespace(is_closing=lambda: False)
    waits: Any = None


async def _turns(callers: list[_Caller], leaving: list[_Caller] | None = None) -> None:
    refusals = http._Refusals()
    turns = [asyncio.create_task(refusals.turn(one)) for one in callers]  # type: ignore[arg-type]
    await asyncio.sleep(0)
    for one in leaving or ():
        one.waits.cancel()
    await asyncio.gather(*turns)


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
