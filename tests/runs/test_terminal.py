"""``connmgr run``: its table on a terminal, what Ctrl-C asks, its exit codes, and what it reads."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import IO

import pytest

from tests.cli.program import CommandLine, finish
from tests.conftest import StartDaemon
from tests.deadlines import DEADLINE_SECONDS, eventually
from tests.runs.conftest import Hosts

ASKS = r"Stop the run, kill what runs, or leave it running\? \(stop, kill, leave\) \[leave\]: "


@pytest.mark.parametrize(
    ("answer", "said", "state"),
    [("kill", "The run was stopped.", "stopped"), ("", "The run goes on: `connmgr run watch", "done")],
)
def test_ctrl_c_asks_what_becomes_of_the_run(hosts: Hosts, answer: str, said: str, state: str) -> None:
    name, gate = f"asked-{state}", hosts.far / f"gate-{state}"
    command = f"{hosts.noting(name)}; while ! test -e {gate}; do sleep 0.05; done"
    terminal = CommandLine(hosts.daemon).on_terminal("run", "**/host0", "**/host1", "--name", name, "--", command)
    eventually(lambda: hosts.begun(name), "two never begin", holds=lambda found: len(found) == 2)
    # The table names what runs.
    terminal.expect(r"2 starting")
    terminal.expect("host1")
    terminal.sendintr()
    terminal.expect(ASKS)
    terminal.sendline(answer)
    code, shown = finish(terminal)
    assert said in shown
    assert code == 130
    gate.touch()
    [run] = hosts.client.runs.query(name=name)
    assert hosts.ended(run.run).state == state


def test_a_machine_that_is_away_is_no_success_of_the_program(hosts: Hosts) -> None:
    connmgr = CommandLine(hosts.daemon)
    done = connmgr("run", "**/host0", "away", "--name", "partly", "--", "true", code=1)
    assert "done: 1 done, 1 unreachable" in done.errors
    connmgr("run", "watch", "partly", code=1)
    connmgr("run", "**/host0", "--", "true")


def test_input_is_passed_on_or_left_but_never_dropped(hosts: Hosts) -> None:
    connmgr = CommandLine(hosts.daemon)
    before = len(hosts.client.runs.query(limit=1000))
    dropped = connmgr("run", "**/host0", "--", "cat", stdin="data", code=125)
    assert "there is standard input, which a run does not read" in dropped.errors
    assert len(hosts.client.runs.query(limit=1000)) == before
    assert "data" in connmgr("run", "**/host0", "--stdin", "--", "cat", stdin="data").output
    assert "data" not in connmgr("run", "**/host0", "-n", "--", "cat", stdin="data").output
    connmgr("run", "**/host0", "--stdin", "-n", "--", "cat", code=2)


def test_an_earlier_run_with_the_key_is_told(hosts: Hosts) -> None:
    connmgr = CommandLine(hosts.daemon)
    assert "Nothing was begun" not in connmgr("run", "**/host0", "--key", "once", "--", "echo", "first").errors
    again = connmgr("run", "**/host0", "--key", "once", "--", "echo", "first")
    assert "Nothing was begun: the run of " in again.errors
    assert "has this key, 'echo first'." in again.errors
    assert "Take another key" in connmgr("run", "**/host1", "--key", "once", "--", "echo", "x", code=None).errors
    assert "cannot fail" in connmgr("run", "**/host0", "--stop-after", "500", "--", "true").errors


def test_a_run_is_followed_across_a_restart_of_the_daemon(
    port: str, start_daemon: StartDaemon, gate: Path, tmp_path: Path
) -> None:
    daemon, began = start_daemon("--port", port), tmp_path / "began"
    words = ["run", "local", "--as", "job", "--", f"echo x >>{began}; cat {gate}"]
    connmgr = CommandLine(daemon)
    with subprocess.Popen([connmgr.program, *words], env=connmgr.environment, stderr=subprocess.PIPE) as process:
        eventually(began.exists, "the run does not begin")
        daemon.kill()
        assert process.stderr is not None
        # It tells of the daemon's end; until then it may not have noticed.
        said = _read_until(process.stderr, b"Waiting.")
        start_daemon("--port", port, home=daemon.home)
        gate.write_text("done")
        said += process.communicate(timeout=DEADLINE_SECONDS)[1]
    assert process.returncode == 0, said
    assert b"done: 1 done" in said
    assert began.read_text() == "x\n"


def _read_until(stream: IO[bytes], end: bytes) -> bytes:
    said = b""
    for line in stream:
        said += line
        if end in line:
            break
    return said
