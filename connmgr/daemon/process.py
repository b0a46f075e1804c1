"""What the daemon's process is to be like, before anything is opened."""

from __future__ import annotations

import logging
import resource

from connmgr.daemon.memory import return_large_blocks
from connmgr.errors import StartupError
from connmgr.secrets.process import harden

OPEN_FILES = 8192
"""Files that the process may have open, where the system lets it: connections, shells, databases."""


def prepare_process(log_level: str) -> None:
    """Set up logging to stderr, limits, and what keeps the process's memory to itself.

    :raises StartupError: the system does not let the process protect its memory.
    """
    _start_logging(log_level)
    _raise_file_limit()
    return_large_blocks()
    try:
        harden()
    except OSError as error:
        raise StartupError(f"The process cannot keep its memory from other programs: {error.strerror}.") from error


def _start_logging(level: str) -> None:
    # What libraries have to say is of no use below a warning, and may be indiscreet.
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    logging.getLogger("connmgr").setLevel(level.upper())
    # Each request that waits for a thread is no news.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    # A closed stderr must not take the daemon down.
    logging.raiseExceptions = False


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
