"""Containers of whole systems: LXC, systemd-nspawn, Incus and LXD; and other root directories."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from connmgr.errors import RuntimeUnreachable, ShellStartFailed
from connmgr.plugin import Child, Logged, Text
from connmgr_containers.runtime import (
    LOCAL_MACHINE,
    NO_SHELL,
    Host,
    HostSchema,
    Reason,
    Runtime,
    Switched,
    absolute,
    chosen,
    instance,
    leading_in,
    name,
    optional,
    reason,
    required,
)

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

STOP_SECONDS = 10
"""Seconds that a container has to stop by itself, as with Docker."""

# Programs that enter another root keep the environment of the host's user, most of which is wrong inside.
_AS_ROOT = ["HOME=/root", "USER=root", "LOGNAME=root", "SHELL=/bin/sh", f"PATH={_PATH}"]

# lxc-attach opens a terminal inside. Without this, both terminals would turn a newline into CR and LF.
_WITHOUT_ONLCR = 'stty -onlcr; exec "$@"'

# machined knows the machines that registered. Any other is found by the argv of its systemd-nspawn, which must belong
# to root: another user could start a process of that name to read what is typed.
_NSPAWN = r"""
leader=$(machinectl show --property=Leader --value -- "$1" 2>/dev/null)
for entry in ${leader:+none} /proc/[0-9]*; do
  [ -z "$leader" ] || break
  [ -O "$entry" ] && read -r comm 2>/dev/null <"$entry/comm" && [ "$comm" = systemd-nspawn ] || continue
  case $(readlink "$entry/exe") in */bin/systemd-nspawn|*"/bin/systemd-nspawn (deleted)") ;; *) continue;; esac
  words=" $(tr '\0' ' ' <"$entry/cmdline")"
  case $words in *" --machine=$1 "*|*" -M $1 "*|*" -M$1 "*|*" --machine $1 "*) ;; *) continue;; esac
  read -r leader _ <"/proc/${entry#/proc/}/task/${entry#/proc/}/children"
