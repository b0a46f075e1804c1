"""The standard streams of the process: an agent on input and output, log lines for a person on standard error."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable

import anyio
import anyio.to_thread
from mcp.server.mcpserver import MCPServer

from connmgr.printable import visible

MAX_LINE_CHARACTERS = 500


class _Line(logging.Formatter):
    """One line per record, without control characters, because records may quote clients and be read on a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        cause = "" if error is None else f": {type(error).__name__}: {error}"
        line = " ".join(f"{record.name}: {record.getMessage()}{cause}".splitlines())
        return visible(f"{record.levelname} {line[:MAX_LINE_CHARACTERS]}")


def log_to_stderr() -> None:
    """Let this process log warnings and errors as lines, in place of the SDK's tracebacks."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


async def serve(server: MCPServer, close: Callable[[], None]) -> None:
    """Serve until the agent's client closes standard input, or is gone.

    SIGINT and SIGTERM end the process after ``close``.
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
            # The interpreter would wait for the thread that reads standard input, which cannot be ended.
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


def _is_broken_pipe(error: BaseException) -> bool:
    """Whether ``error``, or all errors of a group, mean that the reader of standard output is gone."""
    inner = getattr(error, "exceptions", None)
    return all(map(_is_broken_pipe, inner)) if inner else isinstance(error, BrokenPipeError)
