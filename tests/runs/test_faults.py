"""Daemons that are killed, frozen or stopped while a run goes on: no target's command runs twice, and nothing sticks.

The remote host counts: each command appends the number of its host to a file.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from connmgr.client import ClientError
from connmgr.vault.runs import PUT_BACK
from tests.api.wire import add
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS, eventually
from tests.plugins.oneself import ssh_server
from tests.plugins.places import ssh_fields
from tests.runs.conftest import ENDED, Hosts
from tests.runs.faults import FAULTS, FROZEN, KILLED, FaultWorld

COUNT = 40


@pytest.fixture
def killed(start_daemon: StartDaemon, tmp_path: Path) -> Iterator[Hosts]:
    hosts = Hosts(start_daemon(home=tmp_path / "home"), tmp_path / "far", COUNT)
    yield hosts
    # The one that :func:`again` started last.
    hosts.daemon.stop()


def again(hosts: Hosts) -> None:
    """Start the daemon of ``hosts`` again, which was killed or stopped."""
    hosts.daemon = Daemon(hosts.daemon.home)


def test_a_run_survives_the_daemons_death_and_begins_no_target_twice(killed: Hosts) -> None:
    run = killed.start(f"{killed.noting('begun')}; sleep 0.05", COUNT, parallel=3)
    rng = random.Random(7)
    for _ in range(4):
        goal = min(COUNT, len(killed.begun("begun")) + rng.randrange(1, 6))
        eventually(lambda: len(killed.begun("begun")), "no more begin", holds=lambda count, goal=goal: count >= goal)
        killed.daemon.kill()
        again(killed)
    info = killed.ended(run)
    counts = Counter(killed.begun("begun"))
    assert set(counts.values()) == {1}
    # What had begun when a daemon was killed is unknown, at most three each time; all others have run.
    assert info.counts["done"] + info.counts["unknown"] == COUNT
    assert info.counts["unknown"] <= 4 * 3
    assert info.counts["done"] <= len(counts) <= COUNT
    unknown = killed.targets(run, "unknown")
    assert {one.error["code"] for one in unknown if one.error} <= {"daemon_gone"}


def test_targets_of_a_killed_daemon_that_are_jobs_run_once_and_end(killed: Hosts) -> None:
    command = f"{killed.noting('jobs')}; sleep 0.5; echo over"
    run = killed.start(command, 8, parallel=4, as_="job")
    eventually(lambda: len(killed.begun("jobs")), "no jobs begin", holds=lambda count: count >= 2)
    killed.daemon.kill()
    again(killed)
    info = killed.ended(run)
    assert (info.state, info.as_) == ("done", "job")
    assert sorted(killed.begun("jobs")) == [str(number) for number in range(8)]
    assert {one.stdout for one in killed.targets(run)} == {"over"}
    eventually(lambda: killed.client.post("/job/query")["jobs"], "jobs stay", holds=lambda jobs: jobs == [])


@pytest.mark.needs("sshd")
def test_a_job_of_a_killed_daemon_is_waited_for_while_its_machine_is_away(
    start_daemon: StartDaemon, tmp_path: Path
) -> None:
    far, daemon = tmp_path / "far", start_daemon(home=tmp_path / "home")
    far.mkdir()
    with ssh_server(far) as sshd:
        host = add(daemon.client, "far", type="ssh", **ssh_fields(sshd, sshd.user))
        command = f"echo begun >> {far}/begun; until [ -e {far}/gate ]; do sleep 0.05; done; echo over"
        run = daemon.client.runs.start(connections=[host], command=command, as_="job").run
        assert run is not None
        eventually(lambda: (far / "begun").exists(), "the job does not begin")
        eventually(lambda: daemon.client.post("/job/query", states=["running"])["jobs"], "the job is not known to run")
        daemon.kill()
        sshd.stop()
        daemon = Daemon(daemon.home)
        try:
            info = daemon.client.runs.wait(run, 2)
            assert info.state == "running", info
            sshd.start()
            (far / "gate").touch()
            info = daemon.client.runs.wait(run, DEADLINE_SECONDS)
            (target,) = daemon.client.runs.targets(run)
            assert (info.state, target.state, target.stdout) == ("done", "done", "over")
            assert (far / "begun").read_text().split() == ["begun"]
        finally:
            daemon.stop()


DIES = """
import os, signal, sys
if "connmgr" in " ".join(sys.orig_argv):
    from connmgr.jobs.jobs import Jobs
    from connmgr.vault.runs import StoredRuns

    def die(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    {method} = die
"""
"""Kills a daemon as it begins a method: an outcome is stored, or its job is removed after that."""


@pytest.mark.parametrize("method", ["StoredRuns._store", "Jobs.remove"])
def test_a_job_is_not_started_again_where_the_daemon_dies_around_its_outcome(tmp_path: Path, method: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(DIES.format(method=method))
    hosts = Hosts(Daemon(tmp_path / "home", environment={"PYTHONPATH": str(tmp_path)}), tmp_path / "far", 1)
    try:
        run = hosts.start(f"{hosts.noting('dying')}; echo over", as_="job")
        eventually(lambda: not hosts.daemon.running, "the daemon does not die")
        hosts.daemon.kill()
        again(hosts)
        info = hosts.ended(run)
        assert (info.state, hosts.begun("dying")) == ("done", ["0"])
        assert [one.stdout for one in hosts.targets(run)] == ["over"]
        # The second daemon removes it at once, or as soon as it has a link to the machine, for it is kept no longer.
        jobs = hosts.client.post("/job/query")["jobs"]
        assert {job["keep"] for job in jobs} <= {0}, jobs
    finally:
        hosts.daemon.stop()


@pytest.mark.parametrize("kill", [False, True])
def test_jobs_wait_for_room_in_the_daemon(start_daemon: StartDaemon, tmp_path: Path, kill: bool) -> None:
    """More of them end, or are killed, at a time than requests may wait for machines."""
    hosts = Hosts(start_daemon(environment={"CONNMGR_THREADS": "2"}), tmp_path / "far", 8)
    run = hosts.start(f"{hosts.noting('room')}; sleep {60 if kill else 1}", 8, parallel=8, as_="job")
    eventually(lambda: hosts.begun("room"), "some do not begin", holds=lambda begun: len(begun) == 8)
    if kill:
        hosts.client.runs.stop(run, kill=True)
    info = hosts.ended(run)
    assert info.counts["failed" if kill else "done"] == 8, hosts.targets(run)


def test_a_stopped_daemon_leaves_nothing_unknown(killed: Hosts) -> None:
    run = killed.start(f"{killed.noting('orderly')}; sleep 0.1", COUNT, parallel=3)
    eventually(lambda: len(killed.begun("orderly")), "none begins", holds=lambda count: count >= 3)
    killed.daemon.stop()
    again(killed)
    info = killed.ended(run)
    assert (info.state, info.counts["done"]) == ("done", COUNT)
    assert set(Counter(killed.begun("orderly")).values()) == {1}


def test_a_paused_run_is_paused_after_a_restart_too(killed: Hosts) -> None:
    run = killed.start("sleep 0.1", 10, parallel=1)
    killed.client.runs.pause(run)
    killed.daemon.kill()
    again(killed)
    info = killed.client.runs.info(run)
    assert info.state == "paused"
    killed.client.runs.resume(run)
    assert killed.ended(run).state in ENDED


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A home directory on a disk of its own with 4 MiB."""
    home = tmp_path / "small"
    home.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", home], check=False)
    if mounted.returncode:
        pytest.skip("file systems cannot be mounted here")
    yield home
    subprocess.run(["umount", "-l", home], check=True)


@pytest.mark.needs("linux")
def test_a_full_disk_stops_no_run_and_repeats_no_target(small_disk: Path, tmp_path: Path) -> None:
    hosts = Hosts(Daemon(small_disk), tmp_path / "far", 6)
    try:
        run = hosts.start(f"{hosts.noting('full')}; sleep 0.3; head -c 60000 /dev/urandom | base64", 6, parallel=2)
        eventually(lambda: hosts.begun("full"), "none begins")
        filler = small_disk / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        eventually(lambda: "waits for the vault" in hosts.daemon.stderr(), "the run does not notice")
        with pytest.raises(ClientError, match="its disk is full") as refused:
            hosts.start("true")
        assert refused.value.code == "vault_unavailable"
        filler.unlink()
        info = hosts.ended(run)
        assert (info.state, info.counts["done"]) == ("done", 6)
        assert sorted(hosts.begun("full")) == [str(number) for number in range(6)]
    finally:
        hosts.daemon.stop()


def test_a_vault_that_is_copied_back_by_hand_repeats_no_target(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    hosts = Hosts(Daemon(home), tmp_path / "far", 6)
    vault, copy = hosts.daemon.data_dir / "vault.db", tmp_path / "copy"
    try:
        run = hosts.start(f"{hosts.noting('copied')}; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done", 6, parallel=2)
        eventually(lambda: hosts.begun("copied"), "too few begin", holds=lambda begun: len(begun) == 2)
        with closing(sqlite3.connect(vault)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        (tmp_path / "go").touch()
        assert hosts.ended(run).state == "done"
    finally:
        hosts.daemon.stop()
    for path in (vault, *vault.parent.glob("vault.db-*")):
        path.unlink()
    shutil.copyfile(copy, vault)
    vault.chmod(0o600)
    again = Daemon(home)
    try:
        info = again.client.runs.wait(run, DEADLINE_SECONDS)
        assert (info.state, info.reason) == ("stopped", PUT_BACK)
        assert (info.counts["unknown"], info.counts["stopped"]) == (2, 4)
        assert sorted(hosts.begun("copied")) == [str(number) for number in range(6)]
        assert "put back to an earlier state" in again.stderr()
    finally:
        again.stop()


@pytest.fixture(scope="module")
def world() -> Iterator[FaultWorld]:
    with FaultWorld(7, away=1.0) as world:
        yield world


@pytest.mark.needs("postgres", "sshd")
@pytest.mark.parametrize("number", range(len(FAULTS)), ids=FAULTS)
def test_whatever_breaks_no_target_runs_twice_and_nothing_sticks(world: FaultWorld, number: int) -> None:
    """One cycle of each fault; ``python -m benchmarks.fleet --faults`` runs as many as one has time for."""
    # Jobs where their promise is the strongest: the daemon that began them is gone.
    outcome = world.cycle(number, FAULTS[number], as_job=FAULTS[number] in (KILLED, FROZEN))
    assert outcome.wrong == [], outcome
