"""Commands and jobs, as an agent runs and follows them."""

from __future__ import annotations

import threading
import time
from operator import not_
from pathlib import Path
from typing import Any

import anyio
import pytest

from connmgr.client import LOCAL_MACHINE, Client
from connmgr.mcp import bridge as bridges
from connmgr.mcp import call as calls
from connmgr.mcp import output
from connmgr.mcp.bridge import Bridge
from tests.daemon import Daemon
from tests.mcp.agent import LOCAL, MODES, soon
from tests.mcp.near import EVERYTHING, Agent, run
from tests.rights import wire


@pytest.mark.parametrize("mode", MODES)
def test_the_directory_stays_and_variables_do_not(daemon: Daemon, tmp_path: Path, mode: str) -> None:
    async def work(agent: Agent) -> None:
        moved = await agent.call("run_command", **LOCAL, command=f"cd {tmp_path}; x=1; export x; mkdir below")
        assert (moved["state"], moved["exitCode"], moved["directory"]) == ("exited", 0, str(tmp_path))
        shown = await agent.call("run_command", **LOCAL, command="pwd; echo $x$y >&2", env={"y": "2"})
        assert (shown["stdout"], shown["stderr"]) == (f"{tmp_path}\n", "2\n")
        by_words = await agent.call("run_command", **LOCAL, argv=["pwd", "-P"])
        assert by_words["stdout"] == f"{tmp_path.resolve()}\n"
        alone = await agent.call("run_command", **LOCAL, command="pwd", cwd="below")
        assert (alone["stdout"], alone["directory"]) == (f"{tmp_path}/below\n", str(tmp_path))
        other = await agent.call("run_command", **LOCAL, command="pwd", session="another")
        assert other["stdout"] != f"{tmp_path}\n"
        (tmp_path / "below").rmdir()
        (tmp_path / "gone").mkdir()
        await agent.call("run_command", **LOCAL, command="cd gone")
        await agent.call("run_command", **LOCAL, argv=["rmdir", str(tmp_path / "gone")])
        assert await agent.refused("run_command", **LOCAL, command="pwd") == "no_such_directory"
        again = await agent.call("run_command", **LOCAL, command="pwd")
        assert again["exitCode"] == 0, "the home directory is there"

    run(daemon, work, mode=mode)
    daemon.client.shell.stop(LOCAL_MACHINE, session="another")


def test_calls_at_the_same_time_each_run_what_they_ask_for(daemon: Daemon, tmp_path: Path) -> None:
    file = tmp_path / "file"

    async def work(agent: Agent) -> None:
        jobs = []

        async def once() -> None:
            jobs.append((await agent.call("run_command", **LOCAL, command=f"echo x >>{file}"))["job"])

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(once)
        assert len(set(jobs)) == 4

    run(daemon, work)
    assert file.read_text() == "x\n" * 4


def test_two_agents_do_not_share_a_directory(daemon: Daemon, tmp_path: Path) -> None:
    async def first(agent: Agent) -> None:
        await agent.call("run_command", **LOCAL, command=f"cd {tmp_path}")

        def second() -> None:
            run(daemon, beside)

        await anyio.to_thread.run_sync(second)
        assert (await agent.call("run_command", **LOCAL, command="pwd"))["stdout"] == f"{tmp_path}\n"

    async def beside(agent: Agent) -> None:
        assert (await agent.call("run_command", **LOCAL, command="pwd"))["stdout"] != f"{tmp_path}\n"

    run(daemon, first)