done
[ "$leader" ] || { echo "connmgr: no such machine runs" >&2; exit 125; }
shift
[ "/proc/$leader/ns/user" -ef /proc/self/ns/user ] || user=--user
exec nsenter --target "$leader" --mount --uts --ipc --net --pid $user --root --wd -- /bin/sh -c 'exec "$@"' sh "$@"
"""
_NEEDS_ROOT = "It takes root: run over a shellEnvironment that is elevated."

# An error of the client must not become an empty log.
_LAST_LINES = 'lines=$1; shift; log=$("$@") || exit; printf "%s\\n" "$log" | tail -n "$lines"'

# As with Docker, an instance that does not stop by itself is killed.
_STOP = f'"$@" --timeout={STOP_SECONDS} 2>/dev/null || exec "$@" --force'


class ContainerSchema(HostSchema):
    """The fields of a container."""

    containerName = required("The container's name.")


class Lxc(Switched):
    """A container of LXC."""

    name = "lxc"
    description = "A shell in a running container of LXC (lxc-attach)."
    schema = ContainerSchema
    example: ClassVar[Mapping[str, Any]] = {"host": LOCAL_MACHINE, "containerName": "web"}
    program = "lxc-attach"
    reasons = (
        reason(r"failed to get init pid|is not running|not running", ShellStartFailed, "{} is not running."),
        reason(r"permission denied|not permitted|insufficient privileges", RuntimeUnreachable, _NEEDS_ROOT),
        NO_SHELL,
    )

    def wrap(self, argv: Sequence[str], data: Mapping[str, Any], prompt: str, *, pty: bool) -> list[str]:
        inside = ["/bin/sh", "-c", _WITHOUT_ONLCR, "sh", *argv] if pty else argv
        return ["env", *_AS_ROOT, "lxc-attach", "--name", data["containerName"], "--", *inside]

    def switch(self, data: Mapping[str, Any], *, state: bool) -> list[str]:
        stop = ["lxc-stop", f"--timeout={STOP_SECONDS}"]
        return ["env", *(["lxc-start"] if state else stop), "--name", data["containerName"]]


class LxcHost(Host):
    """A machine with LXC."""

    name = "lxcHost"
    description = "The containers of LXC on a machine, found by a refresh."
    program = "lxc-ls"

    def listing(self, data: Mapping[str, Any]) -> Sequence[Sequence[str]]:
        return [["lxc-ls", "--fancy", "--fancy-format", "NAME,STATE"]]

    def parse(self, data: Mapping[str, Any], *listings: str) -> Iterable[Child]:
        for line in listings[0].splitlines()[1:]:
            container, state = line.split()
            yield Child(container, Lxc.name, {"containerName": container}, state == "RUNNING")


class Nspawn(Switched, Logged):
    """A machine of systemd-nspawn."""

    name = "nspawn"
    description = "A shell in a running container of systemd-nspawn; needs root on its host."
    schema = ContainerSchema
    example: ClassVar[Mapping[str, Any]] = {"host": LOCAL_MACHINE, "containerName": "debian"}
    program = "nsenter"
    reasons = (
        reason(r"no such machine runs", ShellStartFailed, "{} is not running: `machinectl list` lists running ones."),
        reason(r"permission denied|not permitted", RuntimeUnreachable, _NEEDS_ROOT),
        NO_SHELL,
    )

    def wrap(self, argv: Sequence[str], data: Mapping[str, Any], prompt: str, *, pty: bool) -> list[str]:
        inside = ["/bin/sh", "-c", _NSPAWN, "sh", data["containerName"], *argv]
        return ["env", *_AS_ROOT, "container=systemd-nspawn", *inside]

    def switch(self, data: Mapping[str, Any], *, state: bool) -> list[str]:
        return ["env", "machinectl", "start" if state else "poweroff", data["containerName"]]

    def log(self, data: Mapping[str, Any], *, follow: bool, lines: int | None) -> list[str]:
        words = [*(["--follow"] if follow else []), f"--lines={'all' if lines is None else lines}"]
        return ["env", "journalctl", "--no-pager", f"--machine={data['containerName']}", *words]


class NspawnHost(Host):
    """A machine with containers of systemd-nspawn."""

    name = "nspawnHost"
    description = "The containers of systemd-nspawn on a machine, found by a refresh."
    program = "machinectl"
    reasons = (
        reason(
            r"not been booted with systemd|failed to connect to bus",
            RuntimeUnreachable,
            "systemd-machined does not answer on that machine: it lists the containers of systemd-nspawn.",
        ),
    )

    def listing(self, data: Mapping[str, Any]) -> Sequence[Sequence[str]]:
        words = ["machinectl", "--no-pager", "--no-legend", "--full"]
        return [[*words, "list"], [*words, "list-images"]]

    def parse(self, data: Mapping[str, Any], *listings: str) -> Iterable[Child]:
        running, images = ({line.split()[0] for line in text.splitlines() if line} for text in listings)
        for machine in sorted((running | images) - {".host"}):
            yield Child(machine, Nspawn.name, {"containerName": machine}, machine in running)


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

    def parse(self, data: Mapping[str, Any], *listings: str) -> Iterable[Child]:
        for each in json.loads(listings[0]):
            data_of_it = {"containerName": each["name"], **chosen(data, "project")}
            yield Child(each["name"], self.inner.name, data_of_it, each["status"] == "Running")


class LxdHost(IncusHost):
    """A machine with LXD."""

    name = "lxdHost"
    description = "The instances of LXD on a machine, found by a refresh."
    program = "lxc"
    inner = Lxd


class ChrootSchema(HostSchema):
    """The fields of another root directory."""

    directory = Text(required=True, validate=absolute, metadata={"description": "The root directory, absolute."})
    user = Text(
        allow_none=True,
        validate=name,
        metadata={"description": "Whom to run as: a user of that system; root otherwise."},
    )


class Chroot(Runtime):
    """Another root directory."""

    name = "chroot"
    description = "A shell in another root directory; needs root on the machine that has it."
    schema = ChrootSchema
    example: ClassVar[Mapping[str, Any]] = {"host": LOCAL_MACHINE, "directory": "/srv/jail", "user": "build"}
    program = "chroot"
    reasons = (
        reason(r"cannot change root directory to .{0,300}: no such", ShellStartFailed, "There is no {}."),
        reason(r"cannot change root directory to .{0,300}: oper", RuntimeUnreachable, _NEEDS_ROOT),
        reason(r"invalid user", ShellStartFailed, "There is no such `user` in {}."),
        NO_SHELL,
    )

    def place(self, data: Mapping[str, Any]) -> str:
        return f"directory {data['directory']}"

    def wrap(self, argv: Sequence[str], data: Mapping[str, Any], prompt: str, *, pty: bool) -> list[str]:
        user = [f"--userspec={data['user']}"] if data.get("user") else []
        # The host's login shell may not exist inside.
        return ["env", "SHELL=/bin/sh", f"PATH={_PATH}", "chroot", *user, data["directory"], *argv]
