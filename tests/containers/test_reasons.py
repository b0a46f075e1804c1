"""Errors of unreachable runtimes and containers name which one, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from connmgr.errors import NoShellInside, OperationError, RuntimeUnreachable, ShellStartFailed
from connmgr.plugin import Transport, ValidationError, Wrapper
from connmgr.testing import connect, run
from connmgr_containers import Chroot, Docker, Incus, Kubernetes, Lxc, Lxd, Nspawn, Podman
from tests.containers.host import ON, ContainerHost
from tests.plugins.places import LOCAL, Places

pytestmark = pytest.mark.needs("machine", "busybox")


@pytest.fixture
def local(container_host: ContainerHost, ways: Places) -> Iterator[Transport]:
    """The machine's root."""
    with ways.reach(LOCAL, container_host.machine.root) as transport:
        yield transport


def refused(kind: Wrapper, via: Transport, **data: Any) -> OperationError:
    """Return the error of a program in ``data``."""
    with pytest.raises(OperationError) as refusal:
        run(connect(kind, {"host": ON, **data}, via), ["true"])
    return refusal.value


ENGINES = [
    pytest.param(Podman(), marks=pytest.mark.needs("podman"), id="podman"),
    pytest.param(Docker(), marks=pytest.mark.needs("podman", "docker"), id="docker"),
]


@pytest.mark.parametrize("kind", ENGINES)
def test_an_engine_says_what_is_wrong_with_a_container(
    container_host: ContainerHost, local: Transport, kind: Wrapper
) -> None:
    container_host.has(kind.name)
    error = refused(kind, local, containerName="nobody")
    assert (type(error), error.message) == (ShellStartFailed, "There is no container nobody on that host.")
    error = refused(kind, local, containerName="bare")
    assert isinstance(error, NoShellInside)
    assert error.message.startswith("There is no /bin/sh in container bare")
    error = refused(kind, local, containerName="idle")
    assert "No program can run in container idle: it is stopped or paused." in error.message
    error = refused(kind, local, containerName=container_host.name, workdir="/nowhere")
    assert error.message == f"There is no such `workdir` in container {container_host.name}."


@pytest.mark.needs("podman")
def test_a_user_that_an_image_does_not_have(container_host: ContainerHost, local: Transport) -> None:
    container_host.has("podman")
    error = refused(Podman(), local, containerName=container_host.name, user="nobody")
    assert error.message == f"There is no such `user` in container {container_host.name}."
    inmate = connect(Podman(), {"host": ON, "containerName": container_host.name, "user": "inmate"}, local)
    assert run(inmate, ["id", "-un"]).stdout == b"inmate\n"


@pytest.mark.needs("podman", "docker")
def test_docker_without_a_daemon_and_a_context_that_is_unknown(local: Transport) -> None:
    error = refused(Docker(), local, containerName="web", context="nowhere")
    assert (type(error), error.code) == (RuntimeUnreachable, "runtime_unreachable")
    assert "no such `context`" in error.message


@pytest.mark.parametrize(
    "printed",
    [
        'unable to resolve docker endpoint: context "nowhere" does not exist',
        'Failed to initialize: unable to resolve docker endpoint: context "nowhere": context not found: '
        "open meta.json: no such file or directory",
    ],
    ids=["Docker 20", "Docker 28"],
)
def test_docker_of_any_age_says_that_a_context_is_unknown(printed: str) -> None:
    first = next(one for one in Docker.reasons if one.pattern.search(printed))
    assert "no such `context`" in first.message


@pytest.mark.needs("kubectl")
def test_a_cluster_says_what_is_wrong_with_a_pod(container_host: ContainerHost, local: Transport) -> None:
    container_host.has("kubernetes")
    assert refused(Kubernetes(), local, namespace="shop", pod="gone").message == "There is no pod gone."
    error = refused(Kubernetes(), local, namespace="shop", pod="web", container="sidecar")
    assert error.message == "There is no container sidecar of pod web."
    assert "it is not running" in refused(Kubernetes(), local, namespace="ops", pod="backup").message
    assert "no such `context`" in refused(Kubernetes(), local, context="nowhere", pod="web").message


@pytest.mark.needs("lxc")
def test_lxc_says_that_a_container_does_not_run(container_host: ContainerHost, local: Transport) -> None:
    container_host.has("lxc")
    assert refused(Lxc(), local, containerName=container_host.idle).message.endswith("is not running.")


@pytest.mark.needs("lxd")
def test_lxd_says_what_is_wrong_with_an_instance(container_host: ContainerHost, local: Transport) -> None:
    container_host.has("lxd")
    assert refused(Lxd(), local, containerName="nobody").message == "There is no instance nobody in that project."
    assert "is not running" in refused(Lxd(), local, containerName="idle").message


@pytest.mark.needs("nspawn")
def test_nspawn_says_that_a_machine_does_not_run(local: Transport) -> None:
    assert refused(Nspawn(), local, containerName="idle").message.startswith("container idle is not running")


def test_a_root_directory_that_is_not_there(local: Transport) -> None:
    assert refused(Chroot(), local, directory="/nowhere").message == "There is no directory /nowhere."
    error = refused(Chroot(), local, directory="/run/bare")
    assert isinstance(error, NoShellInside), error.message


def test_the_error_names_the_missing_program(local: Transport) -> None:
    error = refused(Incus(), local, containerName="web")
    assert (type(error), error.message) == (
        RuntimeUnreachable,
        "incus is not installed on that machine, or is not in the PATH of its user.",
    )


@pytest.mark.parametrize("name", ["--privileged", "", "a b", "-t", "$(id)", "../x"])
def test_a_name_that_would_be_another_word_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        Podman().schema().load({"host": ON, "containerName": name})


@pytest.mark.needs("nspawn")
def test_a_process_that_calls_itself_nspawn_is_not_entered(local: Transport, container_host: ContainerHost) -> None:
    machine = container_host.machine
    machine.run("sh", "-c", "cp /bin/sh /run/systemd-nspawn")
    words = "nohup /run/systemd-nspawn -c 'sleep 100; :' --machine=decoy >/run/decoy.log 2>&1 </dev/null & echo $!"
    decoy = machine.run("sh", "-c", words).strip()
    try:
        machine.run("sh", "-c", f'until [ "$(cat /proc/{decoy}/task/{decoy}/children)" ]; do sleep 0.1; done')
        error = refused(Nspawn(), local, containerName="decoy")
        assert "is not running" in error.message
    finally:
        machine.run("sh", "-c", f"kill {decoy} $(cat /proc/{decoy}/task/{decoy}/children)")
