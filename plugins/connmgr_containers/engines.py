"""Docker and Podman: containers that are entered by ``exec``, and their hosts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from connmgr.errors import RuntimeUnreachable, ShellStartFailed
from connmgr.plugin import Child, Logged
from connmgr_containers.fields import LOCAL_MACHINE, HostSchema, InsideSchema, optional, required
from connmgr_containers.hosts import Host, chosen
from connmgr_containers.runtime import NO_SHELL, Reason, Switched, leading_in, reason

_INSIDE: Sequence[Reason] = (
    reason(r"no such container|no container with name", ShellStartFailed, "There is no {} on that host."),
    reason(
        r"is not running|container state improper|is paused|can only create exec sessions on running",
        ShellStartFailed,
        "Nothing can be run in {}: it is stopped or paused. Start it first.",
    ),
    NO_SHELL,
    reason(
        r"unable to find (?:user|group)|no matching entries in (?:passwd|group)",
        ShellStartFailed,
        "There is no such `user` in {}.",
    ),
    reason(r"\bchdir\b|to cwd|workdir .{0,200}not", ShellStartFailed, "There is no such `workdir` in {}."),
)
_DOCKER: Sequence[Reason] = (
    reason(
        r"permission denied.{0,40} (?:connect|docker)",
        RuntimeUnreachable,
        "That user may not use Docker: add the user to the group docker there, or run over a shellEnvironment with "
        "sudo.",
    ),
    reason(
        r"cannot connect to the docker daemon|is the docker daemon running|error during connect|failed to connect to",
        RuntimeUnreachable,
        "No Docker daemon answers on that machine: start it, or give the `context` of another one.",
    ),
    reason(
        r"context .{0,100}(?:not found|does not exist)",
        RuntimeUnreachable,
        "Docker has no such `context` there: `docker context ls`.",
    ),
)
_PODMAN: Sequence[Reason] = (
    reason(
        r"(?:cannot|unable to) connect to podman|connection .{0,100}not found|not (?:a )?valid .{0,20}dest",
        RuntimeUnreachable,
        "Podman reaches no such `context` there: `podman system connection list` has those that it knows.",
    ),
    reason(
        r"newuidmap|cannot set up namespace|no subuid|insufficient uids|cannot clone|runtime director",
        RuntimeUnreachable,
        "Podman cannot run rootless for that user: it needs the package uidmap, ids in /etc/subuid and /etc/subgid, "
        "and a login session (loginctl enable-linger).",
    ),
)


class EngineHostSchema(HostSchema):
    """The fields of a host of containers."""

    context = optional("Which daemon is meant, by the name that the program knows; its default otherwise.")


class EngineSchema(InsideSchema):
    """The fields of a container."""

    containerName = required("The container's name or id.")
    context = optional("Which daemon has it, by the name that the program knows; its default otherwise.")


class Docker(Switched, Logged):
    """A container of Docker."""

    name = "docker"
    description = "A shell in a running container of Docker."
    schema = EngineSchema
    example: ClassVar[Mapping[str, Any]] = {"host": LOCAL_MACHINE, "containerName": "web", "user": "www-data"}
    program = "docker"
    reasons = (*_DOCKER, *_INSIDE)
    chooses = "--context"

    def wrap(self, argv: Sequence[str], data: Mapping[str, Any], prompt: str, *, pty: bool) -> list[str]:
        entering = [
            *client(self.program, self.chooses, data),
            *["exec", "--interactive"],
            *(["--tty"] if pty else []),
            *([f"--user={data['user']}"] if data.get("user") else []),
            *([f"--workdir={data['workdir']}"] if data.get("workdir") else []),
            data["containerName"],
        ]
        return leading_in(entering, argv, pty=pty)

    def switch(self, data: Mapping[str, Any], *, state: bool) -> list[str]:
        return [*client(self.program, self.chooses, data), "start" if state else "stop", data["containerName"]]

    def log(self, data: Mapping[str, Any], *, follow: bool, lines: int | None) -> list[str]:
        words = [*(["--follow"] if follow else []), *([] if lines is None else [f"--tail={lines}"])]
        return [*client(self.program, self.chooses, data), "logs", *words, data["containerName"]]


class Podman(Docker):
    """A container of Podman."""

    name = "podman"
    description = "A shell in a running container of Podman, rootless or not, as the host's user is."
    program = "podman"
    reasons = (*_PODMAN, *_INSIDE)
    chooses = "--connection"


class DockerHost(Host):
    """A machine with Docker."""

    name = "dockerHost"
    description = "The containers of Docker on a machine, found by a refresh."
    schema = EngineHostSchema
    program = "docker"
    reasons = _DOCKER
    inner: ClassVar[type[Docker]] = Docker

    def listing(self, data: Mapping[str, Any]) -> Sequence[Sequence[str]]:
        words = ["ps", "--all", "--no-trunc", "--format", "{{json .}}"]
        return [[*client(self.program, self.inner.chooses, data), *words]]

    def found(self, data: Mapping[str, Any], *listings: str) -> Iterable[Child]:
        for each in _entries(listings[0]):
            names = each["Names"]
            name = names[0] if isinstance(names, list) else names.split(",")[0]
            given = {"containerName": name, **chosen(data, "context")}
            yield Child(name, self.inner.name, given, each["State"] == "running")


class PodmanHost(DockerHost):
    """A machine with Podman."""

    name = "podmanHost"
    description = "The containers of Podman on a machine, those of the host's user, found by a refresh."
    program = "podman"
    reasons = _PODMAN
    inner = Podman


def _entries(listing: str) -> Iterable[Any]:
    """Parse a listing: Docker prints an object per line, Podman one array."""
    if listing.startswith("["):
        return list(json.loads(listing))
    return map(json.loads, listing.splitlines())


def client(program: str, chooses: str, data: Mapping[str, Any]) -> list[str]:
    """Return the words that start the program for the daemon that ``data`` names."""
    # If the program is missing, env reports this in the same words over every connection.
    return ["env", program, *([f"{chooses}={data['context']}"] if data.get("context") else [])]