def test_the_same_command_is_found_again_only_if_nobody_was_told_of_it(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = wire.create(daemon, *EVERYTHING)
    bridge = Bridge(Client(daemon.url, api_key=holder.secret, foreign=True))
    goes_on, given_up = threading.Event(), threading.Event()
    given_up.set()
    lost = bridge.key_of("a", given_up)
    assert bridge.key_of("b", given_up) != lost
    assert bridge.key_of("a", goes_on) == lost
    assert bridge.key_of("a", goes_on) != lost, "the one before goes on"
    again = bridge.key_of("c", given_up)
    bridge.settled(again)
    assert bridge.key_of("c", given_up) != again
    old = bridge.key_of("d", given_up)
    monkeypatch.setattr(bridges, "UNSETTLED_SECONDS", 0.0)
    assert bridge.key_of("d", given_up) != old, "it is meant anew"
    bridge.close()


def test_the_shells_of_an_agent_go_with_it_and_its_jobs_stay(daemon: Daemon) -> None:
    jobs: list[str] = []
    sessions: list[str] = []

    async def work(agent: Agent) -> None:
        jobs.append((await agent.call("run_command", **LOCAL, command="sleep 0.5; exit 7", wait=0))["job"])
        sessions.append(agent.bridge.session)
        assert sessions[0] in {one.status.session for one in daemon.client.shell.list(LOCAL_MACHINE)}

    run(daemon, work)
    assert sessions[0] not in {one.status.session for one in daemon.client.shell.list(LOCAL_MACHINE)}
    assert daemon.client.jobs.get(jobs[0]).wait(20).exit_code == 7


def test_head_and_tail_are_kept_and_the_middle_is_there_to_be_read(daemon: Daemon) -> None:
    async def work(agent: Agent) -> None:
        began = time.monotonic()
        ran = await agent.call("run_command", **LOCAL, argv=["seq", "1", "20000"], maxBytes=300)
        assert time.monotonic() - began < 15, "the end is noticed however much was printed"
        assert ran["stdout"].startswith("1\n2\n3\n")
        assert ran["stdout"].endswith("\n19999\n20000\n")
        assert ran["omitted"] == {"stdout": 108894 - 300, "stderr": 0}
        assert ran["next"] == {"stdout": 108894, "stderr": 0}
        assert "108594 bytes are left out here; read_job shows them from the offset 150 on" in ran["stdout"]
        middle = await agent.call("read_job", job=ran["job"], stdoutFrom=150, maxBytes=256)
        whole = "".join(f"{number}\n" for number in range(1, 20001))
        assert middle["stdout"] == whole[150:406]
        assert (middle["next"]["stdout"], middle["omitted"]["stdout"]) == (406, 108894 - 406)
        assert (await agent.call("read_job", job=ran["job"], maxBytes=300))["stdout"] == ran["stdout"]
        assert await agent.refused("read_job", job=ran["job"], stdoutFrom=108895) == "invalid_request"

    run(daemon, work)


def test_characters_are_whole_wherever_output_is_cut(daemon: Daemon) -> None:
    async def work(agent: Agent) -> None:
        ran = await agent.call(
            "run_command", **LOCAL, command="i=0; while [ $i -lt 200 ]; do printf é€👩; i=$((i+1)); done", maxBytes=257
        )
        assert "\ufffd" not in ran["stdout"]
        at, text = 0, ""
        while at < 1800:
            piece = await agent.call("read_job", job=ran["job"], stdoutFrom=at, maxBytes=256)
            at, text = piece["next"]["stdout"], text + piece["stdout"]
        assert text == "é€👩" * 200

    run(daemon, work)


def test_a_long_command_continues_and_reports_progress(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, gate: Path
) -> None:
    monkeypatch.setattr(output, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(calls, "PROGRESS_SECONDS", 0.3)
    told: list[str] = []

    async def progress(_: float, __: float | None, message: str | None) -> None:
        told.append(message or "")

    async def work(agent: Agent) -> None:
        command = f"for i in 1 2 3 4 5 6 7 8; do echo line $i; sleep 0.1; done; read line <{gate}; exit 3"
        started = await agent.client.call_tool(
            "run_command", {**LOCAL, "command": command, "wait": 3}, progress_callback=progress
        )
        assert started.structured_content is not None
        ran = started.structured_content
        assert (ran["state"], ran["exitCode"]) == ("running", None)
        assert any(message.startswith("line ") for message in told), told
        await anyio.to_thread.run_sync(gate.write_text, "on\n")
        end = await agent.call("read_job", job=ran["job"], wait=20)
        assert (end["state"], end["exitCode"], end["stdout"].count("line")) == ("exited", 3, 8)

    run(daemon, work)


def test_a_cancelled_call_leaves_its_job_running(daemon: Daemon, tmp_path: Path) -> None:
    async def work(agent: Agent) -> None:
        command = f"touch {tmp_path}/begun; while ! [ -e {tmp_path}/go ]; do sleep 0.1; done"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.client.call_tool, "run_command", {**LOCAL, "command": command, "wait": 45})
            await soon((tmp_path / "begun").exists, "the command does not begin")
            tasks.cancel_scope.cancel()
        await soon(lambda: agent.bridge.threads.borrowed_tokens, "its thread has not ended", holds=not_)
        # Other tests' jobs may run at the daemon.
        [job] = [one for one in (await agent.call("list_jobs"))["jobs"] if one["command"] == command]
        assert (job["yours"], job["state"]) == (True, "running")
        (tmp_path / "go").touch()
        assert (await agent.call("read_job", job=job["job"], wait=20))["exitCode"] == 0

    run(daemon, work)


def test_input_is_given_at_once_or_later(daemon: Daemon) -> None:
    async def work(agent: Agent) -> None:
        json = '{"a": [1, null]}'
        for text in ("lines\nof ü\n", json, "null", "[]"):
            assert (await agent.call("run_command", **LOCAL, argv=["cat"], stdin=text))["stdout"] == text
        deaf = await agent.call("run_command", **LOCAL, argv=["echo", "deaf"], stdin="x", openStdin=True)
        assert (deaf["exitCode"], deaf["stdout"]) == (0, "deaf\n")
        fed = await agent.call("run_command", **LOCAL, argv=["cat"], stdin="first\n", openStdin=True, wait=0)
        assert await agent.call("write_stdin", job=fed["job"], text="second\n", eof=True) == {"bytes": 7}
        assert (await agent.call("read_job", job=fed["job"], wait=20))["stdout"] == "first\nsecond\n"
        assert await agent.refused("write_stdin", job=fed["job"], text="x") in ("job_finished", "stdin_closed")
        closed = await agent.call("run_command", **LOCAL, argv=["sleep", "600"], wait=0)
        assert await agent.refused("write_stdin", job=closed["job"], text="x") == "stdin_closed"
        stopped = await agent.call("stop_job", job=closed["job"], signal="KILL")
        assert (stopped["state"], stopped["exitCode"]) == ("killed", 137)
        assert (await agent.call("stop_job", job=closed["job"]))["state"] == "killed", "again does no harm"
        assert closed["job"] in {one["job"] for one in (await agent.call("list_jobs", ended=True))["jobs"]}
        assert [one for one in (await agent.call("list_jobs"))["jobs"] if one["yours"]] == []

    run(daemon, work)


def test_a_machine_ends_what_may_only_last_so_long(daemon: Daemon) -> None:
    async def work(agent: Agent) -> None:
        ran = await agent.call("run_command", **LOCAL, command="sleep 600", timeout=1)
        assert ran["state"] == "timed_out"

    run(daemon, work)


def test_background_processes_do_not_delay_the_answer(daemon: Daemon) -> None:
    async def work(agent: Agent) -> None:
        began = time.monotonic()
        ran = await agent.call("run_command", **LOCAL, command="sleep 30 & echo begun", wait=45)
        assert time.monotonic() - began < 15
        assert (ran["state"], ran["stdout"]) == ("exited", "begun\n")
        await agent.call("run_command", **LOCAL, command="true")

    run(daemon, work)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({}, "invalid_arguments"),
        ({"command": "true", "argv": ["true"]}, "invalid_arguments"),
        ({"command": "true", "wait": 46}, "invalid_arguments"),
        ({"command": "true", "maxBytes": 1}, "invalid_arguments"),
        ({"command": "true", "unknown": 1}, "invalid_arguments"),
        ({"command": "true", "system": "nowhere"}, "unknown_connection"),
        ({"command": "true", "cwd": "/nowhere"}, "no_such_directory"),
        ({"command": "true", "env": {"a=b": "c"}}, "invalid_request"),
    ],
)
def test_malformed_commands_are_refused(daemon: Daemon, arguments: dict[str, Any], code: str) -> None:
    async def work(agent: Agent) -> None:
        assert await agent.refused("run_command", **{**LOCAL, **arguments}) == code

    run(daemon, work)


