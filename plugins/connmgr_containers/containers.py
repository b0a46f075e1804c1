"""Containers of applications: Docker and Podman, entered by ``exec``; pods, entered by kubectl; and their hosts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from connmgr.errors import RuntimeUnreachable, ShellStartFailed
from connmgr.plugin import Child, Logged, Text
from connmgr_containers.runtime import (
    LOCAL_MACHINE,
    NO_SHELL,
    Host,
    HostSchema,
    InsideSchema,
    Reason,
    Runtime,
    Switched,
    chosen,
    leading_in,
    optional,
    printable,
    reason,
    required,
)

_INSIDE: Sequence[Reason] = (
    reason(r"no such container|no container with name", ShellStartFailed, "There is no {} on that host."),
    reason(
        r"is not running|container state improper|is paused|can only create exec sessions on running",
        ShellStartFailed,
        "No program can run in {}: it is stopped or paused. Start it first.",
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
        "Docker there has no such `context`: `docker context ls` lists the contexts.",
    ),
)
_PODMAN: Sequence[Reason] = (
    reason(
        r"(?:cannot|unable to) connect to podman|connection .{0,100}not found|not (?:a )?valid .{0,20}dest",
        RuntimeUnreachable,
        "Podman there has no such `context`: `podman system connection list` lists the contexts.",
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

    context = optional("The name of the program's context, that is of a daemon; the program's default otherwise.")


class EngineSchema(InsideSchema):
    """The fields of a container."""

    containerName = required("The container's name or id.")
    context = optional("The name of the program's context, that is of the daemon; the program's default otherwise.")


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
            *engine_client(self.program, self.chooses, data),
            *["exec", "--interactive"],
            *(["--tty"] if pty else []),
            *([f"--user={data['user']}"] if data.get("user") else []),
            *([f"--workdir={data['workdir']}"] if data.get("workdir") else []),
            data["containerName"],
        ]
        return leading_in(entering, argv, pty=pty)

    def switch(self, data: Mapping[str, Any], *, state: bool) -> list[str]:
        return [*engine_client(self.program, self.chooses, data), "start" if state else "stop", data["containerName"]]

    def log(self, data: Mapping[str, Any], *, follow: bool, lines: int | None) -> list[str]:
        words = [*(["--follow"] if follow else []), *([] if lines is None else [f"--tail={lines}"])]
        return [*engine_client(self.program, self.chooses, data), "logs", *words, data["containerName"]]


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
        return [[*engine_client(self.program, self.inner.chooses, data), *words]]

    def parse(self, data: Mapping[str, Any], *listings: str) -> Iterable[Child]:
        for each in _entries(listings[0]):
            names = each["Names"]
            name = names[0] if isinstance(names, list) else names.split(",")[0]
            data_of_it = {"containerName": name, **chosen(data, "context")}
            yield Child(name, self.inner.name, data_of_it, each["State"] == "running")


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


def engine_client(program: str, chooses: str, data: Mapping[str, Any]) -> list[str]:
    """Return the words that start the program for the daemon that ``data`` names."""
    # If the program is missing, env reports this in the same words over every connection.
    return ["env", program, *([f"{chooses}={data['context']}"] if data.get("context") else [])]


_CLUSTER: Sequence[Reason] = (
    reason(
        r"context .{0,100}does not exist|context was not found",
        RuntimeUnreachable,
        "kubectl there has no such `context`: `kubectl config get-contexts` lists the contexts.",
    ),
    reason(
        r"connection refused|unable to connect to the server|was refused|no such host|i/o timeout|no configuration",
        RuntimeUnreachable,
        "kubectl does not reach a cluster from that machine: give the `context` of one, or see `kubectl cluster-info`.",
    ),
    reason(
        r"you must be logged in|unauthorized|credentials",
        RuntimeUnreachable,
        "The cluster does not know the user of that `context`: its credentials on that machine must be renewed.",
    ),
    reason(
        r"is forbidden|forbidden:", RuntimeUnreachable, "The user of that `context` may not do this in that namespace."
    ),
)


class ClusterSchema(HostSchema):
    """The fields of a cluster."""

    # Any text may name a context, such as the ARN of a cluster. It is passed as --context=TEXT, never as a word alone.
    context = Text(
        allow_none=True,
        validate=printable,
        metadata={"description": "The context of kubectl's configuration there; the current one otherwise."},
    )
    namespace = optional("The namespace. Default: for a cluster all namespaces, for a pod the context's.")


class PodSchema(ClusterSchema):
    """The fields of a pod's container."""

    pod = required("The pod's name.")
    container = optional("One of the pod's containers; its default one otherwise.")


