"""Work that waits for input is shown as such, to whoever may read what it printed."""

from __future__ import annotations

from typing import Any

import pytest

from connmgr.client import LOCAL_MACHINE
from connmgr.client.jobs import OPEN
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS, eventually
from tests.events.listening import Listening
from tests.rights import wire

QUESTION = "printf 'Delete all? [y/N] '; read answer; echo got $answer; read last"


@pytest.fixture
def shell(daemon: Daemon) -> str:
    daemon.client.shell.start(LOCAL_MACHINE)
    return LOCAL_MACHINE


def test_a_job_that_reads_its_open_input_waits_until_it_gets_some(daemon: Daemon, shell: str) -> None:
    holder = wire.create(daemon, "job", "shell.any", "connection.read")
    client = daemon.client
    with Listening(daemon.url, holder.secret, kinds=["job"]) as events:
        job = client.jobs.start(shell, QUESTION, stdin=OPEN)
        found = job.output(until_input=True, wait=25).waiting
        assert found is not None
        assert (found.lines, found.certain, found.secret) == (["Delete all? [y/N] "], True, False)
        events.until("job", "waiting", id=job.id)
        assert job.info().waiting == found
        assert [one.waiting for one in client.jobs.query() if one.id == job.id] == [found]
        job.input("n\n")
        events.until("job", "running", id=job.id)
        again = eventually(lambda: job.info().waiting, "it never waited again", holds=lambda waits: waits is not None)
        assert again is not None
        assert (again.lines, again.since > found.since) == (["Delete all? [y/N] got n"], True)
        job.input("", eof=True)
        assert job.wait(DEADLINE_SECONDS).waiting is None


def test_a_job_that_prints_a_prompt_and_works_on_does_not_wait(daemon: Daemon, shell: str) -> None:
    jobs = daemon.client.jobs
    working = jobs.start(shell, "printf 'Password: '; exec sleep 1000", stdin=OPEN)
    waiting = jobs.start(shell, QUESTION, stdin=OPEN)
    # Both are looked at alike, this one later.
    assert waiting.output(until_input=True, wait=25).waiting is not None
    assert working.info().waiting is None
    for job in (working, waiting):
        job.remove(force=True)


def test_a_terminal_without_echo_waits_for_a_secret_until_something_is_typed(daemon: Daemon, shell: str) -> None:
    terminals = daemon.client.terminal
    holder = wire.create(daemon, "terminal", "shell.any", "connection.read")
    with Listening(daemon.url, holder.secret, kinds=["terminal"]) as events:
        opened = terminals.open(shell, command="stty -echo; printf 'Password: '; read word; sleep 1000")
        events.until("terminal", "waiting", id=opened)
        seen = next(one for one in terminals.query() if one["terminal"] == opened)["waiting"]
        assert (seen["lines"], seen["certain"], seen["secret"]) == (["Password:"], True, True)
        assert terminals.screen(opened)["waiting"] == seen
        terminals.input(opened, b"secret\r")
        events.until("terminal", "running", id=opened)
        assert "waiting" not in terminals.screen(opened)
    terminals.close(opened)


def test_a_command_that_runs_on_as_a_job_says_that_it_waits(daemon: Daemon, shell: str) -> None:
    words = "sleep 1000 | script -qc 'printf Sure?; read answer' /dev/null"
    begun: list[str] = []

    def run_on() -> dict[str, Any] | None:
        # Where the machine is too busy to show it in time, the next one gets more.
        after = 3 * (1 + len(begun))
        answer = daemon.client.post("/shell/exec", connection=shell, command=words, detachAfter=after)
        begun.append(answer["job"])
        waits: dict[str, Any] | None = answer.get("waiting")
        return waits

    seen = eventually(run_on, "no command was seen to wait", holds=lambda waits: waits is not None)
    assert seen is not None
    assert (seen["lines"], seen["certain"]) == (["Sure?"], True)
    for job in begun:
        daemon.client.jobs.get(job).remove(force=True)
