"""``/job/orphans`` finds jobs of lost vaults, removed connections and other daemons, never the vault's own."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from connmgr.client import Client, ClientError
from connmgr.client.jobs import Orphan
from tests.api.wire import LOCAL, ROOT_CATEGORY, client_of
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.deadlines import eventually

HOUR = 3600


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """A pipe that a job reads; its readers end with the test."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    yield path
    # Opening the pipe without a reader would block.
    with os.fdopen(os.open(path, os.O_RDWR | os.O_NONBLOCK), "wb", buffering=0) as opened:
        opened.write(b"end\n" * 8)


def waiting(gate: Path) -> str:
    return f"read line <{gate}"


def start(client: Client, command: str, connection: str = LOCAL) -> str:
    client.shell.start(connection)
    return client.jobs.start(connection, command).id


def done(client: Client, connection: str = LOCAL) -> str:
    """Return a job that has ended."""
    job = start(client, "echo done", connection)
    assert client.jobs.get(job).wait(20).state == "exited"
    return job


def kept(daemon: Daemon) -> Path:
    """The directory of jobs on a daemon's own machine."""
    return daemon.home / "state" / "connmgr" / "jobs"


def directory(daemon: Daemon, job: str) -> Path:
    return kept(daemon) / job.replace("-", "")


def age(daemon: Daemon, *jobs: str, seconds: float = HOUR) -> None:
    """Backdate the start of jobs."""
    began = time.time() - seconds
    for job in jobs:
        os.utime(directory(daemon, job) / "runner", (began, began))


def states(found: Sequence[Orphan]) -> dict[str, tuple[str, bool]]:
    return {one.job: (one.state, one.removed) for one in found}


def audited(daemon: Daemon, path: str) -> dict[str, Any]:
    """Return the last audit entry of a request to ``path``."""
    lines = (daemon.data_dir / "audit.log").read_text().splitlines()
    entry: dict[str, Any] = [one for one in map(json.loads, lines) if one.get("path") == path and "removed" not in one][
        -1
    ]
    return entry


def test_jobs_of_a_lost_vault_are_found_and_ended_ones_removed_on_request(
    start_daemon: StartDaemon, gate: Path
) -> None:
    before = start_daemon()
    ended, running, young = done(before.client), start(before.client, waiting(gate)), done(before.client)
    before.stop()
    age(before, ended, running)
    shutil.rmtree(before.data_dir)
    daemon = start_daemon(home=before.home)
    client = daemon.client

    found = client.jobs.orphans(LOCAL)
    assert states(found) == {ended: ("exited", False), running: ("running", False)}, "or a young one was listed"
    assert all(one.age in range(HOUR, HOUR + 300) for one in found)
    assert client.jobs.orphans(LOCAL, min_age=2 * HOUR, remove=True) == []
    assert directory(daemon, ended).exists()

    assert states(client.jobs.orphans(LOCAL, remove=True)) == {ended: ("exited", True), running: ("running", False)}
    assert {path.name for path in kept(daemon).iterdir()} == {job.replace("-", "") for job in (running, young)}
    entry = audited(daemon, "/job/orphans")
    assert (entry["connection"], entry["orphans"], entry["orphansRemoved"]) == (LOCAL, 2, 1)
    age(daemon, young)
    assert states(client.jobs.orphans(LOCAL, remove=True)) == {young: ("exited", True), running: ("running", False)}


def test_the_vault_s_own_jobs_do_not_count_as_orphans(clean_daemon: Daemon, gate: Path) -> None:
    client = clean_daemon.client
    other = client.connection.add("same machine", {"type": "shellEnvironment", "host": LOCAL}, validate=False)
    jobs = [done(client), done(client, other), start(client, waiting(gate)), start(client, waiting(gate), other)]
    age(clean_daemon, *jobs)
    assert client.jobs.orphans(LOCAL, remove=True) == client.jobs.orphans(other, remove=True) == []
    assert sorted(one.id for one in client.jobs.query()) == sorted(jobs)
    assert all(directory(clean_daemon, job).exists() for job in jobs)


def test_a_job_that_is_starting_does_not_count_as_an_orphan(clean_daemon: Daemon) -> None:
    client = clean_daemon.client
    client.shell.start(LOCAL)
    done(client)
    with (
        ThreadPoolExecutor(1) as pool,
        client_of(clean_daemon) as starting,
        closing(sqlite3.connect(clean_daemon.data_dir / "vault.db", isolation_level=None)) as vault,
    ):
        before = set(kept(clean_daemon).iterdir())
        vault.execute("BEGIN IMMEDIATE")
        # The remote host has the job now, but the vault cannot store it.
        begun = pool.submit(starting.jobs.start, LOCAL, "true")
        eventually(
            lambda: any((path / "runner").exists() for path in set(kept(clean_daemon).iterdir()) - before), "none"
        )
        (new,) = set(kept(clean_daemon).iterdir()) - before
        job = str(uuid.UUID(new.name))
        eventually(lambda: (new / "end").read_text().startswith("exited"), "the job did not end")
        age(clean_daemon, job)
        assert job not in [one.id for one in client.jobs.query()], "the test must look before the row is there"
        assert client.jobs.orphans(LOCAL, remove=True) == []
        assert not begun.done()
        vault.execute("ROLLBACK")
        assert begun.result(30).id == job
    assert client.jobs.orphans(LOCAL, remove=True) == []
    assert client.jobs.get(job).wait(20).state == "exited"


