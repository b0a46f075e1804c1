"""The daemon's answers as named tuples, which import ten times faster than dataclasses."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple


class Category(NamedTuple):
    """A category; ``name`` is its path from the root, ``parent`` is None at a root."""

    id: str
    parent: str | None
    name: tuple[str, ...]
    last_used: datetime
    last_modified: datetime
    config: dict[str, Any]

    @classmethod
    def read(cls, info: Mapping[str, Any]) -> Category:
        return cls(
            id=info["category"],
            parent=info["parentCategory"],
            name=tuple(info["name"]),
            last_used=to_time(info["lastUsed"]),
            last_modified=to_time(info["lastModified"]),
            config=info["config"],
        )


class Connection(NamedTuple):
    """A stored connection.

    ``name`` and ``category`` are paths, the latter without the root. ``data`` holds the type's fields, secrets in
    encrypted form. ``usage`` is None if no installed plugin offers the type, ``created`` None if it was not requested.
    """

    id: str
    category: tuple[str, ...]
    name: tuple[str, ...]
    type: str
    data: dict[str, Any]
    usage: str | None
    last_used: datetime
    last_modified: datetime
    state: dict[str, Any]
    cache: dict[str, Any]
    created: datetime | None = None

    @property
    def path(self) -> str:
        """The name as one text, ``web/root``."""
        return "/".join(self.name)

    @classmethod
    def read(cls, info: Mapping[str, Any]) -> Connection:
        return cls(
            id=info["connection"],
            category=tuple(info["category"]),
            name=tuple(info["name"]),
            type=info["type"],
            data={name: value for name, value in info["rawData"].items() if name != "type"},
            usage=info["usageCategory"],
            last_used=to_time(info["lastUsed"]),
            last_modified=to_time(info["lastModified"]),
            state=info["state"],
            cache=info["cache"],
            created=to_time(info["created"]) if "created" in info else None,
        )


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


class Applied(NamedTuple):
    """The result of a batch: for each entry its connection's id and whether it is new, and the removed connections."""

    added: list[tuple[str, bool]]
    removed: list[str]

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> Applied:
        return cls([(one["connection"], one["added"]) for one in answer["added"]], list(answer["removed"]))


class ConnectionType(NamedTuple):
    """An installed type of connections; ``schema`` is the JSON Schema of its data."""

    name: str
    usage: str
    description: str
    distribution: str
    version: str
    schema: dict[str, Any]
    toggled: bool = False
    """Whether its systems are started and stopped by ``toggle``, such as containers; tunnels are not."""

    @classmethod
    def read(cls, info: Mapping[str, Any]) -> ConnectionType:
        return cls(
            name=info["type"],
            usage=info["usageCategory"],
            description=info["description"],
            distribution=info["distribution"],
            version=info["version"],
            schema=info["schema"],
            toggled=info["toggled"],
        )


class ShellInfo(NamedTuple):
    """A running shell; ``dialect`` is a number of docs/API.md, ``temp`` the far side's ``$TMPDIR`` or ``/tmp``."""

    dialect: int
    os_type: str
    os_name: str
    tty_state: str
    temp: str

    @classmethod
    def read(cls, info: Mapping[str, Any]) -> ShellInfo:
        return cls(info["shellDialect"], info["osType"], info["osName"], info["ttyState"], info["temp"])


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


class ForgottenKey(NamedTuple):
    """A removed host key, its place, and why it is still there (``""`` if it is gone)."""

    key: str
    place: str
    kept: str


class Refreshed(NamedTuple):
    """The result of a refresh: ids of connections added, and ids of those whose system is gone.

    ``skipped`` has a sentence for each system that cannot be stored.
    """

    added: list[str]
    gone: list[str]
    skipped: list[str]


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


class Version(NamedTuple):
    """The API level with and without connmgr's version, the daemon's version, and its runtime."""

    api: str
    canonical: str
    build: str
    runtime: str

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> Version:
        return cls(answer["version"], answer["canonicalVersion"], answer["buildVersion"], answer["jvmVersion"])


class RunningShell(NamedTuple):
    """A running shell: ``state`` is ``idle``, ``busy`` or ``lost``, times in seconds, ``waiting`` counts commands.

    ``session`` is its name, None for the connection's own shell.
    """

    connection: str
    state: str
    uptime: float
    idle: float
    waiting: int
    session: str | None

    @classmethod
    def read(cls, shell: Mapping[str, Any]) -> RunningShell:
        return cls(**{"session": None, **{name: shell[name] for name in cls._fields if name in shell}})


class RunningCommand(NamedTuple):
    """The command that a shell runs, and who asked for it: a client by its own name, and the name of its token."""

    command: str
    client: str
    token: str | None

    @classmethod
    def read(cls, command: Mapping[str, Any]) -> RunningCommand:
        return cls(command["command"], command["client"], command.get("token"))


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


def to_time(text: str) -> datetime:
    """Return a time of the API."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


class RemovedUser(NamedTuple):
    """The effect of a vault user's removal, on connections by their ids."""

    connections: list[str]
    """Those whose secrets the user could read: change them on their machines."""
    resealed: list[str]
    """Those whose secrets only the user could read, and that were sealed to ``heir``."""
    heir: str | None
    lost: list[str]
    """Those with secrets that nobody can read any more."""
