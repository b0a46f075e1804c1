"""A pyinfra deploy over the daemon's connections has the same effects as over pyinfra's own SSH."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.deadlines import eventually
from tests.fleet import Fleet, running_fleet, tree
from tests.pyinfra.ways import DAEMON, DEPLOY, PYINFRA, SSH, inventories, sources

HOSTS = ("web1", "web2")
"""Two hosts suffice for work in parallel."""

LARGE = ("web2",)
"""The hosts that receive and return a file of 20 MB."""

COMPARED = ("web1",)
"""The hosts that ssh works on too."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.needs("linux", "sshd")]


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """The hosts, and a daemon that has connections to them."""
    assert PYINFRA.exists(), f"`make test` installs {PYINFRA}"
    # Not below tmp_path: the path of a Unix socket has 107 bytes at most.
    with (
        tempfile.TemporaryDirectory(prefix="cm-", ignore_cleanup_errors=True) as directory,
        running_fleet(Path(directory)) as fleet,
    ):
        yield fleet


def test_a_deploy_has_the_same_effects_as_over_ssh(fleet: Fleet, tmp_path: Path) -> None:
    source = sources(tmp_path / "sources", large=20)
    inventory = inventories(fleet, tmp_path, source, LARGE)
    hosts = {DAEMON: HOSTS, SSH: COMPARED}

    def run(way: str) -> None:
        limited = [word for name in hosts[way] for word in ("--limit", f"*{name}")]
        fleet.run(PYINFRA, "-y", *limited, inventory[way], DEPLOY)

    # Beside each other, for each waits for its hosts.
    with ThreadPoolExecutor() as both:
        list(both.map(run, hosts))
    made, expected = (tree(tmp_path / way) for way in (DAEMON, SSH))
    assert {path: entry for path, entry in made.items() if any(name in path for name in COMPARED)} == expected
    assert {name for name in fleet.addresses if any(path.startswith(f"{name}/") for path in made)} == set(HOSTS)
    assert made["web1/site/bytes"] == ("file", 0o600, bytes(range(256)))
    assert made["large-web2"][2] == (source / "large").read_bytes()
    assert made["web1/input"][2] == b"one\ntwo\n"
    assert len(made["web1/lot"][2]) == 3_000_000


def test_an_unreachable_host_is_reported_and_does_not_delay_others(fleet: Fleet, closed_port: int) -> None:
    fleet.add("down", port=closed_port)
    command = "echo here; echo there >&2; exit 3"
    shown = fleet.run(PYINFRA, "-y", "@connmgr/web1,@connmgr/down", "exec", "--", command, code=1).stderr
    assert "[@connmgr/down] 127.0.0.1" in shown
    assert "refused the connection" in shown
    assert "[@connmgr/web1] here" in shown
    assert "[@connmgr/web1] there" in shown


def test_a_pattern_that_matches_nothing_is_reported(fleet: Fleet) -> None:
    shown = fleet.run(PYINFRA, "-y", "@connmgr/nowhere*", "exec", "--", "true", code=1).stderr
    assert "No connection matches 'nowhere*'" in shown


def test_a_named_token_or_nobody_runs_a_deploy(fleet: Fleet) -> None:
    made = fleet.daemon.client.token.create(
        "pyinfra", 600, ["connection.read", "shell.any", "fs.write"], connections=["web1"]
    )
    words = [PYINFRA, "-y", "@connmgr/web*", "exec", "--", "echo here"]
    shown = fleet.run(*words, environment={"CONNMGR_TOKEN": made["token"]}).stderr
    assert "[@connmgr/web1] here" in shown
    assert "web2" not in shown
    for environment in ({"CONNMGR_TOKEN": ""}, {"CONNMGR_TOKEN_FILE": "/dev/null"}, {"CONNMGR_API_KEY_FILE": " "}):
        done = fleet.run(*words, code=1, environment=environment)
        assert "is empty" in done.stderr, environment
        assert "] here" not in done.stderr
    shown = fleet.run(PYINFRA, "-y", "@connmgr/", "exec", "--", "echo here", code=1).stderr
    assert "needs a name after the slash" in shown


def test_a_command_that_takes_too_long_is_killed(fleet: Fleet, tmp_path: Path) -> None:
    command = f"echo $$ > {tmp_path}/pid; exec sleep 300"
    shown = fleet.run(PYINFRA, "-y", "@connmgr/web1", "server.shell", command, "_timeout=2", code=1).stderr
    assert "timed out after 2s" in shown
    process = Path("/proc", (tmp_path / "pid").read_text().strip())
    eventually(lambda: not process.exists(), "what took too long runs on")