def test_another_vaults_jobs_stay_until_they_are_asked_for(start_daemon: StartDaemon, gate: Path) -> None:
    theirs = start_daemon()
    ours = start_daemon(environment={"XDG_STATE_HOME": str(theirs.home / "state")})
    running, ended = start(theirs.client, waiting(gate)), done(theirs.client)
    mine = done(ours.client)
    age(theirs, running, ended, mine)
    assert states(ours.client.jobs.orphans(LOCAL)) == {running: ("running", False), ended: ("exited", False)}
    assert states(theirs.client.jobs.orphans(LOCAL)) == {mine: ("exited", False)}
    ours.client.jobs.orphans(LOCAL, remove=True)
    assert theirs.client.jobs.get(running).info().state == "running"
    with pytest.raises(ClientError) as gone:
        theirs.client.jobs.get(ended).output(0, 0)
    assert gone.value.code == "output_gone"


def test_links_among_the_jobs_are_not_followed(clean_daemon: Daemon, tmp_path: Path) -> None:
    done(clean_daemon.client)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "runner").write_text("")
    (kept(clean_daemon) / uuid.uuid4().hex).symlink_to(outside)
    (kept(clean_daemon) / "abc").mkdir()
    assert clean_daemon.client.jobs.orphans(LOCAL, remove=True) == []
    assert (outside / "runner").exists()


def test_a_link_is_opened_for_it_and_an_unknown_connection_is_refused(clean_daemon: Daemon) -> None:
    assert clean_daemon.client.jobs.orphans(LOCAL) == []
    with pytest.raises(ClientError) as refused:
        clean_daemon.client.jobs.orphans(str(uuid.uuid4()))
    assert refused.value.code == "unknown_connection"


class TestRemovedConnections:
    """The jobs of a removed connection."""

    @pytest.fixture
    def other(self, clean_daemon: Daemon) -> str:
        return self.add(clean_daemon.client)

    def add(self, client: Client, category: str | None = None) -> str:
        data = {"type": "shellEnvironment", "host": LOCAL}
        return client.connection.add("other", data, category=category, validate=False)

    def test_removing_a_connection_clears_its_ended_jobs_and_reports_running_ones(
        self, clean_daemon: Daemon, other: str, gate: Path
    ) -> None:
        client = clean_daemon.client
        ended, running, elsewhere = done(client, other), start(client, waiting(gate), other), done(client)
        client.connection.remove([other])
        entry = audited(clean_daemon, "/connection/remove")
        assert (entry["jobs"], entry["jobsLeft"]) == (2, 1)
        assert [one.id for one in client.jobs.query()] == [elsewhere]
        assert not directory(clean_daemon, ended).exists()
        age(clean_daemon, running)
        assert states(client.jobs.orphans(LOCAL, remove=True)) == {running: ("running", False)}

    def test_without_a_link_nothing_is_cleared_and_the_trail_says_so(
        self, start_daemon: StartDaemon, own_daemon: Daemon
    ) -> None:
        other = self.add(own_daemon.client)
        job = done(own_daemon.client, other)
        own_daemon.stop()
        daemon = start_daemon(home=own_daemon.home)
        daemon.client.connection.remove([other])
        entry = audited(daemon, "/connection/remove")
        assert (entry["jobs"], entry["jobsLeft"]) == (1, 1)
        age(daemon, job)
        assert states(daemon.client.jobs.orphans(LOCAL, remove=True)) == {job: ("exited", True)}

    def test_the_contents_of_a_category_take_their_jobs_along(self, clean_daemon: Daemon) -> None:
        client = clean_daemon.client
        category = client.category.add("team", ROOT_CATEGORY)
        job = done(client, self.add(client, category))
        client.category.remove([category], contents=True)
        entry = audited(clean_daemon, "/category/remove")
        assert (entry["jobs"], entry["jobsLeft"]) == (1, 0)
        assert not directory(clean_daemon, job).exists()

    def test_a_client_that_waits_for_a_job_of_a_removed_connection_is_answered(
        self, clean_daemon: Daemon, other: str, gate: Path
    ) -> None:
        job = start(clean_daemon.client, waiting(gate), other)
        with ThreadPoolExecutor(1) as pool, client_of(clean_daemon) as waiter:
            answer = pool.submit(waiter.post, "/job/wait", job=job, wait=25)
            clean_daemon.client.jobs.get(job).info()
            clean_daemon.client.connection.remove([other])
            with pytest.raises(ClientError) as gone:
                answer.result(20)
        assert gone.value.code == "unknown_job"

    def test_a_removal_without_jobs_tells_of_none(self, clean_daemon: Daemon, other: str) -> None:
        clean_daemon.client.connection.remove([other])
        assert "jobs" not in audited(clean_daemon, "/connection/remove")
