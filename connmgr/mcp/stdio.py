"""A server on standard input and output, for the one agent that has started it."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer


async def serve(server: MCPServer) -> None:
    """Serve until the agent's client closes standard input, or is gone."""
    try:
        await server.run_stdio_async()
    except Exception as error:
        if not _is_broken_pipe(error):
            raise


def _is_broken_pipe(error: BaseException) -> bool:
    """Whether ``error``, or all of a group, tells that nobody reads standard output any more."""
    inner = getattr(error, "exceptions", None)
    return all(map(_is_broken_pipe, inner)) if inner else isinstance(error, BrokenPipeError)