def test_a_token_of_rules_runs_what_they_allow(daemon: Daemon) -> None:
    holder = wire.create(
        daemon, "connection.read", "shell.argv", "job", rules=[{"effect": "allow", "argv": ["/bin/echo", "$x"]}]
    )

    async def work(agent: Agent) -> None:
        assert "no text for a shell" in (agent.client.instructions or "")
        assert (await agent.call("run_command", **LOCAL, argv=["/bin/echo", "$x"]))["stdout"] == "$x\n"
        assert await agent.refused("run_command", **LOCAL, argv=["/bin/cat", "/etc/passwd"]) == "policy_denied"
        assert await agent.refused("run_command", **LOCAL, command="echo a; id") == "policy_denied"
        assert await agent.refused("run_command", **LOCAL, command="echo a >x") == "scope_denied"

    run(daemon, work, holder=holder)


def test_the_approver_sees_the_command_s_input(daemon: Daemon) -> None:
    holder = wire.create(daemon, "connection.read", "shell.any", "job", rules=[{"effect": "ask", "text": "."}])
    command = {**LOCAL, "command": "cat", "stdin": "drop it\n"}

    async def work(agent: Agent) -> None:
        assert await agent.refused("run_command", **command) == "approval_required"
        [asked] = [one for one in daemon.client.approval.query() if one["token"] == holder.id]
        assert (asked["asked"]["command"], asked["asked"]["stdin"]) == ("cat", "drop it\n")
        daemon.client.approval.decide(asked["approval"], "once")
        assert (await agent.call("run_command", **command))["stdout"] == "drop it\n"
        assert await agent.refused("run_command", **{**command, "stdin": "other\n"}) == "approval_required"

    run(daemon, work, holder=holder)
