"""A server on standard input and output, for the agent that has started it."""

from __future__ import annotations

import signal
from collections.abc import Callable

import anyio
import anyio.to_thread
from mcp.server.mcpserver import MCPServer


async def serve(server: MCPServer, close: Callable[[], None]) -> None:
    """Serve until the agent's client closes standard input, or is gone.

    SIGINT and SIGTERM end the process by themselves, after ``close``.
    """
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_until_signal, close)
            await server.run_stdio_async()
            tasks.cancel_scope.cancel()
    except Exception as error:
        if not _is_broken_pipe(error):
            raise


async def _until_signal(close: Callable[[], None]) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            await anyio.to_thread.run_sync(close)
            # The thread that reads standard input cannot be ended, and the interpreter would wait for it.
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


def _is_broken_pipe(error: BaseException) -> bool:
    """Whether ``error``, or all of a group, tells that nobody reads standard output any more."""
    inner = getattr(error, "exceptions", None)
    return all(map(_is_broken_pipe, inner)) if inner else isinstance(error, BrokenPipeError)
