"""``connmgr approve``: waiting requests are listed, shown whole, and decided."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.wire import LOCAL
from tests.cli.program import CommandLine, finish
from tests.rights.wire import Holder, create

HOSTILE = "echo 'a\x1b[2J\u202e' \\\u0430\nrm -rf /"


@pytest.fixture
def holder(connmgr: CommandLine) -> Holder:
    return create(connmgr.daemon, "shell.any", "job", name="ni\x1bght", rules=[{"effect": "ask", "text": "."}])


def asked(holder: Holder, **body: Any) -> str:
    answer = holder.send("/shell/exec", connection=LOCAL, start=True, **body)
    assert answer.code == "approval_required"
    return str(answer.json["approval"])


def test_pending_approvals_are_listed(connmgr: CommandLine, holder: Holder) -> None:
    id = asked(holder, command=HOSTILE)
    [line] = [line for line in connmgr("approve").output.splitlines() if line.startswith(id)]
    assert r"ni\x1bght" in line
    assert "\"echo 'a\\u001b[2J" in line
    assert id in [one["approval"] for one in connmgr("approve", "--json").json]


def test_a_pending_command_is_shown_whole_and_escaped(connmgr: CommandLine, holder: Holder) -> None:
    id = asked(holder, command=HOSTILE, env={"A": "x\ny"}, stdin="in", cwd="/tmp")
    done = connmgr("approve", id, "--once")
    lines = [line.strip() for line in done.errors.splitlines()]
    assert "\"echo 'a\\u001b[2J\\u202e' \\\\\u0430\\n\"" in lines
    assert '"rm -rf /"' in lines
    assert '"A" = "x\\ny"' in lines
    assert '"in"' in lines
    assert "U+0430 CYRILLIC SMALL LETTER A" in lines
    assert 'shell.exec on "local machine"' in lines
    assert "\x1b" not in done.output + done.errors
    assert "\u202e" not in done.output + done.errors


def test_an_argv_is_shown_word_by_word(connmgr: CommandLine, holder: Holder) -> None:
    answer = holder.send("/job/start", connection=LOCAL, argv=["printf", "a b", "", "c\n"])
    connmgr.daemon.client.shell.start(LOCAL)
    id = answer.json["approval"]
    lines = [line.strip() for line in connmgr("approve", id, "--deny").errors.splitlines()]
    at = lines.index('"printf"')
    assert lines[at : at + 4] == ['"printf"', '"a b"', '""', '"c\\n"']
    assert holder.refused("/job/start", connection=LOCAL, argv=["printf", "a b", "", "c\n"]) == "approval_denied"


def test_decisions_are_taken_by_the_beginning_of_the_uuid(connmgr: CommandLine, holder: Holder) -> None:
    body = {"connection": LOCAL, "command": "echo once", "start": True}
    once = asked(holder, command="echo once")
    refusal = connmgr("approve", once[:8], "--once", code=5).errors
    assert f"give the whole uuid: {once}" in refusal
    assert "echo once" in connmgr("approve", once[:8], "--json").output
    assert "No approval has the uuid" in connmgr("approve", once[:7], "--json", code=5).errors
    connmgr("approve", once, "--once")
    assert holder.ok("/shell/exec", **body)["stdout"] == "once"
    id = asked(holder, command="echo once")
    assert connmgr("approve", id, "--grant", "30m", "--json").json["state"] == "granted"
    assert holder.ok("/shell/exec", **body)["stdout"] == "once"
    assert holder.ok("/shell/exec", **body)["stdout"] == "once"
    connmgr("approve", id, "--deny")
    assert holder.refused("/shell/exec", **body) == "approval_denied"


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["ffffffff"], 5, "No approval has the uuid 'ffffffff'"),
        (["--once"], 2, "Name the APPROVAL to decide about"),
        (["abcd", "--once", "--deny"], 2, "Give one of"),
        (["abcd", "--grant", "2d"], 2, "'2d' is too long: at most 1d"),
        (["abcd", "--grant", "0s"], 2, "'0s' is too short"),
    ],
)
def test_impossible_decisions_are_reported(connmgr: CommandLine, arguments: list[str], code: int, told: str) -> None:
    assert told in connmgr("approve", *arguments, code=code).errors


def test_without_a_terminal_nothing_is_decided(connmgr: CommandLine, holder: Holder) -> None:
    id = asked(holder, command="echo alone")
    assert "not a terminal" in connmgr("approve", id, stdin="once\n", code=2).errors
    assert asked(holder, command="echo alone") == id


@pytest.mark.parametrize(
    ("typed", "state"), [("once", "once"), ("10m", "granted"), ("deny", "denied"), ("", "pending")]
)
def test_a_person_is_asked(connmgr: CommandLine, holder: Holder, typed: str, state: str) -> None:
    id = asked(holder, command=f"echo typed {typed}")
    terminal = connmgr.on_terminal("approve", id)
    terminal.expect_exact(f'"echo typed {typed}"')
    terminal.expect("Approve this")
    terminal.sendline(typed)
    assert finish(terminal)[0] == 0
    states = ["pending", "once", "granted", "denied"]
    found = connmgr.daemon.client.post("/approval/query", states=states)["approvals"]
    assert [one["state"] for one in found if one["approval"] == id] == [state]
