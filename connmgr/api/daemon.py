"""``/daemon``: the version, the state, and the end."""

from __future__ import annotations

import os
import platform
import threading
import time
from typing import Any

from marshmallow import fields

from connmgr import __version__
from connmgr.api.account import caller
from connmgr.api.group import Group
from connmgr.api.services import services
from connmgr.api.shell import seen_shells
from connmgr.api.shell_schemas import ShellStatus
from connmgr.fields import Schema

API_LEVEL = "24.0"
RUNTIME = f"{platform.python_implementation()} {platform.python_version()}"

group = Group("daemon", "The daemon itself.")


class VersionResponse(Schema):
    version = fields.String(
        required=True, metadata={"description": "The level of the API, `+`, and connmgr's version."}
    )
    canonicalVersion = fields.String(required=True, metadata={"description": "The level of the API."})
    buildVersion = fields.String(required=True, metadata={"description": "connmgr's own version."})
    jvmVersion = fields.String(required=True, metadata={"description": "The runtime, which is Python."})
    pro = fields.Boolean(required=True, metadata={"description": "Always false."})


class Capacity(Schema):
    inUse = fields.Integer(required=True, metadata={"description": "How many requests wait for machines now."})
    count = fields.Integer(required=True, metadata={"description": "How many may wait."})


class BlobUse(Schema):
    count = fields.Integer(required=True, metadata={"description": "How many are stored."})
    bytes = fields.Integer(required=True, metadata={"description": "Their size together."})


class Surroundings(Schema):
    path = fields.String(
        required=True, metadata={"description": "`PATH`, where the daemon and its local shells find programs."}
    )
    agentSocket = fields.String(
        metadata={
            "description": "`SSH_AUTH_SOCK`, the socket of the SSH agent that the daemon asks for keys. Absent: none."
        }
    )


class DaemonStatusResponse(Schema):
    version = fields.String(required=True, metadata={"description": "connmgr's own version."})
    runtime = fields.String(required=True, metadata={"description": "The Python that runs it."})
    pid = fields.Integer(required=True, metadata={"description": "The daemon's process."})
    uptime = fields.Float(required=True, metadata={"description": "Seconds since the daemon started."})
    threads = fields.Integer(required=True, metadata={"description": "Threads of the process."})
    clients = fields.Integer(required=True, metadata={"description": "Client sessions that have shaken hands."})
    slots = fields.Nested(
        Capacity, required=True, metadata={"description": "Slots of requests that wait for machines."}
    )
    sessions = fields.List(fields.Nested(ShellStatus), required=True, metadata={"description": "The shells that run."})
    blobs = fields.Nested(BlobUse, required=True, metadata={"description": "Blobs of all client sessions."})
    auditLost = fields.Integer(
        required=True, metadata={"description": "Entries of the audit log that could not be written."}
    )
    environment = fields.Nested(
        Surroundings,
        metadata={
            "description": "Variables of the environment in which the daemon was started. Only the owner sees them."
        },
    )


@group.endpoint(
    "/version",
    action="daemon.version",
    reads=True,
    audited=False,
    response=VersionResponse,
    methods=("GET", "POST"),
    answer={
        "version": f"{API_LEVEL}+connmgr.{__version__}",
        "canonicalVersion": API_LEVEL,
        "buildVersion": __version__,
        "jvmVersion": "CPython 3.11.7",
        "pro": False,
    },
)
def version() -> dict[str, Any]:
    """Return the versions of the API, the daemon and its runtime."""
    return {
        "version": f"{API_LEVEL}+connmgr.{__version__}",
        "canonicalVersion": API_LEVEL,
        "buildVersion": __version__,
        "jvmVersion": RUNTIME,
        "pro": False,
    }


@group.endpoint(
    "/status",
    action="daemon.status",
    reads=True,
    audited=False,
    response=DaemonStatusResponse,
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
        "environment": {"path": "/usr/local/bin:/usr/bin:/bin", "agentSocket": "/run/user/1000/agent"},
    },
)
def status() -> dict[str, Any]:
    """Describe the running daemon: its shells and its use of resources. No machine is asked."""
    found = services()
    return {
        "version": __version__,
        "runtime": RUNTIME,
        "pid": os.getpid(),
        "uptime": time.monotonic() - found.counts.began,
        "threads": threading.active_count(),
        "clients": found.tokens.number,
        "slots": {"inUse": found.slots.in_use, "count": found.slots.count},
        "sessions": seen_shells(),
        "blobs": {"count": found.blobs.number, "bytes": found.blobs.used},
        "auditLost": found.audit.lost,
        **({} if caller().grant else {"environment": _environment()}),
    }


def _environment() -> dict[str, str]:
    agent = os.environ.get("SSH_AUTH_SOCK")
    return {"path": os.environ.get("PATH", os.defpath)} | ({"agentSocket": agent} if agent else {})


@group.endpoint(
    "/stop",
    action="daemon.stop",
)
def stop() -> None:
    """Stop the daemon, as SIGTERM does.

    Running requests get 5 seconds to end. Then the daemon cancels commands, closes shells and exits.
    """
    services().stop()
