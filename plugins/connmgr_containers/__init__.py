"""Connection types for systems inside of others: containers, pods, and other root directories."""

from __future__ import annotations

from collections.abc import Sequence

from connmgr.plugin import AnyConnectionType, hookimpl
from connmgr_containers.containers import Docker, DockerHost, Kubernetes, KubernetesCluster, Podman, PodmanHost
from connmgr_containers.systems import (
    Chroot,
    Incus,
    IncusHost,
    Lxc,
    LxcHost,
    Lxd,
    LxdHost,
    Nspawn,
    NspawnHost,
)


@hookimpl
def connmgr_connection_types() -> Sequence[AnyConnectionType]:
    inside = [Docker(), Podman(), Kubernetes(), Lxc(), Incus(), Lxd(), Nspawn(), Chroot()]
    hosts = [DockerHost(), PodmanHost(), KubernetesCluster(), LxcHost(), IncusHost(), LxdHost(), NspawnHost()]
    return [*inside, *hosts]
