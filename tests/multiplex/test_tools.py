"""Programs that start ssh by its name, over control sockets; as root by a password that only the vault has."""

from __future__ import annotations

import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.program import CommandLine
from tests.deadlines import DEADLINE_SECONDS
from tests.fs.trees import facts
from tests.multiplex.behind import Hosts, said
from tests.over_ssh import check_git, check_rsync, check_scp, check_sftp, plant
from tests.plugins.machine import Machine
from tests.plugins.places import Places, ssh_fields
from tests.ports import reserved_port

pytestmark = pytest.mark.needs("sshd", "ssh", "bash")


def _config(hosts: Hosts) -> list[str]:
    return ["-F", str(hosts.config)]


def test_scp_copies_both_ways(hosts: Hosts, tmp_path: Path) -> None:
    check_scp(hosts, _config(hosts), "web", "far", tmp_path)


def test_sftp_copies_both_ways(hosts: Hosts, tmp_path: Path) -> None:
    check_sftp(hosts, _config(hosts), "far", tmp_path)


@pytest.mark.needs("rsync")
def test_rsync_copies_a_tree_both_ways_and_then_nothing(hosts: Hosts, tmp_path: Path) -> None:
    check_rsync(hosts, f"ssh -F {hosts.config}", "web", tmp_path)


@pytest.mark.needs("git")
def test_git_pushes_and_clones(hosts: Hosts, tmp_path: Path) -> None:
    check_git(hosts, f"ssh -F {hosts.config}", "web", "ssh://far", tmp_path)


@pytest.mark.needs("mosh")
def test_mosh_starts_its_server_and_takes_keys(hosts: Hosts) -> None:
    words = [f"--ssh=ssh -F {hosts.config}", "--experimental-remote-ip=remote", "web", "--"]
    terminal = hosts.terminal_of("mosh", *words, "/bin/sh", "-c", "echo be''gins; read a; echo \"said $a\"; read b")
    terminal.expect_exact("begins")
    # As the key Enter does.
    terminal.send("typed\r")
    terminal.expect_exact("said typed")
    terminal.send("\r")
    terminal.expect_exact("[mosh is exiting.]")
    terminal.close()
    assert terminal.exitstatus == 0


@pytest.fixture
def root(clean_connmgr: CommandLine, places: Places, running_machine: Machine) -> Iterator[Hosts]:
    """The host ``web+root``: root of a machine, by a password for sudo that is sealed in the vault."""
    user = running_machine.add_user()
    running_machine.allow(f"{user.name} ALL=(ALL) ALL")
    clean_connmgr.daemon.client.connection.add("web", {"type": "ssh", **ssh_fields(places.sshd, user.name)})
    fields = ["host=web", "elevated=yes", "--secret", "password"]
    clean_connmgr("add", "shellEnvironment", "root", *fields, stdin=user.password)
    yield Hosts(clean_connmgr)
    clean_connmgr.daemon.client.post("/multiplex/close")


@pytest.mark.needs("machine", "sudo")
def test_root_is_a_host_like_others(root: Hosts, running_machine: Machine) -> None:
    assert "web+root" in root.paths
    done = root.ssh("web+root", "id -u; cat; exit 4", stdin=b"typed", code=4)
    assert (done.stdout, done.stderr) == (b"0\ntyped", b"")
    assert running_machine.refusals == 0


@pytest.mark.needs("machine", "sudo")
def test_files_of_root_come_and_go_by_sftp(root: Hosts, running_machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of root\n")
    running_machine.write("/root/shadow", "x", 0o600)
    batch = f"get /root/shadow {tmp_path}/got\nput {tmp_path}/secret /root/secret\nchmod 600 /root/secret\n"
    root.run("sftp", "-q", "-F", str(root.config), "-b", "-", "web+root", stdin=batch.encode())
    assert (tmp_path / "got").read_text() == "x"
    written = running_machine.path("/root/secret")
    assert (written.read_text(), written.stat().st_uid, stat.S_IMODE(written.stat().st_mode)) == ("of root\n", 0, 0o600)
    root.run("scp", "-q", "-F", str(root.config), "web+root:/root/secret", str(tmp_path / "back"))
    assert (tmp_path / "back").read_text() == "of root\n"


@pytest.mark.needs("machine", "sudo", "rsync")
def test_rsync_writes_as_root(root: Hosts, running_machine: Machine, tmp_path: Path) -> None:
    tree = plant(tmp_path / "tree")
    rsync = ["rsync", "-e", f"ssh -F {root.config}", "-a", "--no-owner", "--no-group"]
    root.run(*rsync, f"{tree}/", "web+root:/root/tree")
    assert facts(running_machine.path("/root/tree")) == facts(tree)
    root.run(*rsync, "web+root:/root/tree/", f"{tmp_path}/back")
    assert facts(tmp_path / "back") == facts(tree)


@pytest.mark.needs("machine", "sudo")
def test_forwards_lead_through_sudo(root: Hosts) -> None:
    """A connection that carries no TCP streams has a program of the host relay them."""
    with reserved_port() as port, socket.create_server(("127.0.0.1", 0)) as service:
        root.ssh("-O", "forward", "-L", f"{port}:127.0.0.1:{service.getsockname()[1]}", "web+root")
        with socket.create_connection(("127.0.0.1", port), DEADLINE_SECONDS) as client:
            service.settimeout(DEADLINE_SECONDS)
            connected, _ = service.accept()
            with connected:
                connected.sendall(b"through")
            assert b"".join(iter(lambda: client.recv(100), b"")) == b"through"


@pytest.mark.needs("machine", "sudo")
def test_a_forward_leads_through_sudo_to_a_unix_socket(root: Hosts) -> None:
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as directory,
        reserved_port() as port,
        socket.socket(socket.AF_UNIX) as service,
    ):
        # Nobody else enters: root alone.
        service.bind(f"{directory}/app")
        service.listen()
        service.settimeout(DEADLINE_SECONDS)
        root.ssh("-O", "forward", "-L", f"{port}:{directory}/app", "web+root")
        with socket.create_connection(("127.0.0.1", port), DEADLINE_SECONDS) as client:
            connected, _ = service.accept()
            with connected:
                connected.sendall(b"through")
            assert b"".join(iter(lambda: client.recv(100), b"")) == b"through"


@pytest.mark.needs("machine", "sudo")
def test_a_refused_password_is_told_and_ends_it(root: Hosts, running_machine: Machine) -> None:
    name = running_machine.users[-1].name
    running_machine.set_password(name, "another one now")
    done = root.ssh("web+root", "true", code=255)
    advice = "`connmgr edit web/root --secret password` stores another."
    assert said(done) == ["connmgr: sudo refused the password.", f"connmgr: {advice}"]
    refused = root.connmgr("exec", "web/root", "--", "true", code=125).errors
    assert f"web/root: sudo refused the password. {advice}" in refused
    root.connmgr("edit", "web/root", "--secret", "password", stdin="another one now")
    assert root.ssh("web+root", "id -u").stdout == b"0\n"
