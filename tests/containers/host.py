"""A test machine with containers of every kind, each started at its first use."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from pathlib import Path

from tests.api.wire import LOCAL
from tests.components import program
from tests.containers.cluster import Cluster, pod
from tests.deadlines import eventually_equal
from tests.plugins.machine import Machine

MOST_PROCESSES = 32768
APPLETS_LEFT_OUT = {"busybox"}
NAME = "A small box"

# The tests need neither writable cgroups nor raised limits. The limit of processes counts those of all tests of an
# ordinary user.
_CONTAINERS_CONF = """
[containers]
cgroups = "disabled"
netns = "none"
log_driver = "none"
default_ulimits = ["nofile=1024:1024", "nproc={processes}:{processes}"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
runtime = "crun"
"""
_STORAGE_CONF = """
[storage]
driver = "vfs"
graphroot = "/run/containers/graph"
runroot = "/run/containers/run"
"""
_LXC_CONF = """
lxc.rootfs.path = dir:{root}
lxc.uts.name = box
lxc.net.0.type = none
lxc.init.cmd = /bin/sleep 100000
lxc.signal.halt = SIGKILL
lxc.mount.auto = proc:rw
"""
_METADATA = "architecture: x86_64\ncreation_date: 1\n"
_IMAGE = """
set -e
mkdir -p /run/image/rootfs
tar -C {root} --exclude='./dev/*' --exclude='./proc/*' -c . | tar -C /run/image/rootfs -x
mkdir -p /run/image/rootfs/sbin
printf '#!/bin/sh\\nexec sleep 100000\\n' >/run/image/rootfs/sbin/init
chmod +x /run/image/rootfs/sbin/init
tar -C /run/image -cf /run/image.tar metadata.yaml rootfs
{client} storage create default dir
{client} profile device add default root disk path=/ pool=default
{client} image import /run/image.tar --alias box
{client} init box {name} --config security.privileged=true </dev/null
{client} init box idle --config security.privileged=true --config 'raw.lxc=lxc.signal.halt=SIGKILL' </dev/null
"""
_SERVE = "nohup podman system service --time 0 unix:///run/docker.sock >/dev/null 2>&1 </dev/null &"
_NSPAWN = (
    "nohup systemd-nspawn --register=no --keep-unit --quiet --machine={name} --directory={root} sleep 100000 "
    ">/run/nspawn.log 2>&1 </dev/null &"
)

ON = LOCAL
"""The host of containers on the machine of the daemon."""


class ContainerHost:
    """The machine and its containers.

    ``name`` is that of its containers, ``idle`` that of one of LXC that does not run: LXC's sockets have names that all
    machines of the tests share. ``root`` is the root directory of its systems, ``jail`` the same with a ``/proc``.
    """

    def __init__(self) -> None:
        self.machine = Machine(own_processes=True)
        self.name = f"box{os.getpid()}"
        self.idle = f"idle{os.getpid()}"
        self.root, self.jail = "/run/box", "/run/jail"
        self.cluster: Cluster | None = None
        self._started: set[str] = set()
        # The container runtime gets a plain hierarchy, independent of the system's cgroups.
        # Root of a user namespace may mount cgroups only from a cgroup namespace of its own.
        self.machine.run("unshare", "--cgroup", "mount", "-t", "cgroup2", "cgroup2", "/sys/fs/cgroup")
        # Locks and caches there belong to the system's root, which may be another user.
        for directory in ("/dev/shm", "/var/cache"):
            self.machine.run("mount", "-t", "tmpfs", "tmpfs", directory)
        _, most = resource.getrlimit(resource.RLIMIT_NPROC)
        processes = MOST_PROCESSES if most == resource.RLIM_INFINITY else min(most, MOST_PROCESSES)
        settings = _CONTAINERS_CONF.format(processes=processes)
        self.machine.write("/etc/containers/containers.conf", settings)
        self.machine.write("/etc/containers/storage.conf", _STORAGE_CONF)
        make_root(self.machine.path(self.root))
        self.machine.run("mkdir", self.jail)
        # Root of a user namespace may bind-mount a device file but not create one.
        self.machine.run("mount", "--bind", os.devnull, f"{self.root}/dev/null")
        self.machine.run("mount", "--rbind", self.root, self.jail)
        self.machine.run("mount", "-t", "proc", "proc", f"{self.jail}/proc")
        bare = self.machine.path("/run/bare")
        copy_program(bare, "/bin/sleep", "/bin/echo")

    def has(self, kind: str) -> None:
        """Start the container for tests of a kind of connection, once."""
        if kind not in self._started:
            getattr(self, f"_start_{kind}")()
            self._started.add(kind)

    def _start_chroot(self) -> None:
        """Do nothing: a chroot needs only its root directory."""

    def _start_podman(self) -> None:
        for image, path in (("box", self.root), ("bare", "/run/bare")):
            # A chroot needs devices; an image does not.
            tar = f"tar -C {path} --exclude=./dev/* --exclude=./proc/* -c . | podman import - {image}:1"
            self.machine.run("/bin/sh", "-c", tar)
        self.run_container(self.name, "box:1", "sleep", "100000")
        self.run_container("bare", "bare:1", "/bin/sleep", "100000")
        self.machine.run("podman", "create", "--stop-timeout=0", "--name", "idle", "box:1", "sleep", "100000")

    def run_container(self, name: str, image: str, *argv: str) -> None:
        """Start a container."""
        self.machine.run("podman", "run", "--detach", "--stop-timeout=0", "--name", name, image, *argv)

    def _start_docker(self) -> None:
        self.has("podman")
        self.machine.run("/bin/sh", "-c", _SERVE)
        self._await("test -S /run/docker.sock")

    def _start_lxc(self) -> None:
        self.machine.run("mount", "-t", "tmpfs", "tmpfs", "/var/lib/lxc")
        self.machine.write(f"/var/lib/lxc/{self.name}/config", _LXC_CONF.format(root=self.root))
        self.machine.write(f"/var/lib/lxc/{self.idle}/config", _LXC_CONF.format(root=self.root))
        self.machine.run("lxc-start", "--name", self.name)

    def _start_lxd(self) -> None:
        self._start_instances("lxd", "lxc")

    def _start_incus(self) -> None:
        self._start_instances("incusd", "incus")

    def _start_instances(self, daemon: str, client: str) -> None:
        for directory in ("/var/lib/lxd", "/var/lib/incus", "/var/log/lxd", "/var/log/incus"):
            self.machine.run("/bin/sh", "-c", f"! test -d {directory} || mount -t tmpfs -o mode=0711 tmpfs {directory}")
        # No requests to other machines, which the daemon would send by itself.
        alone = "HTTPS_PROXY=http://127.0.0.1:1 HTTP_PROXY=http://127.0.0.1:1"
        self.machine.run("/bin/sh", "-c", f"{alone} nohup {daemon} --group root >/run/{daemon}.log 2>&1 </dev/null &")
        self.machine.run(daemon, "waitready", "--timeout=20")
        self.machine.write("/run/image/metadata.yaml", _METADATA)
        self.machine.run("/bin/sh", "-c", _IMAGE.format(root=self.root, client=client, name=self.name))
        self.machine.run(client, "start", self.name)

    def _start_nspawn(self) -> None:
        self.machine.run("/bin/sh", "-c", _NSPAWN.format(root=self.root, name=self.name))
        self._await("grep -qs sleep /proc/[0-9]*/comm && grep -lqs 'container=systemd-nspawn' /proc/[0-9]*/environ")

    def _start_kubernetes(self) -> None:
        alone = ["env", "--ignore-environment", "PATH=/usr/sbin:/bin", "HOME=/root", "chroot", self.jail]
        words = [*self.machine.inside(), *alone]
        pods = [pod("shop", "web", "nginx", "log"), pod("ops", "backup", "main", running=False)]
        self.cluster = Cluster(pods, words)
        self.machine.write("/root/.kube/config", self.cluster.configuration())

    def _await(self, condition: str) -> None:
        words = [*self.machine.inside(), "/bin/sh", "-c", condition]
        eventually_equal(lambda: subprocess.run(words, timeout=20, check=False).returncode, 0, condition)

    def close(self) -> None:
        """End the machine and everything on it."""
        self.machine.close()
        if self.cluster:
            self.cluster.close()


def make_root(root: Path) -> None:
    """Create a root directory: busybox with its links, users, an empty ``/dev/null``, and one file."""
    busybox = copy_program(root)
    listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, timeout=20, check=True).stdout
    for applet in set(listed.split()) - APPLETS_LEFT_OUT:
        target = root / "bin" / applet
        if not target.exists():
            target.symlink_to("busybox")
    for directory in ("dev", "etc", "proc", "root", "run", "srv", "sys", "tmp", "usr", "var"):
        (root / directory).mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)
    (root / "dev" / "null").touch()
    (root / "etc" / "os-release").write_text(f'PRETTY_NAME="{NAME}"\n')
    (root / "etc" / "passwd").write_text("root:x:0:0::/root:/bin/sh\ninmate:x:4242:4242::/tmp:/bin/sh\n")
    (root / "etc" / "group").write_text("root:x:0:\ninmate:x:4242:\n")
    (root / "only-here").write_text("seen from within\n")
    root.chmod(0o755)


def copy_program(root: Path, *names: str) -> str:
    """Copy busybox and its libraries below ``root``, as ``names`` or into ``bin``; return busybox's path here."""
    busybox = program("busybox")
    assert busybox
    listed = subprocess.run(["ldd", busybox], capture_output=True, text=True, timeout=20, check=False).stdout
    libraries = [word for word in listed.split() if word.startswith("/") and Path(word).exists()]
    copies = dict.fromkeys(names or ("/bin/busybox",), busybox) | {path: path for path in libraries}
    for target, source in copies.items():
        place = root / target.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, place)
    return busybox
