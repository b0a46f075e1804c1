"""Containers are started and stopped over the connection of their host."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connmgr.errors import OperationError, RuntimeUnreachable
from connmgr.plugin import Toggled, Transport
from connmgr.testing import connect, run
from connmgr_containers import Docker, Incus, Lxc, Lxd, Podman
from tests.containers.host import ContainerHost
from tests.deadlines import DEADLINE_SECONDS
from tests.plugins.places import LOCAL, Places

ON = "f0ec68aa-63f5-405c-b178-9a4454556d6b"

pytestmark = pytest.mark.needs("machine", "busybox")


@pytest.fixture
def local(container_host: ContainerHost, ways: Places) -> Iterator[Transport]:
    """The machine's root."""
    with ways.reach(LOCAL, container_host.machine.root) as transport:
        yield transport


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(Podman(), marks=pytest.mark.needs("podman"), id="podman"),
        pytest.param(Docker(), marks=pytest.mark.needs("podman", "docker"), id="docker"),
        pytest.param(Lxd(), marks=pytest.mark.needs("lxd"), id="lxd"),
        pytest.param(Lxc(), marks=pytest.mark.needs("lxc"), id="lxc"),
    ],
)
def test_a_container_is_started_and_stopped(
    container_host: ContainerHost, local: Transport, kind: Podman | Lxc
) -> None:
    container_host.has(kind.name)
    name = container_host.idle if isinstance(kind, Lxc) else "idle"
    data = kind.schema().load({"host": ON, "containerName": name})
    transport = connect(kind, data, local)
    for _ in range(2):
        kind.toggle(local, data, True, timeout=DEADLINE_SECONDS)
        assert run(transport, ["cat", "/only-here"]).stdout == b"seen from within\n"
    for _ in range(2):
        kind.toggle(local, data, False, timeout=DEADLINE_SECONDS)
        with pytest.raises(OperationError, match=r"running|stopped"):
            run(transport, ["true"])


def test_what_cannot_be_started_says_why(local: Transport) -> None:
    kind = Incus()
    assert isinstance(kind, Toggled)
    with pytest.raises(RuntimeUnreachable, match="incus is not installed"):
        kind.toggle(local, kind.schema().load({"host": ON, "containerName": "web"}), True, timeout=DEADLINE_SECONDS)
