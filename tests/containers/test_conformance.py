"""The types of containers against the public suite, on a machine that has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from connmgr.plugin import Pty, Transport, Wrapper
from connmgr.testing import SchemaConformance, WrapperConformance
from connmgr.testing.conformance import Start, read_until
from connmgr_containers import (
    Chroot,
    Docker,
    DockerHost,
    Incus,
    IncusHost,
    Kubernetes,
    KubernetesCluster,
    Lxc,
    LxcHost,
    Lxd,
    LxdHost,
    Nspawn,
    NspawnHost,
    Podman,
    PodmanHost,
)
from tests.containers.cluster import CONTEXT
from tests.containers.host import ON, ContainerHost
from tests.plugins.places import LOCAL, Places


class InsideConformance(WrapperConformance):
    """The suite in the container ``box``; subclasses have the fixture ``kind``."""

    @pytest.fixture
    def data(self, container_host: ContainerHost) -> Mapping[str, Any]:
        return {"host": ON, "containerName": container_host.name}

    @pytest.fixture
    def via(self, container_host: ContainerHost, ways: Places, kind: Wrapper) -> Iterator[Transport]:
        container_host.has(kind.name)
        with ways.reach(LOCAL, container_host.machine.root) as transport:
            yield transport


@pytest.mark.needs("machine", "busybox", "podman", "sshd", "sudo")
class TestPodman(InsideConformance):
    """The suite by sudo over ssh; test_over_ssh.py has the other types, Docker's suite the same containers here."""

    @pytest.fixture
    def kind(self) -> Podman:
        return Podman()

    @pytest.fixture
    def via(self, container_host: ContainerHost, sudo_over_ssh: Transport) -> Transport:  # type: ignore[override]
        container_host.has("podman")
        return sudo_over_ssh


@pytest.mark.needs("machine", "busybox", "podman", "docker")
class TestDocker(InsideConformance):
    @pytest.fixture
    def kind(self) -> Docker:
        return Docker()


@pytest.mark.needs("machine", "busybox", "lxc")
class TestLxc(InsideConformance):
    @pytest.fixture
    def kind(self) -> Lxc:
        return Lxc()


@pytest.mark.needs("machine", "busybox", "nspawn", "cgroups")
class TestNspawn(InsideConformance):
    @pytest.fixture
    def kind(self) -> Nspawn:
        return Nspawn()


@pytest.mark.needs("machine", "busybox")
class TestChroot(InsideConformance):
    @pytest.fixture
    def kind(self) -> Chroot:
        return Chroot()

    @pytest.fixture
    def data(self, container_host: ContainerHost) -> Mapping[str, Any]:
        return {"host": ON, "directory": container_host.jail}


@pytest.mark.needs("machine", "busybox", "kubectl")
class TestKubernetes(InsideConformance):
    @pytest.fixture
    def kind(self) -> Kubernetes:
        return Kubernetes()

    @pytest.fixture
    def data(self, container_host: ContainerHost) -> Mapping[str, Any]:
        return {"host": ON, "context": CONTEXT, "namespace": "shop", "pod": "web", "container": "nginx"}


@pytest.mark.needs("machine", "busybox", "lxd")
class TestLxd(InsideConformance):
    @pytest.fixture
    def kind(self) -> Lxd:
        return Lxd()

    def test_a_terminal_is_given_where_one_is_asked_for(self, start: Start) -> None:
        # lxc loses the last output of one in sixty programs on a terminal, so this one stays.
        channel = start("test -t 0 && test -t 1 && echo terminal; echo err >&2; sleep 120", pty=Pty())
        assert channel.merged
        assert read_until(channel, b"err").split() == [b"terminal", b"err"]


OTHERS = [
    Incus(),
    Lxd(),
    DockerHost(),
    PodmanHost(),
    KubernetesCluster(),
    LxcHost(),
    IncusHost(),
    LxdHost(),
    NspawnHost(),
]


@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: kind.name)
class TestOthers(SchemaConformance):
    """Types of hosts, and types whose daemon no test can start."""
