"""``connmgr job orphans``, and the report of ``connmgr doctor`` about leftovers of jobs."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from connmgr.client import LOCAL_MACHINE
from tests.api.wire import client_of
from tests.cli.program import CommandLine
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.deadlines import eventually, eventually_equal
from tests.plugins.oneself import ssh_server
from tests.plugins.sshd import Sshd


def old_job(daemon: Daemon) -> str:
    """Return an ended job that seems to have begun two days ago."""
    daemon.client.shell.start(LOCAL_MACHINE)
    job = daemon.client.jobs.start(LOCAL_MACHINE, "echo done")
    assert job.wait(20).state == "exited"
    began = time.time() - 2 * 86400
    os.utime(daemon.home / "state" / "connmgr" / "jobs" / job.id.replace("-", "") / "runner", (began, began))
    return job.id


@pytest.fixture
def left(start_daemon: StartDaemon) -> tuple[Daemon, str]:
    """A daemon whose vault was lost with a job in it, and that job."""
    before = start_daemon()
    job = old_job(before)
    before.stop()
    shutil.rmtree(before.data_dir)
    return start_daemon(home=before.home), job


def findings(connmgr: CommandLine) -> list[dict[str, Any]]:
    """Return doctor's findings about jobs; there may be no other problems."""
    return [one for one in connmgr("doctor", "--json").json if one["subject"] == "jobs"]


def test_orphans_are_listed_and_removed(left: tuple[Daemon, str]) -> None:
    daemon, job = left
    connmgr = CommandLine(daemon)
    assert connmgr("job", "orphans", "local").output.split() == [job, "exited", "2", "d"]
    (one,) = connmgr("job", "orphans", "local", "--json").json
    assert (one["job"], one["state"], one["removed"]) == (job, "exited", False)
    assert connmgr("job", "orphans", "local", "--min-age", "400000", "--remove").output == ""
    assert connmgr("job", "orphans", "--remove", "local").output.split() == [job, "exited", "2", "d", "removed"]
    assert connmgr("job", "orphans", "local").output == ""
    assert connmgr("job", "orphans", "local", "--json").json == []
    connmgr("job", "orphans", "nowhere", code=5)


def test_doctor_tells_of_them_where_a_shell_runs(left: tuple[Daemon, str]) -> None:
    daemon, job = left
    connmgr = CommandLine(daemon)
    assert findings(connmgr) == [], "doctor has opened a link"
    assert daemon.client.daemon.status().sessions == []
    daemon.client.shell.start(LOCAL_MACHINE)
    (found,) = findings(connmgr)
    assert found["result"] == "warning"
    assert "keeps 1 job " in found["message"]
    command = "connmgr job orphans 'local machine' --remove"
    assert command in found["advice"]
    assert job in connmgr(*command.replace("'local machine'", "local").split()[1:]).output
    (found,) = findings(connmgr)
    assert (found["result"], found["message"]) == ("ok", "no leftovers on 1 connection with a running shell")


def test_doctor_passes_over_what_cannot_be_asked(start_daemon: StartDaemon, gate: Path) -> None:
    daemon = start_daemon("--threads", "1")
    client = daemon.client
    client.shell.start(LOCAL_MACHINE)
    with ThreadPoolExecutor(1) as pool, client_of(daemon) as other:
        running = pool.submit(other.shell.exec, LOCAL_MACHINE, f"read line <{gate}")
        eventually_equal(lambda: client.daemon.status().slots.in_use, 1, "the command does not run")
        (found,) = findings(CommandLine(daemon))
        gate.write_text("end\n")
        running.result(20)
    assert (found["result"], found["message"]) == ("ok", "1 connection could not be asked for leftovers")


def test_doctor_says_nothing_of_jobs_where_no_daemon_runs(own_daemon: Daemon) -> None:
    own_daemon.client.shell.start(LOCAL_MACHINE)
    own_daemon.kill()
    assert findings(CommandLine(own_daemon)) == []


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Sshd]:
    """An sshd whose logins have a separate home, in which no other test has jobs."""
    (tmp_path / "far").mkdir()
    with ssh_server(tmp_path / "far") as server:
        yield server


@pytest.mark.needs("sshd")
def test_over_ssh_what_ran_when_its_connection_was_removed_is_found_by_the_next_one(
    clean_connmgr: CommandLine, server: Sshd
) -> None:
    jobs = "${XDG_STATE_HOME:-$HOME/.local/state}/connmgr/jobs"

    def begin(command: str) -> str:
        return clean_connmgr("exec", "--detach", "web", "--", command).output.strip()

    def listed(*options: str) -> list[str]:
        return clean_connmgr("job", "orphans", "web", *options).output.split()

    clean_connmgr.add_ssh("web", server)
    clean_connmgr("exec", "web", "--", "mkfifo gate")
    running, ended = begin("read line <gate"), begin("echo done")
    clean_connmgr("job", "wait", ended)
    clean_connmgr("rm", "--yes", "web")
    clean_connmgr.add_ssh("web", server)
    name = running.replace("-", "")
    assert clean_connmgr("exec", "web", "--", f'ls "{jobs}"').output.split() == [name], (
        "the job that ended was not cleared"
    )
    clean_connmgr("exec", "web", "--", f'touch -t 202001010000 "{jobs}/{name}/runner"')
    assert listed()[:2] == [running, "running"]
    assert "removed" not in listed("--remove")
    clean_connmgr("exec", "web", "--", "echo end >gate; rm gate")
    eventually(listed, "the job did not end", holds=lambda seen: "exited" in seen)
    assert listed("--remove")[-1] == "removed"
    assert clean_connmgr("exec", "web", "--", f'ls "{jobs}"').output == ""
