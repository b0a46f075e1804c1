"""``/daemon``: the version, the state, and the end."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from connmgr.contract.message import Json, Message
from connmgr.contract.shell import ShellStatus


class VersionResponse(Message):
    api: Annotated[str, Json("version"), "The level of the API, `+`, and connmgr's version."]
    canonical: Annotated[str, Json("canonicalVersion"), "The level of the API."]
    build: Annotated[str, Json("buildVersion"), "connmgr's own version."]
    runtime: Annotated[str, Json("jvmVersion"), "The runtime, which is Python."]
    pro: Annotated[bool, "Always false."]


class Capacity(Message):
    in_use: Annotated[int, "How many requests wait for machines now."]
    count: Annotated[int, "How many may wait."]


class BlobUse(Message):
    count: Annotated[int, "How many are stored."]
    bytes: Annotated[int, "Their size together."]


class Activity(Message):
    since: Annotated[datetime, "The beginning of the first minute; the last one is not over."]
    commands: Annotated[
        list[int], "Requests of `/shell/exec`, `/shell/broadcast` and `/job/start` that were answered in each minute."
    ]
    links_up: Annotated[list[int], "Links to machines that were opened."]
    links_lost: Annotated[list[int], "Links that broke."]


class Surroundings(Message):
    path: Annotated[str, "`PATH`, where the daemon and its local shells find programs."]
    agent_socket: Annotated[
        str | None, "`SSH_AUTH_SOCK`, the socket of the SSH agent that the daemon asks for keys. Absent: none."
    ] = None


class DaemonStatusResponse(Message):
    version: Annotated[str, "connmgr's own version."]
    runtime: Annotated[str, "The Python that runs it."]
    pid: Annotated[int, "The daemon's process."]
    uptime: Annotated[float, "Seconds since the daemon started."]
    threads: Annotated[int, "Threads of the process."]
    clients: Annotated[int, "Client sessions that have shaken hands."]
    slots: Annotated[Capacity, "Slots of requests that wait for machines."]
    sessions: Annotated[list[ShellStatus], "The shells that run."]
    blobs: Annotated[BlobUse, "Blobs of all client sessions."]
    audit_lost: Annotated[int, "Entries of the audit log that could not be written."]
    activity: Annotated[Activity, "What happened in each minute of the last hour."]
    environment: Annotated[
        Surroundings | None,
        "Variables of the environment in which the daemon was started. Only the owner sees them.",
    ] = None
