"""Containers as hosts of OpenSSH's own ssh, at the daemon's control sockets."""

from __future__ import annotations

import os

import pytest

from tests.cli.program import CommandLine
from tests.conftest import StartDaemon
from tests.containers.host import ContainerHost
from tests.deadlines import DEADLINE_SECONDS
from tests.multiplex.behind import Hosts, said
from tests.plugins.places import Places, ssh_fields

pytestmark = pytest.mark.needs("machine", "busybox", "sshd", "ssh", "podman")

HOST = "server+guest"


@pytest.fixture
def hosts(container_host: ContainerHost, ways: Places, start_daemon: StartDaemon) -> Hosts:
    """A container behind an SSH server."""
    container_host.has("podman")
    connmgr = CommandLine(start_daemon())
    connmgr.daemon.client.connection.add("server", {"type": "ssh", **ssh_fields(ways.sshd, "root")})
    connmgr("add", "podman", "guest", "host=server", f"containerName={container_host.name}")
    return Hosts(connmgr)


def test_a_container_is_a_host_like_others(hosts: Hosts) -> None:
    done = hosts.ssh(HOST, "cat /only-here -; echo err >&2; exit 4", stdin=b"typed", code=4)
    assert (done.stdout, done.stderr) == (b"seen from within\ntyped", b"err\n")
    content = os.urandom(3_000_000)
    hosts.ssh(HOST, "cat >/tmp/content", stdin=content)
    assert hosts.ssh(HOST, "cat /tmp/content; rm /tmp/content").stdout == content
    copying = ["sftp", "-q", "-F", str(hosts.config), "-b", "-", HOST]
    assert "The host has no sftp-server." in said(hosts.run(*copying, stdin=b"ls\n", code=255))
    terminal = hosts.on_terminal("-tt", HOST, "stty size; read line; echo got $line", columns=99, rows=33)
    terminal.expect_exact("33 99")
    terminal.sendline("typed")
    terminal.expect_exact("got typed")
    terminal.close()


def test_a_command_in_a_container_ends_with_its_client(hosts: Hosts) -> None:
    with hosts.running(HOST, "trap 'echo HUP >/tmp/ended; exit' HUP; echo ready; while :; do sleep 0.1; done") as one:
        assert one.stdout is not None
        assert one.stdout.readline() == b"ready\n"
        one.kill()
        one.wait(DEADLINE_SECONDS)
    hosts.ssh(HOST, "until grep HUP /tmp/ended 2>/dev/null; do sleep 0.05; done; rm /tmp/ended")
