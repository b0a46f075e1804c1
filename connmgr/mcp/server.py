"""The MCP server of one bridge: instructions, the tools that its token allows, resources and prompts."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer

from connmgr import __version__
from connmgr.mcp.approval import questions
from connmgr.mcp.approver import Approver
from connmgr.mcp.bridge import Bridge
from connmgr.mcp.tools import TOOLS

INSTRUCTIONS = """\
These tools run commands and move files on machines, through a daemon that keeps the connections and their secrets.
"""


def build(bridge: Bridge, approver: Approver | None = None) -> MCPServer:
    """Return the server of a bridge, ready to be run; ``approver`` does what a person in front of the agent decides."""
    tools = [one.bound(bridge) for one in TOOLS if one.allowed(bridge)]
    return MCPServer(
        "connmgr",
        version=__version__,
        instructions=INSTRUCTIONS,
        tools=tools,
        lifespan=lambda _: questions(approver),
        log_level="WARNING",
    )
