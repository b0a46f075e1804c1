"""An image without a shell: sessions are refused, jobs with an argv run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from connmgr.client import ClientError
from tests.containers.host import ContainerHost
from tests.daemon import Daemon
from tests.plugins.places import Places, ssh_fields

pytestmark = pytest.mark.needs("machine", "busybox", "sshd", "podman")


@pytest.fixture
def bare(container_host: ContainerHost, ways: Places, daemon: Daemon) -> Iterator[str]:
    """A connection to a container with two programs, neither of them a shell, over ssh."""
    container_host.has("podman")
    host = daemon.client.connection.add("machine", {"type": "ssh", **ssh_fields(ways.sshd, "root")})
    yield daemon.client.connection.add("bare", {"type": "podman", "host": host, "containerName": "bare"})
    # Other tests list all jobs of the machine's root.
    for job in daemon.client.jobs.query("machine/bare"):
        daemon.client.post("/job/remove", job=job.id, force=True)
    daemon.client.connection.remove([host])


def start(daemon: Daemon, connection: str, *argv: str, **fields: Any) -> str:
    answer: Any = daemon.client.post("/job/start", connection=connection, argv=list(argv), **fields)
    return str(answer["job"])


def test_a_shell_is_refused_with_the_reason(daemon: Daemon, bare: str) -> None:
    with pytest.raises(ClientError, match="There is no /bin/sh in container bare") as refusal:
        daemon.client.shell.start(bare)
    assert refusal.value.code == "no_shell_inside"


def test_a_job_with_an_argv_runs_without_a_shell(daemon: Daemon, bare: str) -> None:
    job = start(daemon, bare, "/bin/echo", "a b", "it's", "$HOME")
    ended: Any = daemon.client.post("/job/wait", job=job, wait=20)
    assert (ended["state"], ended["exitCode"]) == ("exited", 0)
    output: Any = daemon.client.post("/job/output", job=job)
    assert output["stdout"]["data"] == "a b it's $HOME\n"


def test_a_job_without_a_shell_can_be_awaited_and_killed(daemon: Daemon, bare: str) -> None:
    job = start(daemon, bare, "/bin/sleep", "100000")
    found: Any = daemon.client.post("/job/query", connectionFilter="machine/bare")
    assert [one["state"] for one in found["jobs"] if one["job"] == job] == ["running"]
    daemon.client.post("/job/kill", job=job, signal="KILL")
    ended: Any = daemon.client.post("/job/wait", job=job, wait=20)
    assert ended["state"] == "killed"


def test_requests_that_need_a_shell_are_refused(daemon: Daemon, bare: str) -> None:
    with pytest.raises(ClientError) as refusal:
        daemon.client.post("/job/start", connection=bare, command="echo")
    assert refusal.value.code == "no_shell"
    with pytest.raises(ClientError, match="omit cwd and env"):
        start(daemon, bare, "/bin/echo", cwd="/")


def test_jobs_of_the_host_are_not_shown_as_orphans_of_the_container(daemon: Daemon, bare: str) -> None:
    start(daemon, bare, "/bin/echo")
    with pytest.raises(ClientError) as refusal:
        daemon.client.post("/job/orphans", connection=bare)
    assert refusal.value.code == "no_shell_inside"
