"""``connmgr terminal``: listing, showing and closing terminals."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from connmgr.cli.exits import NOT_FOUND
from connmgr.client import LOCAL_MACHINE
from tests.cli.program import CommandLine


@pytest.fixture
def opened(connmgr: CommandLine) -> Iterator[str]:
    """A terminal that shows a line."""
    client = connmgr.daemon.client
    terminal = client.terminal.open(LOCAL_MACHINE, command="printf 'hello\\n'; exec sleep 1000")
    output = client.terminal.output(terminal, wait=20)
    assert b"hello" in output.data
    yield terminal
    client.terminal.close(terminal)


def test_terminals_are_listed(connmgr: CommandLine, opened: str) -> None:
    listed = next(line for line in connmgr("terminal", "ls").output.splitlines() if opened in line)
    assert listed.split()[:5] == [opened, "local", "machine", "running", "-"]
    assert listed.endswith("exec sleep 1000")
    assert opened in [one["terminal"] for one in connmgr("terminal", "ls", "loc*", "--json").json]
    assert "No connection is called 'nothing'" in connmgr("terminal", "ls", "nothing", code=NOT_FOUND).errors
    assert connmgr("terminal", "screen", opened[:8]).code == 0
    for part in (opened[:8], "loc"):
        assert "is neither a uuid nor a connection" in connmgr("terminal", "close", part, code=NOT_FOUND).errors


def test_a_terminal_on_an_address_is_listed(connmgr: CommandLine) -> None:
    client = connmgr.daemon.client
    address = client.connection.add("address", {"type": "local", "shell": "/bin/sh"}, temporary=True)
    terminal = client.terminal.open(address, command="exec sleep 1000")
    listed = connmgr("terminal", "ls", "--json").json
    others = connmgr("terminal", "ls", "local*", "--json").json
    client.terminal.close(terminal)
    assert terminal in [one["terminal"] for one in listed]
    assert terminal not in [one["terminal"] for one in others]


def test_an_argv_is_listed_as_it_would_be_typed(connmgr: CommandLine) -> None:
    client = connmgr.daemon.client
    terminal = client.terminal.open(LOCAL_MACHINE, argv=["sleep", "1000", "it's"])
    listed = next(line for line in connmgr("terminal", "ls").output.splitlines() if terminal in line)
    client.terminal.close(terminal)
    assert listed.endswith(shlex.join(["sleep", "1000", "it's"]))


def test_a_screen_is_printed(connmgr: CommandLine, opened: str) -> None:
    assert connmgr("terminal", "screen", opened[:13]).output == "hello\n"
    assert connmgr("terminal", "screen", opened, "--json").json["lines"][0] == "hello"


def test_a_terminal_is_closed(connmgr: CommandLine, opened: str) -> None:
    done = connmgr("terminal", "close", opened)
    assert (done.code, done.output) == (0, "")
    # The screen of an ended terminal can still be shown.
    assert connmgr("terminal", "screen", opened).output == "hello\n"
    listed = next(line for line in connmgr("terminal", "ls").output.splitlines() if opened in line)
    assert "closed" in listed
    missing = connmgr("terminal", "screen", "ffffffff-0000", code=NOT_FOUND)
    assert "No such terminal" in missing.errors


def test_recordings_are_listed_searched_and_exported(connmgr: CommandLine, tmp_path: Path) -> None:
    client = connmgr.daemon.client
    terminal = client.terminal.open(LOCAL_MACHINE, command="echo Hello there", record=True)
    assert client.terminal.output(terminal, wait=20).data
    listed = next(line for line in connmgr("terminal", "recordings").output.splitlines() if terminal in line)
    assert listed.endswith("echo Hello there")
    found = connmgr("terminal", "recordings", "local*", "--json").json
    assert terminal in [one["recording"] for one in found]
    matches = connmgr("terminal", "recordings", "--search", "hello THERE").output.splitlines()
    assert any(line.startswith(terminal) and line.endswith(" s  Hello there") for line in matches)
    target = tmp_path / "demo.cast"
    connmgr("terminal", "export", terminal[:8], str(target))
    assert target.stat().st_mode & 0o777 == 0o600
    assert json.loads(target.read_text().splitlines()[0])["version"] == 3
    assert connmgr("terminal", "export", terminal).output == target.read_text()
    assert "exists already" in connmgr("terminal", "export", terminal, str(target), code=1).errors
    assert "0 recordings" in connmgr("terminal", "export", "00000000", code=NOT_FOUND).errors
