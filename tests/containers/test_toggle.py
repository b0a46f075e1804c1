"""Containers are started and stopped over the connection of their host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from connmgr.errors import OperationError, RuntimeUnreachable
from connmgr.plugin import Toggled, Transport
from connmgr.testing import connect, run
from connmgr_containers import Docker, Incus, Kubernetes, Lxc, Lxd, Nspawn, Podman
from tests.cli.program import CommandLine, finish
from tests.containers.host import ON, ContainerHost
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS, eventually_equal
from tests.plugins.places import LOCAL, Places, ssh_fields

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


def test_a_failed_start_says_why(local: Transport) -> None:
    kind = Incus()
    assert isinstance(kind, Toggled)
    with pytest.raises(RuntimeUnreachable, match="incus is not installed"):
        kind.toggle(local, kind.schema().load({"host": ON, "containerName": "web"}), True, timeout=DEADLINE_SECONDS)


class TestCommands:
    """`connmgr container`, for the containers of Podman on a machine that is reached over SSH."""

    @pytest.fixture
    def connmgr(self, container_host: ContainerHost, clean_daemon: Daemon, ways: Places) -> CommandLine:
        container_host.has("podman")
        client = clean_daemon.client
        host = client.connection.add("machine", {"type": "ssh", **ssh_fields(ways.sshd, "root")})
        for name in ("idle", "talker"):
            client.connection.add(name, {"type": "podman", "host": host, "containerName": name})
        return CommandLine(clean_daemon)

    @pytest.fixture
    def talker(self, container_host: ContainerHost) -> Iterator[None]:
        """A container with a log, which prints on when a file appears in it."""
        container_host.has("podman")
        script = "for n in 1 2 3; do echo line $n; done; until test -e /go; do sleep 0.1; done; echo gone; sleep 100000"
        run = ["podman", "run", "--detach", "--log-driver=k8s-file", "--stop-timeout=0", "--name", "talker"]
        container_host.machine.run(*run, "box:1", "/bin/sh", "-c", script)
        yield
        container_host.machine.run("podman", "rm", "--force", "--time", "0", "talker")

    @pytest.mark.needs("podman", "sshd")
    def test_start_stop_and_restart_act_on_the_named_container(self, connmgr: CommandLine) -> None:
        assert connmgr("container", "start", "idle").output == "machine/idle: runs\n"
        assert connmgr("exec", "idle", "--", "cat /only-here").output == "seen from within\n"
        connmgr("exec", "idle", "--", "touch /tmp/there")
        assert connmgr("container", "restart", "i*", "--dry-run").output == "restart  machine/idle\n"
        assert "Give --yes" in connmgr("container", "restart", "i*", code=2).errors
        [done] = connmgr("container", "restart", "i*", "--yes", "--json").json
        assert (done["name"], done["done"]) == ("machine/idle", "runs anew")
        assert connmgr("exec", "idle", "--", "cat /only-here").output == "seen from within\n"
        assert connmgr("container", "stop", "idle").output == "machine/idle: is stopped\n"
        assert "stopped" in connmgr("ls", "idle").output
        refusal = connmgr("container", "stop", "machine", code=1).errors
        assert "machine is a connection of type ssh, which cannot be started and stopped" in refusal
        refusal = connmgr("container", "stop", "idl", code=5).errors
        assert "No connection is called 'idl'. Did you mean machine/idle?" in refusal
        assert connmgr("exec", "machine", "--", "echo on").output == "on\n"

    @pytest.mark.needs("podman", "sshd")
    def test_logs_show_the_lines_of_the_runtime(self, connmgr: CommandLine, talker: None) -> None:
        whole = "line 1\nline 2\nline 3\n"
        eventually_equal(lambda: connmgr("container", "logs", "talker").output, whole, "the logs are others")
        assert connmgr("container", "logs", "--tail", "1", "talker").output == "line 3\n"
        terminal = connmgr.on_terminal("container", "logs", "-f", "-n", "1", "talker")
        terminal.expect_exact("line 3")
        connmgr("exec", "talker", "--", "touch /go")
        terminal.expect_exact("gone")
        terminal.sendintr()
        assert finish(terminal)[0] == 130
        refusal = connmgr("container", "logs", "machine", code=1).errors
        assert "a connection of type ssh has no log" in refusal


@pytest.mark.parametrize(
    ("kind", "data", "follow", "lines", "argv"),
    [
        (Docker(), {"context": "far"}, False, None, "env docker --context=far logs web"),
        (Podman(), {}, True, 5, "env podman logs --follow --tail=5 web"),
        (Incus(), {"project": "p"}, False, None, "env incus --project=p console web --show-log"),
        (Nspawn(), {}, True, None, "env journalctl --no-pager --machine=web --follow --lines=all"),
    ],
)
def test_the_command_of_a_log(kind: Any, data: dict[str, str], follow: bool, lines: int | None, argv: str) -> None:
    loaded = kind.schema().load({"host": ON, "containerName": "web", **data})
    assert kind.log(loaded, follow=follow, lines=lines) == argv.split()


def test_a_log_that_cannot_be_followed_and_one_of_a_pod() -> None:
    incus = Incus()
    assert incus.log(incus.schema().load({"host": ON, "containerName": "web"}), follow=True, lines=None) is None
    pod = {"host": ON, "namespace": "shop", "pod": "web", "container": "nginx"}
    argv = Kubernetes().log(Kubernetes().schema().load(pod), follow=False, lines=3)
    assert argv == ["env", "kubectl", "--namespace=shop", "logs", "--container=nginx", "--tail=3", "web"]
