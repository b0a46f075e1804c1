"""An agent: the SDK's client, with ``connmgr mcp`` as its server on standard input and output."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp_types import CallToolResult

from tests.daemon import Daemon, spawner
from tests.deadlines import DEADLINE_SECONDS, Seen, eventually
from tests.rights.wire import Holder
from tests.spawner import Spawner

MODES = ("legacy", "auto")
LOCAL = {"system": "local machine"}
"""The argument of a tool that names the machine of the daemon."""


def server_spawner() -> Spawner:
    """Return the spawner that has the server loaded, with its tools' schemas."""
    return spawner("connmgr.mcp.http", "tests.mcp.prepared", "connmgr.mcp.stdio", "anyio._backends._asyncio")


@asynccontextmanager
async def agent(
    daemon: Daemon,
    holder: Holder,
    *options: str,
    seconds: float = DEADLINE_SECONDS,
    program: Sequence[str] = (),
    **client: Any,
) -> AsyncIterator[Client]:
    """Start the server with a holder's token, and yield its client for ``seconds`` at most.

    ``program`` is the command that has ``mcp``, without which the server is forked. Further arguments are those of the
    client.
    """
    environment = {**daemon.environment, "CONNMGR_TOKEN": holder.secret}
    command, *words = [*(program or server_spawner().command), "--url", daemon.url, "mcp", *options]
    server = StdioServerParameters(command=command, args=words, env=environment)
    with anyio.fail_after(seconds):
        async with Client(server, read_timeout_seconds=DEADLINE_SECONDS, **client) as connected:
            yield connected


def fault(daemon: Daemon, *options: str, code: int, **variables: str) -> str:
    """Return what a server says that cannot start and exits with ``code``."""
    words = ["--url", daemon.url, "mcp", *options]
    done = server_spawner().run(words, daemon.environment | variables, daemon.home, b"", DEADLINE_SECONDS)
    assert done.returncode == code, done
    return done.stderr.decode()


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run an asynchronous test to its end."""
    anyio.run(work)


async def soon(look: Callable[[], Seen], what: str, *, holds: Callable[[Seen], object] = bool) -> Seen:
    """Wait as :func:`eventually` does, in a thread of its own, while this one goes on to serve the agent."""
    return await anyio.to_thread.run_sync(partial(eventually, look, what, holds=holds))


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
