"""Signals reach all processes of a job and no others; the remote host ends a job after its timeout."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from connmgr import errors
from connmgr.jobs.launch import Launch
from tests.deadlines import eventually_equal
from tests.jobs.conftest import Jobs, new_id

STUBBORN = b"trap '' TERM; echo ready; while :; do sleep 1; done"
FAMILY = b"sleep 1000 & (setsid sleep 1001 &); (setsid sh -c 'sleep 1002 & sleep 1003' &); echo ready; sleep 1004"


def processes_of(id: str) -> list[psutil.Process]:
    """Return the processes that have the job in their environment, the runner and its helpers included."""
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            spawned = id in (environment.get("CONNMGR_JOB"), environment.get("CONNMGR_SPOOL"))
            if spawned and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


@contextmanager
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1005"]) as stranger:
        try:
            yield stranger
        finally:
            stranger.kill()


def ready(jobs: Jobs, text: bytes) -> str:
    id = jobs.start(Launch(new_id(), text))
    jobs.await_that(id, lambda read: b"ready\n" in read.stdout)
    return id


@pytest.mark.parametrize("signal", ["TERM", "KILL"])
def test_no_process_is_left_and_no_other_is_met(jobs: Jobs, signal: str) -> None:
    id, other = ready(jobs, FAMILY), ready(jobs, FAMILY)
    with sleeping() as stranger:
        jobs.remote.kill(id, signal, None, 20)
        done = jobs.ended(id)
        assert done.seen.state == "killed"
        assert done.seen.exit_code == {"TERM": 143, "KILL": 137}[signal]
        eventually_equal(lambda: processes_of(id), [], "processes of the job are left")
        assert stranger.poll() is None
    assert jobs.look(other).state == "running"


def test_at_once_after_the_start(jobs: Jobs) -> None:
    for _ in range(5):
        id = jobs.start(Launch(new_id(), b"sleep 1000"))
        jobs.remote.kill(id, "TERM", None, 20)
        assert jobs.ended(id).seen.state == "killed"


def test_a_job_that_ignores_the_signal_is_killed_after_the_grace(jobs: Jobs) -> None:
    id = ready(jobs, STUBBORN)
    assert jobs.remote.kill(id, "TERM", None, 20).state == "running"
    assert jobs.remote.kill(id, "TERM", 0.3, 20).state == "running"
    done = jobs.ended(id)
    assert (done.seen.state, done.seen.exit_code) == ("killed", 137)
    eventually_equal(lambda: processes_of(id), [], "processes of the job are left")


def test_other_signals_are_the_command_s_to_handle(jobs: Jobs) -> None:
    id = ready(jobs, b"trap 'echo used' USR1; trap 'echo bye; exit 9' INT; echo ready; while :; do sleep 0.1; done")
    jobs.remote.kill(id, "HUP", None, 20)
    jobs.remote.kill(id, "WINCH", None, 20)
    assert jobs.look(id).state == "running"
    jobs.remote.kill(id, "INT", None, 20)
    done = jobs.ended(id)
    assert (done.seen.state, done.seen.exit_code, done.stdout) == ("exited", 9, b"ready\nbye\n")


def test_a_job_that_has_ended_stays_as_it_was(jobs: Jobs) -> None:
    id = jobs.start(Launch(new_id(), b"exit 3"))
    jobs.ended(id)
    seen = jobs.remote.kill(id, "KILL", None, 20)
    assert (seen.state, seen.exit_code) == ("exited", 3)
    assert jobs.remote.kill(new_id(), "KILL", None, 20).state == "gone"


def test_an_unknown_signal_is_refused(jobs: Jobs) -> None:
    for name in ("SIGTERM", "9", "", "TERM; touch x"):
        with pytest.raises(errors.InvalidRequest):
            jobs.remote.kill(new_id(), name, None, 20)


def test_a_command_that_kills_its_group_does_not_meet_its_runner(jobs: Jobs) -> None:
    assert jobs.done(Launch(new_id(), b"echo x; kill 0; sleep 100")).seen.exit_code == 143
    assert jobs.done(Launch(new_id(), b"echo x; kill -KILL 0; sleep 100")).seen.exit_code == 137


def test_time_runs_out(jobs: Jobs) -> None:
    done = jobs.done(Launch(new_id(), FAMILY, timeout=2))
    assert (done.seen.state, done.seen.exit_code, done.stdout) == ("timed_out", 143, b"ready\n")
    done = jobs.done(Launch(new_id(), b"exit 3", timeout=100))
    assert (done.seen.state, done.seen.exit_code) == ("exited", 3)


@pytest.mark.slow
def test_a_job_that_ignores_its_timeout_is_killed(jobs: Jobs) -> None:
    id = jobs.start(Launch(new_id(), STUBBORN, timeout=1))
    done = jobs.ended(id)
    assert (done.seen.state, done.seen.exit_code) == ("timed_out", 137)
    eventually_equal(lambda: processes_of(id), [], "processes of the job are left")


def test_a_job_that_ended_in_time_leaves_nothing(jobs: Jobs) -> None:
    id = jobs.start(Launch(new_id(), b"cat; echo done", stdin=None, timeout=1000))
    jobs.remote.input(id, b"x", True, 20)
    jobs.ended(id)
    eventually_equal(lambda: processes_of(id), [], "processes of the job are left")


def test_a_number_that_another_process_has_got_is_not_met(jobs: Jobs, home: Path) -> None:
    id = ready(jobs, b"echo ready; sleep 1000")
    for process in processes_of(id):
        process.kill()
    with sleeping() as stranger:
        stat = Path(f"/proc/{stranger.pid}/stat").read_text().rpartition(")")[2].split()
        _, _, boot, *rest = (home / id / "runner").read_text().split("\n")[0].split()
        (home / id / "runner").write_text(" ".join([str(stranger.pid), stat[19], boot, *rest]) + "\n")
        assert jobs.look(id).state == "lost"
        jobs.remote.kill(id, "KILL", None, 20)
        assert stranger.poll() is None
