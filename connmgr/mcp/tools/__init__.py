"""The tools, by topic."""

from __future__ import annotations

from connmgr.mcp.tool import Declared
from connmgr.mcp.tools.approvals import show_approval
from connmgr.mcp.tools.commands import answer_prompt, list_jobs, read_job, run_command, stop_job, write_stdin
from connmgr.mcp.tools.files import (
    create_directory,
    edit_file,
    find_file,
    get_file_info,
    list_files,
    read_file,
    undo_changes,
    write_file,
)
from connmgr.mcp.tools.many import find, read_run, run_on_many, search_files, stop_run
from connmgr.mcp.tools.saved import list_commands, run_saved_command
from connmgr.mcp.tools.systems import list_systems, toggle_state
from connmgr.mcp.tools.terminals import close_terminal, open_terminal, read_screen, send_keys

TOOLS: tuple[Declared, ...] = (
    *(list_systems, run_command, read_job, write_stdin, answer_prompt, stop_job, list_jobs),
    *(run_on_many, read_run, stop_run, find, search_files),
    *(read_file, write_file, edit_file, undo_changes, list_files, find_file, get_file_info, create_directory),
    toggle_state,
    *(list_commands, run_saved_command),
    *(open_terminal, read_screen, send_keys, close_terminal),
    show_approval,
)
