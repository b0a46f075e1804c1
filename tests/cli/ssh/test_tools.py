"""Programs that start an ssh, over ``connmgr ssh``: all data arrive unchanged."""

from __future__ import annotations

import filecmp
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
from tests.plugins.machine import Machine
from tests.plugins.places import Places, ssh_fields
from tests.plugins.sshd import Sshd

pytestmark = pytest.mark.needs("sshd", "ssh", "bash")

FILES = 1000
"""Files whose content exceeds a channel's window."""

MODES = (0o644, 0o600, 0o755, 0o4711)
LARGE = 8_000_000
"""Several windows."""


def _plant(tree: Path) -> Path:
    for number in range(FILES):
        path = tree / f"{number // 100:03}" / f"{number:05}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(number % 2100))
        path.chmod(MODES[number % len(MODES)])
        os.utime(path, (1_000_000_000 + number,) * 2)
    (tree / "link").symlink_to("000/00000")
    return tree


def _seen(tree: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return mode, time and content of all files below ``tree``."""
    files = [path for path in sorted(tree.rglob("*")) if path.is_file() and not path.is_symlink()]
    assert len(files) == FILES
    return {
        str(path.relative_to(tree)): (path.stat().st_mode, int(path.stat().st_mtime), path.read_bytes())
        for path in files
    }


@pytest.mark.needs("rsync")
def test_rsync_copies_a_tree_both_ways_and_then_nothing(far: Far, tmp_path: Path) -> None:
    tree = _plant(tmp_path / "tree")
    rsync = ["rsync", "-e", "connmgr ssh", "-a", "--stats"]
    far.run(*rsync, f"{tree}/", f"web:{tmp_path}/there")
    far.run(*rsync, f"web:{tmp_path}/there/", str(tmp_path / "back"))
    assert _seen(tmp_path / "there") == _seen(tmp_path / "back") == _seen(tree)
    assert (tmp_path / "back" / "link").readlink() == Path("000/00000")
    again = far.run(*rsync, f"{tree}/", f"web:{tmp_path}/there").stdout.decode()
    assert "Number of regular files transferred: 0" in again


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
    tree = _plant(tmp_path / "tree")
    os.chown(tree / "000" / "00001", user.uid, 12345)
    far = Far(clean_connmgr, places.sshd)
    rsync = ["rsync", "-e", "connmgr ssh", "-a", "--numeric-ids"]
    far.run(*rsync, f"{tree}/", "root:/root/tree")
    written = running_machine.path("/root/tree")
    assert _seen(written) == _seen(tree)
    assert (written / "000" / "00001").stat()[4:6] == (user.uid, 12345)
    assert (written / "000" / "00002").stat().st_uid == 0
    far.run(*rsync, "root:/root/tree/", str(tmp_path / "back"))
    assert _seen(tmp_path / "back") == _seen(tree)
    assert running_machine.refusals == 0


@pytest.mark.needs("git")
def test_git_pushes_and_clones(far: Far, tmp_path: Path) -> None:
    name = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example", "GIT_CONFIG_GLOBAL": os.devnull}
    committer = {"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example", "GIT_SSH_COMMAND": "connmgr ssh"}
    # Compressing random bytes would only take time.
    quick = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.compression", "GIT_CONFIG_VALUE_0": "0"}
    environment = far.environment | name | committer | quick
    work = tmp_path / "work"

    def git(*words: str, at: Path = work) -> None:
        far.run("git", "-C", str(at), *words, env=environment)

    git("init", "-q", "--bare", "bare", at=tmp_path)
    git("init", "-q", "-b", "main", "work", at=tmp_path)
    (work / "large").write_bytes(os.urandom(LARGE))
    git("add", "large")
    git("commit", "-qm", "large")
    git("push", "-q", f"web:{tmp_path}/bare", "main")
    git("clone", "-q", "-b", "main", f"{far.server.user}@web:{tmp_path}/bare", "clone", at=tmp_path)
    assert filecmp.cmp(work / "large", tmp_path / "clone" / "large", shallow=False)
    git("fetch", "-q", "origin", at=tmp_path / "clone")


@pytest.mark.parametrize("options", [[], ["-O"]], ids=["over SFTP", "over its own protocol"])
def test_scp_copies_both_ways(far: Far, tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "here").write_bytes(os.urandom(5_000_000))
    scp = ["scp", "-q", "-S", str(SSH), *options]
    far.run(*scp, str(tmp_path / "here"), f"web:{tmp_path}/there")
    far.run(*scp, f"{far.server.user}@web:{tmp_path}/there", str(tmp_path / "back"))
    assert filecmp.cmp(tmp_path / "here", tmp_path / "back", shallow=False)


def test_sftp_is_served_without_a_subsystem_of_the_server(far: Far, tmp_path: Path) -> None:
    (tmp_path / "here").write_bytes(os.urandom(5_000_000))
    batch = f"put {tmp_path}/here {tmp_path}/there\nget {tmp_path}/there {tmp_path}/back\n"
    far.run("sftp", "-q", "-b", "-", "-S", str(SSH), "web", stdin=batch.encode())
    assert filecmp.cmp(tmp_path / "here", tmp_path / "back", shallow=False)


@pytest.mark.needs("tar")
def test_tar_goes_through_a_pipe(far: Far, tmp_path: Path) -> None:
    tree = _plant(tmp_path / "tree")
    (tmp_path / "there").mkdir()
    (tmp_path / "back").mkdir()
    far.run("bash", "-ec", f"set -o pipefail; tar -C {tree} -cf - . | {SSH} web tar -C {tmp_path}/there -xpf -")
    far.run(
        "bash", "-ec", f"set -o pipefail; {SSH} web tar -C {tmp_path}/there -cf - . | tar -C {tmp_path}/back -xpf -"
    )
    assert _seen(tmp_path / "back") == _seen(tree)


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
