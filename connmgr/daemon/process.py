"""What the daemon's process is to be like, before anything is opened."""

from __future__ import annotations

import resource

from connmgr.daemon.log import start_logging
from connmgr.daemon.memory import return_large_blocks
from connmgr.errors import StartupError
from connmgr.secrets.process import harden

OPEN_FILES = 8192
"""Files that the process may have open, where the system lets it: connections, shells, databases."""


def prepare_process(log_level: str, log_format: str) -> None:
    """Set up logging to stderr, limits, and what keeps the process's memory to itself.

    :raises StartupError: the system does not let the process protect its memory.
    """
    start_logging(log_level, log_format)
    _raise_file_limit()
    return_large_blocks()
    try:
        harden()
    except OSError as error:
        raise StartupError(f"The process cannot keep its memory from other programs: {error.strerror}.") from error


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
