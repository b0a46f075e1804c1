"""Jobs of one daemon, used by another daemon of the same vault."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from connmgr.client import Client, ClientError
from tests.api.wire import add
from tests.daemon import Daemon
from tests.deadlines import eventually_raises
from tests.plugins.oneself import ssh_server
from tests.plugins.places import ssh_fields

pytestmark = pytest.mark.needs("postgres", "sshd")

POLL_SECONDS = 25


@pytest.fixture
def connection(daemons: tuple[Daemon, Daemon], tmp_path: Path) -> Iterator[str]:
    """An SSH connection on which both daemons have a shell."""
    (tmp_path / "far").mkdir()
    with ssh_server(tmp_path / "far") as server:
        data = {"type": "ssh", **ssh_fields(server, server.user)}
        added = add(daemons[0].client, "far", **data)
        for daemon in daemons:
            daemon.client.post("/shell/start", connection=added)
        yield added


def clone(daemon: Daemon) -> Client:
    return Client(daemon.url, auth_file=daemon.auth_file)


def test_a_job_is_read_waited_for_fed_and_killed_by_the_other(daemons: tuple[Daemon, Daemon], connection: str) -> None:
    here, there = (daemon.client for daemon in daemons)
    job = here.post("/job/start", connection=connection, command="read x; echo got $x; sleep 600", stdin="open")["job"]
    assert there.post("/job/info", job=job)["state"] == "running"
    with ThreadPoolExecutor(2) as pool, clone(daemons[1]) as own, clone(daemons[1]) as second:
        waits = pool.submit(own.post, "/job/wait", job=job, wait=POLL_SECONDS)
        reads = pool.submit(second.post, "/job/output", job=job, wait=POLL_SECONDS)
        there.post("/job/input", job=job, data="this\n")
        assert reads.result(30)["stdout"]["data"] == "got this\n"
        there.post("/job/kill", job=job)
        assert waits.result(30)["state"] == "killed"
    assert here.post("/job/wait", job=job, wait=POLL_SECONDS)["state"] == "killed"
    there.post("/job/remove", job=job)
    # A daemon's copy of a row may be a second old.
    refused = eventually_raises(
        lambda: here.post("/job/info", job=job), ClientError, "a job that the other daemon has removed is known"
    )
    assert refused.code == "unknown_job"


def test_a_key_at_both_daemons_at_once_starts_once(
    daemons: tuple[Daemon, Daemon], connection: str, tmp_path: Path
) -> None:
    for turn in range(5):
        key, mark = str(uuid.uuid4()), tmp_path / f"mark{turn}"

        def start(daemon: Daemon, key: str = key, mark: Path = mark) -> str:
            with clone(daemon) as own:
                answer = own.post("/job/start", connection=connection, command=f"echo once >>{mark}; exit 4", key=key)
            return str(answer["job"])

        with ThreadPoolExecutor(6) as pool:
            begun = [pool.submit(start, daemon) for daemon in daemons * 3]
            jobs = {one.result(30) for one in begun}
        assert len(jobs) == 1
        ended = daemons[1].client.post("/job/wait", job=jobs.pop(), wait=POLL_SECONDS)
        assert (ended["state"], ended["exitCode"]) == ("exited", 4)
        assert mark.read_text() == "once\n"
