"""Programs that start ssh by its name, over control sockets; as root by a password that only the vault has."""

from __future__ import annotations

import filecmp
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.program import CommandLine
from tests.deadlines import DEADLINE_SECONDS
from tests.fs.trees import facts
from tests.multiplex.behind import Hosts
from tests.plugins.machine import Machine
from tests.plugins.places import Places, ssh_fields
from tests.ports import reserved_port

pytestmark = pytest.mark.needs("sshd", "ssh", "bash")

FILES = 300
LARGE = 8_000_000


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Files with modes and a link."""
    directory = tmp_path / "tree"
    for number in range(FILES):
        path = directory / f"d{number % 7}" / f"file {number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(number * 37 % 40_000))
        path.chmod((0o644, 0o600, 0o755)[number % 3])
    (directory / "link").symlink_to("d1/file 1")
    return directory


def test_scp_and_sftp_copy_both_ways(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "here").write_bytes(os.urandom(LARGE))
    scp = ["scp", "-q", "-F", str(hosts.config)]
    for options in ([], ["-O"]):
        hosts.run(*scp, *options, f"{tmp_path}/here", f"web:{tmp_path}/there")
        hosts.run(*scp, *options, f"web:{tmp_path}/there", f"{tmp_path}/back")
        assert filecmp.cmp(tmp_path / "here", tmp_path / "back", shallow=False)
    batch = f"put {tmp_path}/here {tmp_path}/put\nget {tmp_path}/put {tmp_path}/got\n"
    hosts.run("sftp", "-q", "-F", str(hosts.config), "-b", "-", "far", stdin=batch.encode())
    assert filecmp.cmp(tmp_path / "here", tmp_path / "got", shallow=False)


@pytest.mark.needs("rsync")
def test_rsync_copies_a_tree_both_ways_and_then_nothing(hosts: Hosts, tree: Path, tmp_path: Path) -> None:
    rsync = ["rsync", "-e", f"ssh -F {hosts.config}", "-a", "--stats"]
    hosts.run(*rsync, f"{tree}/", f"web:{tmp_path}/there")
    hosts.run(*rsync, f"web:{tmp_path}/there/", f"{tmp_path}/back")
    assert facts(tmp_path / "there") == facts(tmp_path / "back") == facts(tree)
    again = hosts.run(*rsync, f"{tree}/", f"web:{tmp_path}/there").stdout.decode()
    assert "Number of regular files transferred: 0" in again


@pytest.mark.needs("git")
def test_git_pushes_and_clones(hosts: Hosts, tmp_path: Path) -> None:
    who = {f"GIT_{who}_{what}": "a@example" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    quick = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.compression", "GIT_CONFIG_VALUE_0": "0"}
    ssh = {"GIT_SSH_COMMAND": f"ssh -F {hosts.config}", "GIT_CONFIG_GLOBAL": os.devnull}
    environment = hosts.environment | who | quick | ssh
    work = tmp_path / "work"

    def git(*words: str, at: Path = work) -> None:
        hosts.run("git", "-C", str(at), *words, env=environment)

    git("init", "-q", "--bare", "bare", at=tmp_path)
    git("init", "-q", "-b", "main", "work", at=tmp_path)
    (work / "large").write_bytes(os.urandom(LARGE))
    git("add", "large")
    git("commit", "-qm", "large")
    git("push", "-q", f"web:{tmp_path}/bare", "main")
    git("clone", "-q", "-b", "main", f"ssh://far{tmp_path}/bare", "clone", at=tmp_path)
    assert filecmp.cmp(work / "large", tmp_path / "clone" / "large", shallow=False)


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
def test_rsync_writes_as_root(root: Hosts, running_machine: Machine, tree: Path, tmp_path: Path) -> None:
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
def test_a_refused_password_is_told_and_ends_it(root: Hosts, running_machine: Machine) -> None:
    name = running_machine.users[-1].name
    running_machine.set_password(name, "another one now")
    done = root.ssh("web+root", "true", code=255)
    assert done.stderr.startswith(b"connmgr: ")