class Kubernetes(Runtime, Logged):
    """A container of a pod."""

    name = "kubernetes"
    description = "A shell in a container of a pod, by kubectl on a machine that reaches the cluster."
    schema = PodSchema
    example: ClassVar[Mapping[str, Any]] = {
        "host": LOCAL_MACHINE,
        "context": "production",
        "namespace": "shop",
        "pod": "web-7d4b9c6f5-x2x8k",
        "container": "nginx",
    }
    program = "kubectl"
    # kubectl exec prints this line on stderr after the program's own output, whatever its status was other than 0.
    last_line = b"command terminated with exit code "
    reasons = (
        reason(r"container .{0,200} is not valid for pod|container not found", ShellStartFailed, "There is no {}."),
        reason(r"pods .{0,300} not found|namespaces .{0,300} not found", ShellStartFailed, "There is no {}."),
        reason(
            r"completed pod|current phase is|not running|unable to upgrade connection: container",
            ShellStartFailed,
            "No program can run in {}: it is not running.",
        ),
        *_CLUSTER,
        NO_SHELL,
    )

    def place(self, data: Mapping[str, Any]) -> str:
        container = f"container {data['container']} of " if data.get("container") else ""
        return f"{container}pod {data['pod']}"

    def wrap(self, argv: Sequence[str], data: Mapping[str, Any], prompt: str, *, pty: bool) -> list[str]:
        entering = [
            *kubectl(data),
            *["exec", "--stdin"],
            *(["--tty"] if pty else []),
            *([f"--container={data['container']}"] if data.get("container") else []),
            *[data["pod"], "--"],
        ]
        return leading_in(entering, argv, pty=pty)

    def log(self, data: Mapping[str, Any], *, follow: bool, lines: int | None) -> list[str]:
        container = [f"--container={data['container']}"] if data.get("container") else []
        words = [*(["--follow"] if follow else []), *([] if lines is None else [f"--tail={lines}"])]
        return [*kubectl(data), "logs", *container, *words, data["pod"]]


class KubernetesCluster(Host):
    """A cluster."""

    name = "kubernetesCluster"
    description = "The pods of a Kubernetes cluster, each container a connection, found by a refresh."
    schema = ClusterSchema
    example: ClassVar[Mapping[str, Any]] = {"host": LOCAL_MACHINE, "context": "production", "namespace": "shop"}
    program = "kubectl"
    reasons = _CLUSTER

    def listing(self, data: Mapping[str, Any]) -> Sequence[Sequence[str]]:
        every = [] if data.get("namespace") else ["--all-namespaces"]
        return [[*kubectl(data), "get", "pods", "--output=json", *every]]

    def parse(self, data: Mapping[str, Any], *listings: str) -> Iterable[Child]:
        for each in json.loads(listings[0])["items"]:
            yield from _containers(each, chosen(data, "context"))


def _containers(pod: Mapping[str, Any], context: Mapping[str, Any]) -> Iterator[Child]:
    meta, containers = pod["metadata"], pod["spec"]["containers"]
    up = {each["name"]: "running" in each.get("state", {}) for each in pod["status"].get("containerStatuses", ())}
    for container in containers:
        path = [meta["namespace"], meta["name"], *([container["name"]] if len(containers) > 1 else [])]
        place = {"namespace": meta["namespace"], "pod": meta["name"], "container": container["name"]}
        yield Child(" ".join(path), Kubernetes.name, {**context, **place}, up.get(container["name"], False))


def kubectl(data: Mapping[str, Any]) -> list[str]:
    """Return the words that start kubectl for the cluster and the namespace that ``data`` names."""
    chosen_options = [f"--{key}={data[key]}" for key in ("context", "namespace") if data.get(key)]
    return ["env", "kubectl", *chosen_options]
