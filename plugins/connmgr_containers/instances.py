"""Instances of Incus and LXD: containers of whole systems and virtual machines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from connmgr.errors import RuntimeUnreachable, ShellStartFailed
from connmgr.plugin import Child, Logged, Text
from connmgr_containers.fields import LOCAL_MACHINE, HostSchema, instance, optional
from connmgr_containers.hosts import Host, chosen
from connmgr_containers.runtime import NO_SHELL, Reason, Switched, leading_in, reason
from connmgr_containers.systems import STOP_SECONDS, ContainerSchema

# An error of the client must not become an empty log.
_LAST_LINES = 'lines=$1; shift; log=$("$@") || exit; printf "%s\\n" "$log" | tail -n "$lines"'

# As with Docker, an instance that does not stop by itself is killed.
_STOP = f'"$@" --timeout={STOP_SECONDS} 2>/dev/null || exec "$@" --force'


class InstanceSchema(ContainerSchema):
    """The fields of an instance."""

    containerName = Text(required=True, validate=instance, metadata={"description": "The container's name."})
    project = optional("The project that it belongs to; the client's default otherwise.")


class IncusHostSchema(HostSchema):
    """The fields of a host of instances."""

    project = optional("The project whose instances are meant; the client's default otherwise.")


class Incus(Switched, Logged):
    """An instance of Incus."""

    name = "incus"
    description = "A shell in a running container or virtual machine of Incus."
    schema = InstanceSchema
    example: ClassVar[Mapping[str, Any]] = {"host": LOCAL_MACHINE, "containerName": "web", "project": "default"}
    program = "incus"
    reasons: Sequence[Reason] = (
        reason(r"not running", ShellStartFailed, "{} is not running: start it first."),
        reason(r"instance not found|project not found|not found$", ShellStartFailed, "There is no {} in that project."),
        reason(
            r"permission denied|unix\.socket|connect: |server doesn't appear to be",
            RuntimeUnreachable,
            "Its daemon does not answer that user on that machine: start it, or add the user to its group.",
        ),
        NO_SHELL,
    )

    def place(self, data: Mapping[str, Any]) -> str:
        return f"instance {data['containerName']}"

    def wrap(self, argv: Sequence[str], data: Mapping[str, Any], prompt: str, *, pty: bool) -> list[str]:
        mode = "--force-interactive" if pty else "--force-noninteractive"
        entering = [*self.client(data), "exec", mode, data["containerName"], "--"]
        return leading_in(entering, argv, pty=pty)

    def switch(self, data: Mapping[str, Any], *, state: bool) -> list[str]:
        if state:
            return [*self.client(data), "start", data["containerName"]]
        return ["/bin/sh", "-c", _STOP, "sh", *self.client(data), "stop", data["containerName"]]

    def log(self, data: Mapping[str, Any], *, follow: bool, lines: int | None) -> list[str] | None:
        shown = [*self.client(data), "console", data["containerName"], "--show-log"]
        if follow:
            return None
        return shown if lines is None else ["/bin/sh", "-c", _LAST_LINES, "sh", str(lines), *shown]

    @classmethod
    def client(cls, data: Mapping[str, Any]) -> list[str]:
        """Return the words that start the program for the project that ``data`` names."""
        return ["env", cls.program, *([f"--project={data['project']}"] if data.get("project") else [])]


class Lxd(Incus):
    """An instance of LXD."""

    name = "lxd"
    description = "A shell in a running container or virtual machine of LXD."
    program = "lxc"


class IncusHost(Host):
    """A machine with Incus."""

    name = "incusHost"
    description = "The instances of Incus on a machine, found by a refresh."
    schema = IncusHostSchema
    program = "incus"
    reasons = Incus.reasons
    inner: ClassVar[type[Incus]] = Incus

    def listing(self, data: Mapping[str, Any]) -> Sequence[Sequence[str]]:
        return [[*self.inner.client(data), "list", "--format=json"]]

    def found(self, data: Mapping[str, Any], *listings: str) -> Iterable[Child]:
        for each in json.loads(listings[0]):
            given = {"containerName": each["name"], **chosen(data, "project")}
            yield Child(each["name"], self.inner.name, given, each["status"] == "Running")


class LxdHost(IncusHost):
    """A machine with LXD."""

    name = "lxdHost"
    description = "The instances of LXD on a machine, found by a refresh."
    program = "lxc"
    inner = Lxd
