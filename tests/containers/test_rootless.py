"""Containers of an ordinary user, which only this user's podman lists."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connmgr.errors import ShellStartFailed
from connmgr.plugin import Transport
from connmgr.testing import connect, run
from connmgr_containers import Podman, PodmanHost
from tests.containers.host import ON, ContainerHost
from tests.deadlines import DEADLINE_SECONDS
from tests.plugins.places import LOCAL, Places

DATA = {"host": ON, "containerName": "mine"}
RUNTIME = "/run/user/of-tests"
STORAGE = '[storage]\ndriver = "vfs"\n'
# Above the uids of the machine's users, and mapped even in a user namespace of 65,536 ids.
LEAST_ID, IDS = 56_000, 9_000

pytestmark = pytest.mark.needs("machine", "busybox", "podman", "newuidmap")


@pytest.fixture
def owner(container_host: ContainerHost, ways: Places) -> Iterator[Transport]:
    """A user of the machine who has started a container."""
    machine = container_host.machine
    user = machine.add_user("/bin/sh")
    for file in ("/etc/subuid", "/etc/subgid"):
        machine.write(file, f"{user.name}:{LEAST_ID}:{IDS}\n")
    machine.run("install", "-d", "-o", user.name, "-m", "700", RUNTIME)
    # A file that all users read names root's storage.
    machine.write("/run/storage-of-tests.conf", STORAGE)
    environment = {"XDG_RUNTIME_DIR": RUNTIME, "CONTAINERS_STORAGE_CONF": "/run/storage-of-tests.conf"}
    words = ["env", *(f"{name}={value}" for name, value in environment.items()), "/bin/sh", "-c"]
    image = f"tar -C {container_host.root} --exclude='./dev/*' --exclude='./proc/*' -c . | podman import - box:1"
    machine.run(*words, image, user=user)
    machine.run(*words, "podman run --detach --stop-timeout=0 --name mine box:1 sleep 100000", user=user)
    with ways.reach(LOCAL, user, environment) as transport:
        yield transport
    machine.run(*words, "podman rm --force --time 0 mine", user=user)


def test_the_user_of_the_host_is_root_in_containers_of_its_own(
    owner: Transport, container_host: ContainerHost, ways: Places
) -> None:
    inside = connect(Podman(), DATA, owner)
    assert run(inside, ["/bin/sh", "-c", "id -u; cat /only-here"]).stdout == b"0\nseen from within\n"
    found = PodmanHost().children(owner, {"host": DATA["host"]}, timeout=DEADLINE_SECONDS)
    assert [(one.name, one.running) for one in found] == [("mine", True)]
    container_host.has("podman")
    with (
        ways.reach(LOCAL, container_host.machine.root) as root,
        pytest.raises(ShellStartFailed, match="There is no container mine on that host"),
    ):
        run(connect(Podman(), DATA, root), ["true"])
