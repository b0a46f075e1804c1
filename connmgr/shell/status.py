"""The description of a running shell, and the state that is stored for its connection."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from connmgr.engine.envelope import Command
from connmgr.engine.start import ShellInfo
from connmgr.shell.shell import Shell
from connmgr.shell.table import ShellName

logger = logging.getLogger("connmgr.shell")


@dataclass(frozen=True)
class ShellStatus:
    """The state of a running shell, ``idle``, ``busy`` or ``lost``, with times in seconds and queued commands.

    ``directory`` is that after its last command; ``since`` is when the shell was started, ``running_since`` when its
    ``running`` command began.
    """

    connection: str
    session: str | None
    state: str
    pid: int
    directory: bytes
    since: datetime
    uptime: float
    idle: float
    waiting: int
    running_since: datetime | None
    running: Command | None = None


def status_of(name: ShellName, shell: Shell) -> ShellStatus:
    """Describe a shell, as far as known without asking it."""
    session = shell.session
    try:
        session.notice_end()
    except Exception:
        # A plugin may raise any exception, and must not prevent the description of other shells.
        logger.exception("The shell of connection %s cannot be described.", name.connection)
    idle, running, command = session.idle_seconds, session.running_since, session.running_command
    return ShellStatus(
        *name,
        state="lost" if not session.alive else "idle" if idle else "busy",
        pid=session.pid,
        directory=session.directory,
        since=shell.since,
        uptime=time.monotonic() - shell.started,
        idle=idle,
        waiting=session.waiting,
        running_since=None if running is None else datetime.fromtimestamp(running, timezone.utc),
        running=None if running is None else command,
    )


def state_of(info: ShellInfo) -> dict[str, Any]:
    """Return the ``state`` of a connection whose shell has started."""
    return {
        "shellDialect": info.shell_dialect,
        "osType": info.os_type,
        "osName": info.os_name,
        "ttyState": info.tty_state,
    }


def found_inside(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``state`` of a connection to a system that was found inside another connection."""
    return {name: state[name] for name in ("running", "gone") if name in state}
