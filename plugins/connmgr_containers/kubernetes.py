"""Containers of pods, and their clusters, by kubectl on a host that reaches the cluster."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from connmgr.errors import RuntimeUnreachable, ShellStartFailed
from connmgr.plugin import Child, Logged, Text
from connmgr_containers.fields import LOCAL_MACHINE, HostSchema, optional, printable, required
from connmgr_containers.hosts import Host, chosen
from connmgr_containers.runtime import NO_SHELL, Reason, Runtime, leading_in, reason

_CLUSTER: Sequence[Reason] = (
    reason(
        r"context .{0,100}does not exist|context was not found",
        RuntimeUnreachable,
        "kubectl knows no such `context` there: `kubectl config get-contexts` has those that it knows.",
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
    namespace = optional("The namespace; without it all of a cluster, and for a pod that of the context.")


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
    last_line = b"command terminated with exit code "
    reasons = (
        reason(r"container .{0,200} is not valid for pod|container not found", ShellStartFailed, "There is no {}."),
        reason(r"pods .{0,300} not found|namespaces .{0,300} not found", ShellStartFailed, "There is no {}."),
        reason(
            r"completed pod|current phase is|not running|unable to upgrade connection: container",
            ShellStartFailed,
            "Nothing can be run in {}: it does not run.",
        ),
        *_CLUSTER,
        NO_SHELL,
    )

    def place(self, data: Mapping[str, Any]) -> str:
        container = f"container {data['container']} of " if data.get("container") else ""
        return f"{container}pod {data['pod']}"

    def wrap(self, argv: Sequence[str], data: Mapping[str, Any], prompt: str, *, pty: bool) -> list[str]:
        entering = [
            *client(data),
            *["exec", "--stdin"],
            *(["--tty"] if pty else []),
            *([f"--container={data['container']}"] if data.get("container") else []),
            *[data["pod"], "--"],
        ]
        return leading_in(entering, argv, pty=pty)

    def log(self, data: Mapping[str, Any], *, follow: bool, lines: int | None) -> list[str]:
        container = [f"--container={data['container']}"] if data.get("container") else []
        words = [*(["--follow"] if follow else []), *([] if lines is None else [f"--tail={lines}"])]
        return [*client(data), "logs", *container, *words, data["pod"]]


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
        return [[*client(data), "get", "pods", "--output=json", *every]]

    def found(self, data: Mapping[str, Any], *listings: str) -> Iterable[Child]:
        for each in json.loads(listings[0])["items"]:
            yield from _containers(each, chosen(data, "context"))


def _containers(pod: Mapping[str, Any], context: Mapping[str, Any]) -> Iterator[Child]:
    meta, containers = pod["metadata"], pod["spec"]["containers"]
    up = {one["name"]: "running" in one.get("state", {}) for one in pod["status"].get("containerStatuses", ())}
    for one in containers:
        path = [meta["namespace"], meta["name"], *([one["name"]] if len(containers) > 1 else [])]
        place = {"namespace": meta["namespace"], "pod": meta["name"], "container": one["name"]}
        yield Child(" ".join(path), Kubernetes.name, {**context, **place}, up.get(one["name"], False))


def client(data: Mapping[str, Any]) -> list[str]:
    """Return the words that start kubectl for the cluster and the namespace that ``data`` names."""
    given = [f"--{key}={data[key]}" for key in ("context", "namespace") if data.get(key)]
    return ["env", "kubectl", *given]
