"""300 files with modes are copied to five hosts and back in one command, over SSH and by sudo with a password."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from random import Random

import pytest

from tests.cli.program import CommandLine
from tests.fs.remote_hosts import names_in
from tests.fs.trees import WHEN, facts
from tests.plugins.machine import Inhabitant, Machine
from tests.plugins.machine_fixtures import home_of_the_daemon, places, running_machine  # noqa: F401 - fixtures
from tests.plugins.places import Places, ssh_fields

pytestmark = pytest.mark.needs("machine", "sshd", "sudo", "tar")

HOSTS = 5
FILES = 300
MODES = (0o600, 0o640, 0o644, 0o755, 0o700, 0o444, 0o777)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """300 files in twenty directories, with sizes up to 40 kB and various modes, and links."""
    random = Random(1)
    directory = tmp_path / "tree"
    for number in range(FILES):
        path = directory / f"d{number % 20}" / f"file {number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.randbytes(int(40_000 ** random.random())))
        path.chmod(MODES[number % len(MODES)])
        os.utime(path, (WHEN + number, WHEN + number))
    (directory / "d0").chmod(0o2750)
    (directory / "link").symlink_to("d1/file 1")
    return directory


@pytest.fixture
def hosts(clean_connmgr: CommandLine, running_machine: Machine, places: Places) -> dict[str, Inhabitant]:  # noqa: F811
    """Root connections by sudo to users of the machine, by name, each in its user's home."""
    users = {f"host{number}": running_machine.add_user() for number in range(HOSTS)}
    running_machine.allow(*(f"{user.name} ALL=(ALL) ALL" for user in users.values()))
    client = clean_connmgr.daemon.client
    for name, user in users.items():
        over = client.connection.add(f"ssh of {name}", {"type": "ssh", **ssh_fields(places.sshd, user.name)})
        data = {"type": "shellEnvironment", "host": over, "elevated": True, "password": user.password}
        root = client.connection.add(name, data)
        client.shell.start(root)
        client.shell.exec(root, f"umask 077; cd {user.home}")
    return users


def test_a_tree_goes_to_five_hosts_by_sudo_and_comes_back(
    clean_connmgr: CommandLine,
    hosts: dict[str, Inhabitant],
    running_machine: Machine,  # noqa: F811
    tree: Path,
    tmp_path: Path,
) -> None:
    expected = {path: (kind, mode & 0o777, when, content) for path, (kind, mode, when, content) in facts(tree).items()}
    done = clean_connmgr("cp", "-a", "--all", "**/host?", f"{tree}", ":site")
    assert f"{HOSTS} connections in " in done.errors
    assert f": {HOSTS} ok" in done.errors
    for name, user in hosts.items():
        copy = running_machine.path(f"{user.home}/site")
        assert facts(copy) == expected, name
        assert {path.lstat().st_uid for path in copy.rglob("*")} == {0}, "not root's"
        assert stat.S_IMODE((copy / "d0").stat().st_mode) == 0o750
    again = clean_connmgr("cp", "--brief", "-a", "--checksum", "--all", "**/host?", f"{tree}/.", ":site")
    assert again.output.count(f"{FILES} equal") == HOSTS
    clean_connmgr("cp", "-a", "--all", "**/host?", ":site", f"{tmp_path}/back")
    assert names_in(tmp_path / "back") == [f"ssh of {name}" for name in hosts]
    for name in hosts:
        assert facts(tmp_path / "back" / f"ssh of {name}" / name / "site") == expected
    assert running_machine.refusals == 0
