"""Connection types for systems inside of others: containers, pods, and other root directories."""

from __future__ import annotations

from collections.abc import Sequence

from connmgr.plugin import AnyConnectionType, hookimpl
from connmgr_containers.engines import Docker, DockerHost, Podman, PodmanHost
from connmgr_containers.instances import Incus, IncusHost, Lxd, LxdHost
from connmgr_containers.kubernetes import Kubernetes, KubernetesCluster
from connmgr_containers.systems import Chroot, Lxc, LxcHost, Nspawn, NspawnHost


@hookimpl
def connmgr_connection_types() -> Sequence[AnyConnectionType]:
    inside = [Docker(), Podman(), Kubernetes(), Lxc(), Incus(), Lxd(), Nspawn(), Chroot()]
    hosts = [DockerHost(), PodmanHost(), KubernetesCluster(), LxcHost(), IncusHost(), LxdHost(), NspawnHost()]
    return [*inside, *hosts]
