"""``connmgr disconnect``, and the shells in ``status`` and ``info`` before it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pexpect
import pytest

from tests.cli.conftest import StartSshd
from tests.cli.program import DIRECTORY, CommandLine, finish
from tests.deadlines import DEADLINE_SECONDS, eventually

pytestmark = pytest.mark.needs("bash")


@contextmanager
def killing(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill a process after a failed assertion, since its ``with`` would wait for it."""
    try:
        yield
    finally:
        process.kill()


def test_disconnect_ends_all_shells_and_their_commands(clean_connmgr: CommandLine, gate: Path) -> None:
    connmgr = clean_connmgr
    connmgr("exec", "local", "--", "cd /usr")
    work = [DIRECTORY / "connmgr", "exec", "--session", "build", "local", "--", f"cd /etc; echo begun; cat {gate}"]
    process = subprocess.Popen(work, env=connmgr.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process, killing(process):
        assert process.stdout
        assert process.stdout.readline() == b"begun\n"
        own, build = connmgr("status").output.splitlines()[-2:]
        assert re.fullmatch(r"  local machine +idle for \d+ s +started \d+ s ago +/usr", own), own
        assert build.strip().startswith("local machine [build]  a command runs for ")
        shown = connmgr("info", "local").output
        assert "shell" in shown
        assert "in /usr" in shown
        assert "a command runs for" in shown
        listed = connmgr("status", "--json").json["shells"]
        assert sorted(one.get("session", "") for one in listed) == ["", "build"]
        assert connmgr("disconnect", "local").output == "local machine: 2 shells ended: the shared shell, build\n"
        assert process.wait(DEADLINE_SECONDS) == 125
    assert connmgr.daemon.client.shell.list() == []
    assert connmgr("disconnect", "local").output == "local machine: no shell runs\n"
    assert connmgr("exec", "local", "--", "pwd").output == f"{connmgr.daemon.home}\n"


def test_disconnect_ends_one_shell_by_its_name(clean_connmgr: CommandLine) -> None:
    clean_connmgr("exec", "local", "--", "true")
    clean_connmgr("exec", "--session", "build", "local", "--", "true")
    done = clean_connmgr("disconnect", "--session", "build", "local", environment={"CONNMGR_SESSION": "other"})
    assert done.output == "local machine: 1 shell ended: build\n"
    assert [one.status.session for one in clean_connmgr.daemon.client.shell.list()] == [None]
    assert clean_connmgr("disconnect", "local", environment={"CONNMGR_SESSION": "other"}).output == (
        "local machine: 1 shell ended: the shared shell\n"
    )


@pytest.mark.needs("sshd")
def test_disconnect_ends_the_link_though_jobs_have_used_it(clean_connmgr: CommandLine, start_sshd: StartSshd) -> None:
    server = start_sshd()
    clean_connmgr.add_ssh("web", server)
    job = clean_connmgr("exec", "--detach", "web", "--", "sleep 100").output.strip()
    clean_connmgr("job", "logs", job)
    logins = server.log().count("Accepted publickey")
    clean_connmgr("disconnect", "web")
    clean_connmgr("exec", "web", "--", "true")
    assert server.log().count("Accepted publickey") == logins + 1, "the next command did not log in again"
    assert clean_connmgr("job", "ls").output.count("running") == 1
    clean_connmgr("job", "kill", job)
    eventually(
        lambda: clean_connmgr("job", "ls").output, "the job does not end", holds=lambda seen: "running" not in seen
    )


def test_start_and_restart_act_on_the_shells_of_all_that_match(clean_connmgr: CommandLine) -> None:
    connmgr, client = clean_connmgr, clean_connmgr.daemon.client
    ids = [client.connection.add(f"box{one}", {"type": "local", "shell": f"/{'./' * one}bin/sh"}) for one in (1, 2)]
    assert connmgr("start", "box*").output == "box1: the shell was started\nbox2: the shell was started\n"
    connmgr("exec", "box1", "--", "cd /usr")
    done = connmgr("start", "box1", "local", "--json").json
    assert [(one["name"], one["done"]) for one in done] == [
        ("box1", "the shell runs already"),
        ("local machine", "the shell was started"),
    ]
    assert connmgr("exec", "box1", "--", "pwd").output == "/usr\n"
    refusal = connmgr("restart", "box*", code=2).errors
    assert "--yes" in refusal
    assert connmgr("restart", "box*", "--dry-run").output == "restart  box1  1 shell\nrestart  box2  1 shell\n"
    assert connmgr("exec", "box1", "--", "pwd").output == "/usr\n"
    assert connmgr("restart", "box*", "--yes").output.count("started anew") == 2
    assert connmgr("exec", "box1", "--", "pwd").output == f"{connmgr.daemon.home}\n"
    assert connmgr("restart", "box1").output == "box1: the shell was started anew\n"
    assert "--yes" in connmgr("disconnect", "box*", code=2).errors
    assert len(client.shell.list(ids[0])) == 1
    code, shown = finish(answering(connmgr.on_terminal("disconnect", "box*"), "End 2 shells of 2 connections?", "y"))
    assert code == 0
    assert "box2: 1 shell ended" in shown
    assert client.shell.list(ids[0]) == []


def test_a_shell_that_cannot_be_started_spares_the_others(clean_connmgr: CommandLine) -> None:
    clean_connmgr.daemon.client.connection.add("odd", {"type": "local", "shell": "/nonexistent"})
    done = clean_connmgr("start", "odd", "local", "--json", code=1).json
    assert {one["name"]: one.get("done") for one in done} == {
        "local machine": "the shell was started",
        "odd": None,
    }
    assert done[1]["error"]["code"] == "unsupported_shell"


def answering(terminal: pexpect.spawn, question: str, answer: str) -> pexpect.spawn:
    """Answer a question on a terminal."""
    terminal.expect_exact(question)
    terminal.sendline(answer)
    return terminal
