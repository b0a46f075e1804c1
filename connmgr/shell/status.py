"""What is told of a running shell, and what is stored of one that was started."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

from connmgr.engine.start import ShellInfo
from connmgr.shell.shell import Shell

logger = logging.getLogger("connmgr.shell")


@dataclass(frozen=True)
class ShellStatus:
    """How a running shell is: its state, ``idle``, ``busy`` or ``lost``, times in seconds, and commands that queue."""

    connection: str
    state: str
    uptime: float
    idle: float
    waiting: int


def status_of(connection: str, shell: Shell) -> ShellStatus:
    """Describe a shell, as far as is known without asking it."""
    try:
        shell.session.notice_end()
    except Exception:
        # A plugin may raise anything, and the other shells are to be described all the same.
        logger.exception("The shell of connection %s cannot be looked at.", connection)
    idle = shell.session.idle_seconds
    state = "lost" if not shell.session.alive else "idle" if idle else "busy"
    return ShellStatus(connection, state, time.monotonic() - shell.started, idle, shell.session.waiting)


def state_of(info: ShellInfo) -> dict[str, Any]:
    """Return what a connection's ``state`` says once its shell has started."""
    return {
        "shellDialect": info.shell_dialect,
        "osType": info.os_type,
        "osName": info.os_name,
        "ttyState": info.tty_state,
    }
