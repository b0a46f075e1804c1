"""A playbook over the daemon's connections has the same effects as over ssh with ControlMaster."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.ansible.ways import DAEMON, SITE, SSH, inventories, sources
from tests.fleet import Fleet, recap, tree

HOSTS = ("web1", "web2")
"""Two hosts suffice for work in parallel."""

LARGE = ("web2",)
"""The hosts that receive and return a file of 20 MB."""

COMPARED = ("web1",)
"""The hosts that ssh works on too, and that run the play of independent hosts."""

ONCE = ("--skip-tags", "alike", "-e", f"alone={','.join(COMPARED)}")
"""Options that leave out tasks which reach a host in the same way as others."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.needs("linux", "ssh", "sshd")]


def test_a_playbook_does_the_same_as_over_ssh_and_nothing_when_it_checks(fleet: Fleet, tmp_path: Path) -> None:
    source = sources(tmp_path / "sources", large=20)
    inventory = inventories(fleet, tmp_path, source, LARGE, HOSTS, COMPARED)

    def run(way: str) -> str:
        environment = {"ANSIBLE_HOME": str(tmp_path / f"home-{way}")}
        if way == SSH:
            environment["ANSIBLE_PIPELINING"] = "1"
        done = fleet.run("ansible-playbook", *ONCE, "-i", inventory[way], SITE, environment=environment)
        assert "WARNING" not in done.stderr
        return done.stdout

    # At the same time, since each mostly waits for its hosts.
    with ThreadPoolExecutor() as both:
        daemon, ssh = (recap(output) for output in both.map(run, (DAEMON, SSH)))
    assert set(daemon) == set(HOSTS)
    assert {counts["failed"] + counts["unreachable"] for counts in daemon.values()} == {0}
    assert {name: daemon[name] for name in COMPARED} == ssh
    made, expected = (tree(tmp_path / way) for way in (DAEMON, SSH))
    assert {path: made.get(path) for path in expected} == expected
    assert {path for path in made if any(name in path for name in COMPARED)} <= set(expected)
    assert made["web1/site/bytes"] == ("file", 0o600, bytes(range(256)))
    assert made["fetched/large-web2"][2] == (source / "large").read_bytes()
    assert made["web2/handled"][2] == b"handled\n"

    options = ("--check", "--diff", "--tags", "check", "-l", "web1")
    done = fleet.run("ansible-playbook", *ONCE, *options, "-i", inventory[DAEMON], SITE)
    assert "-port = 443\n" in done.stdout, "a template would be written anew"
    assert recap(done.stdout)["web1"]["changed"] == 1
    assert tree(tmp_path / DAEMON) == made
