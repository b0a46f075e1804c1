"""A refresh of a host over SSH stores the host's containers below it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from connmgr.client import ClientError, Refreshed
from tests.cli.program import CommandLine
from tests.containers.host import NAME, ContainerHost
from tests.daemon import Daemon
from tests.plugins.places import Places, ssh_fields
from tests.rights.wire import create

pytestmark = pytest.mark.needs("machine", "busybox", "sshd")

Add = Callable[..., str]

UNCHANGED = Refreshed(added=[], gone=[], skipped=[])


@pytest.fixture
def add(daemon: Daemon) -> Any:
    """A function that stores a connection, which is removed after the test with all connections over it."""
    added: list[str] = []

    def add(name: str, **data: Any) -> str:
        added.append(daemon.client.connection.add(name, data))
        return added[-1]

    yield add
    daemon.client.connection.remove(added[:1])


@pytest.fixture
def host(add: Add, ways: Places) -> str:
    """A connection to the machine with containers, over ssh as root."""
    return add("machine", type="ssh", **ssh_fields(ways.sshd, "root"))


def states(daemon: Daemon, ids: list[str]) -> dict[str, Any]:
    """Return the states of connections by name."""
    infos: Any = daemon.client.post("/connection/info", connections=ids)
    return {info["name"][-1]: info["state"] for info in infos["infos"]}


@pytest.mark.needs("podman")
def test_containers_come_and_go_below_their_host(
    container_host: ContainerHost, daemon: Daemon, add: Add, host: str
) -> None:
    container_host.has("podman")
    holder = add("podman", type="podmanHost", host=host)
    found = daemon.client.connection.refresh(holder)
    added = found.added
    infos: Any = daemon.client.post("/connection/info", connections=added)
    assert sorted(info["name"] for info in infos["infos"]) == [
        ["machine", "podman", "bare"],
        ["machine", "podman", container_host.name],
        ["machine", "podman", "idle"],
    ]
    assert found.gone == []
    assert states(daemon, added) == {
        container_host.name: {"running": True},
        "bare": {"running": True},
        "idle": {"running": False},
    }

    container_host.run_container("guest", "box:1", "sleep", "100000")
    [guest] = daemon.client.connection.refresh(holder).added
    daemon.client.shell.start(guest)
    assert daemon.client.shell.exec(guest, "cat /only-here").stdout == "seen from within"
    daemon.client.connection.refresh(guest)
    assert states(daemon, [guest])["guest"]["osName"] == NAME
    container_host.machine.run("podman", "stop", "--time", "0", "guest")
    assert daemon.client.connection.refresh(holder) == UNCHANGED
    assert states(daemon, [guest])["guest"]["running"] is False
    listed = CommandLine(daemon)("ls", "machine/podman/*").output
    assert re.findall(r"^default/machine/podman/(\w+) .* (running|stopped) ", listed, re.MULTILINE) == [
        ("bare", "running"),
        (container_host.name, "running"),
        ("guest", "stopped"),
        ("idle", "stopped"),
    ]

    container_host.machine.run("podman", "rm", "guest")
    assert daemon.client.connection.refresh(holder) == Refreshed(added=[], gone=[guest], skipped=[])
    assert states(daemon, [guest])["guest"]["gone"] is True
    assert daemon.client.connection.refresh(holder) == UNCHANGED, "it is told once"

    container_host.run_container("guest", "box:1", "sleep", "100000")
    assert daemon.client.connection.refresh(holder) == UNCHANGED, "the connection to it is there still"
    assert "gone" not in states(daemon, [guest])["guest"]
    container_host.machine.run("podman", "rm", "--force", "--time", "0", "guest")


@pytest.mark.parametrize(
    ("holder", "inner"),
    [
        pytest.param("dockerHost", "docker", marks=pytest.mark.needs("podman", "docker")),
        pytest.param("lxcHost", "lxc", marks=pytest.mark.needs("lxc")),
        pytest.param("lxdHost", "lxd", marks=pytest.mark.needs("lxd")),
        pytest.param("kubernetesCluster", "kubernetes", marks=pytest.mark.needs("kubectl")),
    ],
)
def test_each_runtime_lists_what_it_has(
    container_host: ContainerHost, daemon: Daemon, add: Add, host: str, holder: str, inner: str
) -> None:
    container_host.has(inner)
    added = daemon.client.connection.refresh(add("holder", type=holder, host=host)).added
    found = states(daemon, added)
    if inner == "kubernetes":
        assert found == {
            "shop web nginx": {"running": True},
            "shop web log": {"running": True},
            "ops backup": {"running": False},
        }
    else:
        assert found[container_host.name] == {"running": True}
    if inner == "lxc":
        assert found[container_host.idle] == {"running": False}
    infos: Any = daemon.client.post("/connection/info", connections=added)
    assert {info["type"] for info in infos["infos"]} == {inner}


def test_the_answer_names_the_missing_programs(daemon: Daemon, add: Add, host: str) -> None:
    holder = add("instances", type="incusHost", host=host)
    with pytest.raises(ClientError, match="incus is not installed on that machine") as refusal:
        daemon.client.connection.refresh(holder)
    assert refusal.value.code == "runtime_unreachable"
    assert states(daemon, [holder])["instances"]["error"] == "runtime_unreachable"


@pytest.mark.needs("nspawn")
def test_a_host_without_its_daemon_says_which(daemon: Daemon, add: Add, host: str) -> None:
    with pytest.raises(ClientError, match="systemd-machined does not answer on that machine"):
        daemon.client.connection.refresh(add("machines", type="nspawnHost", host=host))


@pytest.mark.needs("podman")
def test_a_token_gets_what_it_may_add(container_host: ContainerHost, daemon: Daemon, add: Add, host: str) -> None:
    container_host.has("podman")
    holder = add("podman", type="podmanHost", host=host)
    bounded = create(daemon, "connection.write", "shell.argv", rules=[{"effect": "allow", "argv": ["uptime"]}])
    assert bounded.refused("/connection/refresh", connection=holder) == "scope_denied"
    elsewhere = create(daemon, "connection.write", "shell.any", connections=["machine/podman"])
    assert elsewhere.refused("/connection/refresh", connection=holder) == "scope_denied"
    assert daemon.client.connection.query("machine/podman/*") == [], "nothing was added for either"
    below = create(daemon, "connection.read", "connection.write", "shell.any", connections=["machine/podman{,/**}"])
    assert len(below.ok("/connection/refresh", connection=holder)["added"]) == 3
