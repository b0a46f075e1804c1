"""An agent: the SDK's client, with ``connmgr mcp`` as its server on standard input and output."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp_types import CallToolResult

from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS
from tests.rights.wire import Holder
from tests.spawner import PROGRAM

MODES = ("legacy", "auto")


@asynccontextmanager
async def agent(
    daemon: Daemon, holder: Holder, *options: str, seconds: float = DEADLINE_SECONDS, **client: Any
) -> AsyncIterator[Client]:
    """Start the server with a holder's token, and yield its client for ``seconds`` at most.

    Further arguments are those of the client.
    """
    environment = {**daemon.environment, "CONNMGR_TOKEN": holder.secret}
    words = ["--url", daemon.url, "mcp", *options]
    server = StdioServerParameters(command=str(PROGRAM), args=words, env=environment)
    with anyio.fail_after(seconds):
        async with Client(server, read_timeout_seconds=DEADLINE_SECONDS, **client) as connected:
            yield connected


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run an asynchronous test to its end."""
    anyio.run(work)


def content(result: CallToolResult) -> dict[str, Any]:
    """Return a tool's answer, which must not be an error."""
    assert not result.is_error, result.content
    assert result.structured_content is not None
    return result.structured_content


def refused(result: CallToolResult) -> dict[str, Any]:
    """Return a tool's error: ``code``, ``message`` and ``next``."""
    assert result.is_error, result.structured_content
    # Many clients validate it against the output schema.
    assert result.structured_content is None
    (content,) = result.content
    told: dict[str, Any] = json.loads(content.text)  # type: ignore[union-attr]
    return told
