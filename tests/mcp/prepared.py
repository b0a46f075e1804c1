"""What every MCP server computes at its start, which takes it longer than most tests: servers are forked after it."""

from __future__ import annotations

import rich.console
import rich.logging  # noqa: F401 - the SDK loads both when a server is made

from connmgr.mcp.server import TOOLS

for tool in TOOLS:
    tool._form  # noqa: B018 - makes the tool's schemas, and keeps them
