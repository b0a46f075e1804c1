"""``connmgr run`` on a terminal: its table, and what Ctrl-C asks."""

from __future__ import annotations

import pytest

from tests.cli.program import CommandLine, finish
from tests.deadlines import eventually
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
