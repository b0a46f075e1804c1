"""Programs that start an ssh, over ``connmgr ssh``: all data arrive unchanged."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.program import CommandLine
from tests.cli.ssh.conftest import SSH, Far
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS
from tests.fs.trees import facts
from tests.over_ssh import check_git, check_rsync, check_scp, check_sftp, plant
from tests.plugins.machine import Machine
from tests.plugins.places import Places, ssh_fields
from tests.plugins.sshd import Sshd

pytestmark = pytest.mark.needs("sshd", "ssh", "bash")


@pytest.mark.needs("rsync")
def test_rsync_copies_a_tree_both_ways_and_then_nothing(far: Far, tmp_path: Path) -> None:
    check_rsync(far, "connmgr ssh", "web", tmp_path)


@pytest.mark.needs("rsync", "machine", "sudo")
def test_rsync_writes_as_root_over_a_sudo_that_asks_for_a_password(
    clean_connmgr: CommandLine,
    places: Places,
    running_machine: Machine,
    tmp_path: Path,
) -> None:
    user = running_machine.add_user()
    running_machine.allow(f"{user.name} ALL=(ALL) ALL")
    clean_connmgr.daemon.client.connection.add("web", {"type": "ssh", **ssh_fields(places.sshd, user.name)})
    clean_connmgr(
        "add", "shellEnvironment", "root", "host=web", "elevated=yes", "--secret", "password", stdin=user.password
    )
    tree = plant(tmp_path / "tree")
    os.chown(tree / "000" / "file 00001", user.uid, 12345)
    far = Far(clean_connmgr, places.sshd)
    rsync = ["rsync", "-e", "connmgr ssh", "-a", "--numeric-ids"]
    far.run(*rsync, f"{tree}/", "root:/root/tree")
    written = running_machine.path("/root/tree")
    assert facts(written) == facts(tree)
    assert (written / "000" / "file 00001").stat()[4:6] == (user.uid, 12345)
    assert (written / "000" / "file 00002").stat().st_uid == 0
    far.run(*rsync, "root:/root/tree/", str(tmp_path / "back"))
    assert facts(tmp_path / "back") == facts(tree)
    assert running_machine.refusals == 0


@pytest.mark.needs("git")
def test_git_pushes_and_clones(far: Far, tmp_path: Path) -> None:
    check_git(far, "connmgr ssh", "web", f"{far.server.user}@web:", tmp_path)


def test_scp_copies_both_ways(far: Far, tmp_path: Path) -> None:
    check_scp(far, ["-S", str(SSH)], "web", f"{far.server.user}@web", tmp_path)


def test_sftp_is_served_without_a_subsystem_of_the_server(far: Far, tmp_path: Path) -> None:
    check_sftp(far, ["-S", str(SSH)], "web", tmp_path)


@pytest.mark.needs("tar")
def test_tar_goes_through_a_pipe(far: Far, tmp_path: Path) -> None:
    tree = plant(tmp_path / "tree")
    (tmp_path / "there").mkdir()
    (tmp_path / "back").mkdir()
    far.run("bash", "-ec", f"set -o pipefail; tar -C {tree} -cf - . | {SSH} web tar -C {tmp_path}/there -xpf -")
    far.run(
        "bash", "-ec", f"set -o pipefail; {SSH} web tar -C {tmp_path}/there -cf - . | tar -C {tmp_path}/back -xpf -"
    )
    assert facts(tmp_path / "back") == facts(tree)


def _ssh_itself(server: Sshd, tmp_path: Path) -> list[str]:
    (tmp_path / "known_hosts").write_text(server.known_hosts("behind"))
    settings = [
        "HostKeyAlias=behind",
        f"UserKnownHostsFile={tmp_path}/known_hosts",
        f"IdentityFile={server.client_key}",
    ]
    return ["ssh", "-F", "none", "-p", str(server.port), *(word for one in settings for word in ("-o", one))]


def test_ssh_itself_goes_through_it(far: Far, tmp_path: Path) -> None:
    ssh = _ssh_itself(far.server, tmp_path)
    through = ["-o", f"ProxyCommand={SSH} -W %h:%p web", f"{far.server.user}@127.0.0.1"]
    assert far.run(*ssh, *through, "cat; exit 3", stdin=b"through", code=3).stdout == b"through"


@pytest.fixture
def forwarding(far: Far) -> Iterator[tuple[int, int]]:
    """A port that leads to the server, and a SOCKS port."""
    with far.popen("-N", "-L", f"0:127.0.0.1:{far.server.port}", "-D", "localhost:0", "web") as process:
        assert process.stderr is not None
        lines = [process.stderr.readline().decode() for _ in range(2)]
        yield int(lines[0].split()[-1]), int(lines[1].split()[-1])
        process.terminate()
        assert process.wait(DEADLINE_SECONDS) == -15


def test_ports_are_forwarded(far: Far, forwarding: tuple[int, int], tmp_path: Path) -> None:
    port, _ = forwarding
    ssh = _ssh_itself(far.server, tmp_path)
    to = ["-p", str(port), f"{far.server.user}@127.0.0.1"]
    content = os.urandom(3_000_000)

    def carry() -> None:
        assert far.run(*ssh, *to, "cat", stdin=content).stdout == content

    carriers = [threading.Thread(target=carry) for _ in range(3)]
    for carrier in carriers:
        carrier.start()
    for carrier in carriers:
        carrier.join(DEADLINE_SECONDS)
    # A stream that ends at once does not affect the others.
    socket.create_connection(("127.0.0.1", port), DEADLINE_SECONDS).close()
    carry()


@pytest.mark.needs("curl")
@pytest.mark.parametrize("scheme", ["socks4", "socks4a", "socks5", "socks5h"])
def test_socks_leads_where_its_client_says(far: Far, forwarding: tuple[int, int], daemon: Daemon, scheme: str) -> None:
    proxy = ["--proxy", f"{scheme}://127.0.0.1:{forwarding[1]}"]
    page = far.run("curl", "-sS", "--max-time", "20", *proxy, f"{daemon.url}/openapi.json")
    assert page.stdout.startswith(b"{")


def test_a_port_that_leads_nowhere_is_told_and_the_others_go_on(far: Far, closed_port: int) -> None:
    with far.popen("-N", "-L", f"0:127.0.0.1:{closed_port}", "web") as process:
        assert process.stderr is not None
        port = int(process.stderr.readline().split()[-1])
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", port), DEADLINE_SECONDS) as connected:
                connected.settimeout(DEADLINE_SECONDS)
                assert connected.recv(1) == b""
            assert b"connmgr ssh: " in process.stderr.readline()
        process.terminate()


def test_a_port_that_is_taken_is_said_before_anything_begins(far: Far) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = far.ssh("-N", "-L", f"{port}:a:1", "web", code=255)
    assert f"127.0.0.1:{port}: Address already in use" in done.stderr.decode()


def test_programs_that_take_one_word_find_one() -> None:
    done = subprocess.run([SSH, "-V"], capture_output=True, timeout=DEADLINE_SECONDS, check=True)
    assert done.stderr.startswith(b"connmgr ")
