"""Prepares the daemon's process before it opens anything."""

from __future__ import annotations

import resource
import sys

from connmgr.daemon.log import start_logging
from connmgr.daemon.memory import return_large_blocks
from connmgr.errors import StartupError
from connmgr.processes import harden

SWITCH_SECONDS = 0.0005
"""A thread that computes gives way to others after this time. A request gives up the interpreter at each of its calls
to the system; with Python's 5 ms it would wait that long after each, beside a single request that computes."""

MAX_OPEN_FILES = 8192
"""Soft limit of open files, as far as the hard limit allows."""


def prepare_process(log_level: str, log_format: str) -> None:
    """Set up logging and limits, and protect the process's memory.

    :raises StartupError: the system does not let the process protect its memory.
    """
    start_logging(log_level, log_format)
    _raise_file_limit()
    return_large_blocks()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        harden()
    except OSError as error:
        raise StartupError(f"The process cannot keep its memory from other programs: {error.strerror}.") from error


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
