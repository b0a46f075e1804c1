"""The tools, by what they are about."""

from __future__ import annotations

from connmgr.mcp.tool import Declared
from connmgr.mcp.tools.commands import run_command
from connmgr.mcp.tools.systems import list_systems

TOOLS: tuple[Declared, ...] = (list_systems, run_command)
