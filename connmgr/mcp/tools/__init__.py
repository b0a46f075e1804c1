"""The tools, by what they are about."""

from __future__ import annotations

from connmgr.mcp.tool import Declared
from connmgr.mcp.tools.commands import run_command
from connmgr.mcp.tools.jobs import list_jobs, read_job, stop_job, write_stdin
from connmgr.mcp.tools.systems import list_systems

TOOLS: tuple[Declared, ...] = (list_systems, run_command, read_job, write_stdin, stop_job, list_jobs)
