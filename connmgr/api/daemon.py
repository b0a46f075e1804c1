"""``/daemon``: the version, the state, and the end."""

from __future__ import annotations

import os
import platform
import threading
import time
from datetime import datetime, timezone

from connmgr import __version__
from connmgr.api.context import caller
from connmgr.api.endpoint import Group
from connmgr.api.record import COMMAND
from connmgr.api.services import services
from connmgr.api.shell import visible_shells
from connmgr.contract.daemon import Activity, BlobUse, Capacity, DaemonStatusResponse, Surroundings, VersionResponse
from connmgr.contract.message import message_of
from connmgr.contract.shell import ShellStatus

API_LEVEL = "24.0"
RUNTIME = f"{platform.python_implementation()} {platform.python_version()}"

group = Group("daemon", "The daemon itself.")


@group.endpoint(
    "/version",
    reads=True,
    audited=False,
    methods=("GET", "POST"),
    answer={
        "version": f"{API_LEVEL}+connmgr.{__version__}",
        "canonicalVersion": API_LEVEL,
        "buildVersion": __version__,
        "jvmVersion": "CPython 3.11.7",
        "pro": False,
    },
)
def version() -> VersionResponse:
    """Return the versions of the API, the daemon and its runtime."""
    return VersionResponse(
        api=f"{API_LEVEL}+connmgr.{__version__}",
        canonical=API_LEVEL,
        build=__version__,
        runtime=RUNTIME,
        pro=False,
    )


@group.endpoint(
    "/status",
    reads=True,
    audited=False,
    answer={
        "version": __version__,
        "runtime": "CPython 3.11.7",
        "pid": 4711,
        "uptime": 86400.5,
        "threads": 83,
        "clients": 2,
        "slots": {"inUse": 1, "count": 64},
        "sessions": [
            {
                "connection": "f0ec68aa-63f5-405c-b178-9a4454556d6b",
                "state": "busy",
                "uptime": 3600.2,
                "idle": 0.0,
                "waiting": 0,
            }
        ],
        "blobs": {"count": 1, "bytes": 1048576},
        "auditLost": 0,
        "activity": {
            "since": "2026-01-31T08:16:00.000000Z",
            "commands": [0] * 58 + [12, 3],
            "linksUp": [0] * 58 + [2, 0],
            "linksLost": [0] * 59 + [1],
        },
        "environment": {"path": "/usr/local/bin:/usr/bin:/bin", "agentSocket": "/run/user/1000/agent"},
    },
)
def status() -> DaemonStatusResponse:
    """Describe the running daemon: its shells and its use of resources. No machine is asked."""
    daemon = services()
    return DaemonStatusResponse(
        version=__version__,
        runtime=RUNTIME,
        pid=os.getpid(),
        uptime=time.monotonic() - daemon.counts.began,
        threads=threading.active_count(),
        clients=daemon.tokens.number,
        slots=Capacity(in_use=daemon.slots.in_use, count=daemon.slots.count),
        sessions=[message_of(ShellStatus, shell) for shell in visible_shells()],
        blobs=BlobUse(count=daemon.blobs.number, bytes=daemon.blobs.used),
        audit_lost=daemon.audit.lost,
        activity=_activity(),
        environment=None if caller().grant else _environment(),
    )


def _activity() -> Activity:
    first, (commands, up, lost) = services().events.numbers(COMMAND, "link up", "link lost")
    since = datetime.fromtimestamp(first, timezone.utc)
    return Activity(since=since, commands=commands, links_up=up, links_lost=lost)


def _environment() -> Surroundings:
    return Surroundings(path=os.environ.get("PATH", os.defpath), agent_socket=os.environ.get("SSH_AUTH_SOCK") or None)


@group.endpoint("/stop")
def stop() -> None:
    """Stop the daemon, as SIGTERM does.

    Running requests get 5 seconds to end. Then the daemon cancels commands, closes shells and exits.
    """
    services().stop()
