"""``connmgr events``, and ``connmgr approve --watch``: what happens, line by line."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pexpect
import pytest

from tests.api.wire import LOCAL, add
from tests.cli.program import DIRECTORY, CommandLine
from tests.deadlines import DEADLINE_SECONDS, eventually
from tests.rights.wire import Holder, create

INTERRUPTED = 130


@contextmanager
def following(connmgr: CommandLine, *arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[IO[str]]:
    """Run a command that does not end by itself, yield its output, and end it by Ctrl-C."""
    process = subprocess.Popen(
        [DIRECTORY / "connmgr", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=connmgr.environment | dict(environment or {}),
    )
    assert process.stdout is not None
    with process.stdout:
        try:
            yield process.stdout
            process.send_signal(signal.SIGINT)
            assert process.wait(DEADLINE_SECONDS) == INTERRUPTED
        finally:
            process.kill()
            process.wait()


def line_with(output: IO[str], word: str) -> str:
    """Return the next line that contains ``word``."""
    return next(line for line in output if word in line)


def test_events_are_printed_as_json_and_for_people(connmgr: CommandLine) -> None:
    client = connmgr.daemon.client
    with following(connmgr, "events", "--json", "--kind", "connection", "--kind", "shell") as output:
        begun = json.loads(output.readline())
        assert (begun["kind"], begun["change"]) == ("stream", "begun")
        id = add(client, "ni\x01ght", type="ssh", host="night.example")
        event: dict[str, Any] = json.loads(output.readline())
        assert (event["change"], event["connection"], event["name"]) == ("added", id, "ni\x01ght")
    with following(connmgr, "events", "--after", str(begun["number"])) as output:
        assert line_with(output, "added").split("  ", 1)[1].strip() == ("connection  added  ni\\x01ght")
        client.shell.start(LOCAL)
        assert line_with(output, "shell").endswith("shell  started  local machine\n")
        client.post("/shell/stop", connection=LOCAL)


def test_an_unknown_kind_names_those_that_there_are(connmgr: CommandLine) -> None:
    assert "approval" in connmgr("events", "--kind", "weather", code=2).errors


@pytest.fixture
def holder(connmgr: CommandLine) -> Holder:
    return asking(connmgr)


def asking(connmgr: CommandLine) -> Holder:
    """Return a new token whose every command waits for an approval."""
    return create(connmgr.daemon, "shell.any", name="ni\x1bght", rules=[{"effect": "ask", "text": "."}])


def asked(holder: Holder, command: str) -> str:
    answer = holder.send("/shell/exec", connection=LOCAL, start=True, command=command)
    assert answer.code == "approval_required"
    return str(answer.json["approval"])


def noticing(directory: Path, exits: int) -> dict[str, str]:
    """Return the variables with which notices of the desktop go to a file, by a program that ``exits``."""
    directory.mkdir()
    program = directory / "notify-send"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >>{directory}/notices\nexit {exits}\n')
    program.chmod(0o755)
    return {"PATH": f"{directory}:{DIRECTORY}:/usr/bin:/bin"}


def test_requests_are_shown_as_they_come(own_connmgr: CommandLine, tmp_path: Path) -> None:
    # Whatever waits in the daemon is shown and noticed: a shared one has requests of earlier tests.
    holder = asking(own_connmgr)
    before = asked(holder, "echo before")
    environment = noticing(tmp_path / "desktop", 0)
    with following(own_connmgr, "approve", "--watch", "--notify", environment=environment) as output:
        assert line_with(output, "echo before")
        assert line_with(output, "decide: ").endswith(f"connmgr approve {before}\n")
        meanwhile = asked(holder, "echo meanwhile")
        assert line_with(output, "echo meanwhile")
        own_connmgr("approve", meanwhile, "--deny")
        assert line_with(output, "denied") == f"{meanwhile}  denied\n"
        notices = tmp_path / "desktop" / "notices"
        told = eventually(notices.read_text, "a notice is missing", holds=lambda text: text.count("asks") == 2)
        # Neither the words of the request nor control characters are in the argv of a program.
        assert set(told.splitlines()) == {"--", "connmgr: ni\\x1bght asks for an approval."}
    with following(own_connmgr, "approve", "--watch", "--json") as output:
        assert json.loads(output.readline())["approval"] == before
        own_connmgr("approve", before, "--deny")
        assert json.loads(output.readline()) == {"approval": before, "state": "denied"}
    assert notices.read_text() == told


def test_a_terminal_is_noticed_where_there_is_no_desktop(connmgr: CommandLine, holder: Holder, tmp_path: Path) -> None:
    id = asked(holder, "echo terminal")
    environment = connmgr.environment | noticing(tmp_path / "desktop", 1)
    command = pexpect.spawn(
        str(DIRECTORY / "connmgr"), ["approve", "--watch", "--notify"], env=environment, timeout=DEADLINE_SECONDS
    )
    command.expect_exact("\x1b]9;ni\\x1bght asks for an approval.\x07")
    command.sendintr()
    command.expect(pexpect.EOF)
    command.close()
    assert command.exitstatus == INTERRUPTED
    connmgr("approve", id, "--deny")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--notify"], "--notify needs --watch"),
        (["--watch", "--deny"], "Name the APPROVAL"),
        (["--watch", "ffffffff"], "--watch cannot be combined"),
    ],
)
def test_contradicting_options_are_refused(connmgr: CommandLine, arguments: list[str], told: str) -> None:
    assert told in connmgr("approve", *arguments, code=2).errors
