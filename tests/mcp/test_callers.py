"""Connections to the HTTP server that are idle, and those of clients without a valid token."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import anyio
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


def test_turns_beyond_those_at_once_take_their_time() -> None:
    began = time.monotonic()
    assert asyncio.run(_turns(http._Turns(0.1, 2), [_Caller() for _ in range(5)])) == [True] * 5
    assert time.monotonic() - began >= 0.2


def test_who_has_left_takes_no_turn() -> None:
    # With the turns of all that have left, the last one would come after the deadline.
    callers = [_Caller() for _ in range(int(DEADLINE_SECONDS) + 10)]
    went_on = asyncio.run(_turns(http._Turns(1.0, 1), callers, leaving=callers[2:-1]))
    assert went_on == [True, True, *[False] * len(callers[2:-1]), True]


def test_turns_are_idle_when_all_are_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async def seen() -> list[bool]:
        turns = http._Turns(1.0, 10)
        looks = [turns.is_idle]
        await turns.turn(_Caller())  # type: ignore[arg-type]
        looks.append(turns.is_idle)
        now = anyio.current_time()
        monkeypatch.setattr(anyio, "current_time", lambda: now + 2)
        return [*looks, turns.is_idle]

    assert asyncio.run(seen()) == [True, False, True]


def test_clients_that_have_left_again_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MOST_PASSED_OVER", 3)
    with contextlib.closing(http.listen(0)) as listening:
        listening.setblocking(False)
        place = listening.getsockname()
        for _ in range(4):
            socket.create_connection(place, DEADLINE_SECONDS).close()
        with contextlib.closing(socket.create_connection(place, DEADLINE_SECONDS)) as stays:
            with pytest.raises(BlockingIOError):
                listening.accept()
            accepted, address = listening.accept()
            accepted.close()
            assert address == stays.getsockname(), "a client is served that has left"
        # What it sent before it left may be a request.
        with contextlib.closing(socket.create_connection(place, DEADLINE_SECONDS)) as asks:
            asks.sendall(WHOLE)
            asks.shutdown(socket.SHUT_WR)
            accepted, _ = listening.accept()
            accepted.close()


class _Caller(SimpleNamespace):
    """What a turn sees of a connection."""

    transport = SimpleNamespace(is_closing=lambda: False)
    waits: Any = None


async def _turns(turns: http._Turns, callers: list[_Caller], leaving: Sequence[_Caller] = ()) -> list[bool]:
    """Return whether each of ``callers`` had its turn, of which some leave before it."""
    tasks = [asyncio.create_task(turns.turn(one)) for one in callers]  # type: ignore[arg-type]
    await asyncio.sleep(0)
    for one in leaving:
        one.waits.cancel()
    return await asyncio.wait_for(asyncio.gather(*tasks), DEADLINE_SECONDS)


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
