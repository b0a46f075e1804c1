"""Daemons and machines that do not answer: the agent gets an answer in time, and nothing is lost or done twice."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio.to_thread
import pytest

from connmgr.mcp import call as calls
from connmgr.mcp import output, tool
from tests.api.wire import add
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS
from tests.mcp.agent import LOCAL, MODES, refused
from tests.mcp.near import Agent, run
from tests.plugins.oneself import ssh_server
from tests.plugins.places import ssh_data

ANSWER_SECONDS = DEADLINE_SECONDS / 2
"""More than an answer takes on a busy machine, and less than without the limits that the tests set or look at."""


@contextmanager
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give up within seconds, for the block alone: on a busy machine an answer that comes may take as long."""
    with monkeypatch.context() as patched:
        patched.setattr(output, "GRACE_SECONDS", 0.5)
        patched.setattr(calls, "WORK_SECONDS", 3.0)
        patched.setattr(calls, "PROGRESS_SECONDS", 0.5)
        patched.setattr(tool, "ANSWER_SECONDS", 4.0)
        yield


@contextmanager
def silenced(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stop the process of ``daemon`` for the block, in which the bridge is :func:`impatient`."""
    with impatient(monkeypatch):
        os.kill(daemon.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(daemon.pid, signal.SIGCONT)


@pytest.mark.parametrize("mode", MODES)
def test_a_daemon_that_answers_no_more_holds_up_no_answer(
    own_daemon: Daemon, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(agent: Agent) -> None:
        job = (await agent.call("run_command", **LOCAL, command="read x; echo $x", openStdin=True, wait=0))["job"]
        with silenced(own_daemon, monkeypatch):
            began = time.monotonic()
            told = await agent.client.call_tool("run_command", {**LOCAL, "command": "true"})
            assert told.is_error
            assert 2.0 < time.monotonic() - began < ANSWER_SECONDS
            followed = await agent.call("read_job", job=job, wait=1)
            assert (followed["state"], followed["stale"]) == ("unknown", True)
        await agent.call("write_stdin", job=job, text="on\n", eof=True)
        assert (await agent.call("read_job", job=job, wait=20))["stdout"] == "on\n"

    run(own_daemon, work, mode=mode)


def test_a_start_whose_answer_was_lost_is_found_again(
    own_daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = {**LOCAL, "command": f"echo once >>{tmp_path}/runs; sleep 0.2"}

    async def work(agent: Agent) -> None:
        await agent.call("run_command", **LOCAL, command="true")
        with silenced(own_daemon, monkeypatch):
            assert await agent.refused("run_command", **command) == "unreachable"
        # Whether or not the daemon, now that it runs again, has carried the first call out already.
        assert (await agent.call("run_command", **command, wait=20))["exitCode"] == 0
        assert (tmp_path / "runs").read_text() == "once\n"
        await agent.call("run_command", **command)
        assert (tmp_path / "runs").read_text() == "once\nonce\n", "the second time is meant"

    run(own_daemon, work)


def test_a_daemon_that_starts_anew_is_found_by_the_same_call(start_daemon: StartDaemon, port: str) -> None:
    first = start_daemon("--port", port)

    async def work(agent: Agent) -> None:
        job = (await agent.call("run_command", **LOCAL, command="sleep 1; echo done", wait=0))["job"]
        await anyio.to_thread.run_sync(first.kill)
        await anyio.to_thread.run_sync(lambda: start_daemon("--port", port, home=first.home))
        ended = await agent.call("read_job", job=job, wait=20)
        assert (ended["exitCode"], ended["stdout"]) == (0, "done\n")
        assert (await agent.call("run_command", **LOCAL, command="echo again"))["stdout"] == "again\n"

    run(first, work)


def test_a_machine_that_accepts_and_says_nothing_holds_up_no_answer(
    own_daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str | None] = []

    async def progress(_: float, __: float | None, message: str | None) -> None:
        told.append(message)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        add(own_daemon.client, "silent", type="ssh", host="127.0.0.1", port=port, user="me", password="none")

        async def work(agent: Agent) -> None:
            began = time.monotonic()
            arguments = {"system": "silent", "command": "true"}
            with impatient(monkeypatch):
                answer = await agent.client.call_tool("run_command", arguments, progress_callback=progress)
            assert refused(answer)["code"] == "unreachable"
            assert 2.0 < time.monotonic() - began < ANSWER_SECONDS
            assert told, "it tells that it goes on while the link is opened"
            assert (await agent.call("run_command", **LOCAL, command="echo here"))["stdout"] == "here\n"

        run(own_daemon, work)


@pytest.mark.needs("sshd")
def test_a_machine_that_is_frozen_holds_up_no_answer(
    own_daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    with ssh_server(tmp_path / "home") as server:
        add(own_daemon.client, "frozen", type="ssh", **ssh_data(server, server.user))

        async def work(agent: Agent) -> None:
            command = f"echo begun; while ! [ -e {tmp_path}/go ]; do sleep 0.1; done; echo done"
            job = (await agent.call("run_command", system="frozen", command=command, wait=0))["job"]
            with impatient(monkeypatch), ExitStack() as frozen:
                server.freeze()
                frozen.callback(server.thaw)
                began = time.monotonic()
                seen = await agent.call("read_job", job=job, wait=1)
                assert time.monotonic() - began < ANSWER_SECONDS
                assert seen["stale"]
            (tmp_path / "go").touch()
            ended = await agent.call("read_job", job=job, wait=30)
            assert (ended["state"], ended["stdout"]) == ("exited", "begun\ndone\n")

        run(own_daemon, work)
