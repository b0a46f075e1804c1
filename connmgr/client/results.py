"""The daemon's answers as named tuples, which import ten times faster than dataclasses."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from connmgr.contract.category import CategoryInfo as Category
from connmgr.contract.connection import ConnectionInfo as Connection
from connmgr.contract.connection import ForgottenHostKey as ForgottenKey
from connmgr.contract.connection import TypeInfo as ConnectionType
from connmgr.contract.daemon import VersionResponse as Version
from connmgr.contract.message import time_from_json as to_time
from connmgr.contract.shell import RunningCommandInfo as RunningCommand
from connmgr.contract.shell import ShellInfo
from connmgr.contract.shell import ShellStatus as RunningShell

__all__ = [
    "Applied",
    "Category",
    "Connection",
    "ConnectionType",
    "DaemonStatus",
    "FileEntry",
    "ForgottenKey",
    "ListedShell",
    "Name",
    "RawResult",
    "Refreshed",
    "RemovedUser",
    "Result",
    "RunningCommand",
    "RunningShell",
    "ShellInfo",
    "VaultStatus",
    "Version",
    "from_path",
    "to_path",
    "to_time",
]


class Name(NamedTuple):
    """The name of a connection; ``name`` and ``category`` are paths, the latter without the root.

    ``usage`` is None if no installed plugin offers the type.
    """

    id: str
    category: tuple[str, ...]
    name: tuple[str, ...]
    type: str
    usage: str | None

    @property
    def path(self) -> str:
        """The name as one text, ``web/root``."""
        return "/".join(self.name)

    @classmethod
    def read(cls, id: str, name: Mapping[str, Any]) -> Name:
        return cls(id, tuple(name["category"]), tuple(name["name"]), name["type"], name["usageCategory"])


class Refreshed(NamedTuple):
    """The result of a refresh: ids of connections added, and ids of those whose system is gone.

    ``skipped`` has a sentence for each system that cannot be stored.
    """

    added: list[str]
    gone: list[str]
    skipped: list[str]

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> Refreshed:
        return cls(answer["added"], answer["gone"], answer["skipped"])


class Applied(NamedTuple):
    """The result of a batch: for each entry its connection's id and whether it is new, and the removed connections."""

    added: list[tuple[str, bool]]
    removed: list[str]

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> Applied:
        return cls([(one["connection"], one["added"]) for one in answer["added"]], list(answer["removed"]))


class Result(NamedTuple):
    """Output of a command as text without the final newline; ``truncated`` if some was dropped.

    ``restarted`` says that the shell was lost before, so that directory and variables are new.
    """

    exit_code: int
    stdout: str
    stderr: str
    truncated: bool
    restarted: bool = False

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> Result:
        marks = (answer.get(name, False) for name in ("truncated", "restarted"))
        return cls(answer["exitCode"], answer["stdout"], answer["stderr"], *marks)


class RawResult(NamedTuple):
    """Output of a command as bytes; ``truncated`` if some was dropped.

    ``restarted`` says that the shell was lost before, so that directory and variables are new.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    truncated: bool
    restarted: bool = False

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> RawResult:
        stdout, stderr = (base64.b64decode(answer.get(name, "")) for name in ("stdout", "stderr"))
        marks = (answer.get(name, False) for name in ("truncated", "restarted"))
        return cls(answer["exitCode"], stdout, stderr, *marks)


class FileEntry(NamedTuple):
    """A file on the far side; ``size`` in bytes, ``mode`` its permission bits, ``target`` where a link leads.

    Bytes of names that are not UTF-8 are surrogates, as in :mod:`os`.
    """

    name: str
    type: str
    size: int
    mode: int
    modified: datetime
    uid: int
    gid: int
    owner: str
    group: str
    target: str | None

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> FileEntry:
        return cls(
            name=from_path(entry["name"]),
            type=entry["type"],
            size=entry["size"],
            mode=int(entry["mode"], 8),
            modified=to_time(entry["modified"]),
            uid=entry["uid"],
            gid=entry["gid"],
            owner=entry["owner"],
            group=entry["group"],
            target=None if entry["target"] is None else from_path(entry["target"]),
        )


class VaultStatus(NamedTuple):
    """Whether the vault has users, the user that this session unlocked, and whose secrets it can decrypt."""

    has_users: bool
    user: str | None
    principals: tuple[str, ...]
    users: tuple[str, ...]

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> VaultStatus:
        return cls(answer["hasUsers"], answer["user"], tuple(answer["principals"]), tuple(answer["users"]))


class ListedShell(NamedTuple):
    """A running shell with its process and directory, and since when it and its command run, by the daemon's clock.

    ``running`` is its command, unless there is none, or this client may not see it.
    """

    status: RunningShell
    pid: int
    directory: str
    since: datetime
    running_since: datetime | None
    running: RunningCommand | None

    @property
    def command_seconds(self) -> float | None:
        """Seconds for which its command has run, None without a command."""
        if self.running_since is None:
            return None
        return max(0.0, self.status.uptime - (self.running_since - self.since).total_seconds())

    @classmethod
    def read(cls, shell: Mapping[str, Any]) -> ListedShell:
        running = shell.get("runningSince")
        return cls(
            status=RunningShell.read(shell),
            pid=shell["pid"],
            directory=from_path(shell["directory"]),
            since=to_time(shell["since"]),
            running_since=None if running is None else to_time(running),
            running=RunningCommand.read(shell["running"]) if "running" in shell else None,
        )


class DaemonStatus(NamedTuple):
    """The daemon's load: times in seconds; ``slots`` bounds the requests that wait for machines."""

    version: str
    runtime: str
    pid: int
    uptime: float
    threads: int
    clients: int
    slots: int
    slots_in_use: int
    shells: list[RunningShell]
    blobs: int
    blob_bytes: int
    audit_lost: int

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> DaemonStatus:
        return cls(
            version=answer["version"],
            runtime=answer["runtime"],
            pid=answer["pid"],
            uptime=answer["uptime"],
            threads=answer["threads"],
            clients=answer["clients"],
            slots=answer["slots"]["count"],
            slots_in_use=answer["slots"]["inUse"],
            shells=[RunningShell.read(shell) for shell in answer["sessions"]],
            blobs=answer["blobs"]["count"],
            blob_bytes=answer["blobs"]["bytes"],
            audit_lost=answer["auditLost"],
        )


def to_path(path: str | os.PathLike[str]) -> str | dict[str, str]:
    """Return ``path`` as the API expects it; surrogates stand for bytes that are not UTF-8."""
    text = os.fspath(path)
    try:
        text.encode()
    except UnicodeEncodeError:
        return {"base64": base64.b64encode(text.encode(errors="surrogateescape")).decode()}
    return text


def from_path(path: str | Mapping[str, str]) -> str:
    """Return a path of the API; surrogates stand for bytes that are not UTF-8."""
    if isinstance(path, str):
        return path
    return base64.b64decode(path["base64"]).decode(errors="surrogateescape")


class RemovedUser(NamedTuple):
    """The effect of a vault user's removal, on connections by their ids."""

    connections: list[str]
    """Those whose secrets the user could read: change them on their machines."""
    resealed: list[str]
    """Those whose secrets only the user could read, and that were sealed to ``heir``."""
    heir: str | None
    lost: list[str]
    """Those with secrets that nobody can read any more."""
