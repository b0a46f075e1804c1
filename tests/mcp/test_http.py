"""The MCP server over HTTP: authentication, separation of agents, and the end of sessions and server."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from operator import not_
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest

from connmgr.client import LOCAL_MACHINE, Client, ClientError
from connmgr.mcp import agents
from connmgr.mcp.agents import MAX_AGENTS_OF_TOKEN, MAX_BODY_BYTES, MAX_REQUESTS_OF_TOKEN, Agents, ConnectedAgent
from connmgr.mcp.http import (
    BEGINNING_SECONDS,
    MAX_CONNECTIONS,
    MOST_BEGINNINGS_AT_ONCE,
    MOST_REFUSALS_AT_ONCE,
    REFUSAL_SECONDS,
)
from connmgr.mcp.server import BridgeServer
from tests.cli.program import CommandLine
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS, eventually
from tests.mcp.agent import MODES, content, fault, refused, run, soon
from tests.mcp.bridge import INITIALIZE, LIST_TOOLS, SESSION, HttpBridge, bearer
from tests.rights import wire
from tests.rights.wire import Holder
from tests.spawner import PROGRAM

WORKER = ("connection.read", "shell.any", "job")


@pytest.fixture(scope="module")
def worker(daemon: Daemon) -> Holder:
    return wire.create(daemon, *WORKER)


@pytest.mark.parametrize("mode", MODES)
def test_an_agent_runs_commands(bridge: HttpBridge, worker: Holder, mode: str) -> None:
    async def work() -> None:
        async with bridge.agent(worker, mode=mode) as client:
            assert {"list_systems", "run_command"} <= {one.name for one in (await client.list_tools()).tools}
            ran = content(await client.call_tool("run_command", {"system": "local", "command": "echo out; exit 3"}))
            assert (ran["state"], ran["exitCode"], ran["stdout"]) == ("exited", 3, "out\n")
            missing = await client.call_tool("run_command", {"system": "nowhere", "command": "true"})
            assert refused(missing)["code"] == "unknown_connection"

    run(work)


@pytest.mark.parametrize("mode", MODES)
def test_a_command_goes_on_when_its_call_is_cancelled(
    bridge: HttpBridge, worker: Holder, daemon: Daemon, mode: str
) -> None:
    command = f"sleep 100; : {mode}"

    async def work() -> None:
        async with bridge.agent(worker, mode=mode) as client:
            with anyio.move_on_after(1):
                await client.call_tool("run_command", {"system": "local", "command": command, "wait": 40})
            assert content(await client.call_tool("list_systems", {}))["systems"], "the session is lost with the call"

    run(work)
    (job,) = [one for one in daemon.client.jobs.query() if one.command == command]
    assert job.state == "running"
    daemon.client.jobs.get(job.id).kill()


@pytest.mark.parametrize(
    "shown",
    ["", "Bearer ", "Bearer cmgr_unknown", "Bearer {key}", "Basic {secret}", "{secret}", "Bearer cmgr_{secret}"],
)
def test_nobody_is_served_without_a_token(bridge: HttpBridge, worker: Holder, daemon: Daemon, shown: str) -> None:
    key = CommandLine(daemon)("api-key").output.strip()
    header = shown.format(key=key, secret=worker.secret)
    for message in (INITIALIZE, LIST_TOOLS):
        answer = bridge.ask("POST", {"Authorization": header} if header else {}, message)
        assert answer.status == 401, answer.body
        assert answer.headers["www-authenticate"].startswith("Bearer ")


def test_strangers_that_take_all_connections_keep_nobody_out(bridge: HttpBridge, worker: Holder) -> None:
    parts = urlsplit(bridge.url)
    head = f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer cmgr_x\r\n".encode()
    session = bridge.initialize(worker)
    with ExitStack() as strangers:
        for number in range(MAX_CONNECTIONS + 50):
            one = strangers.enter_context(socket.create_connection((parts.hostname, parts.port), DEADLINE_SECONDS))
            one.sendall((b"", head, head + b"Content-Length: 1000000\r\n\r\n{")[number % 3])
        for _ in range(14):
            answer = bridge.ask("POST", {**bearer(worker), SESSION: session}, LIST_TOOLS)
            assert answer.status == 200, answer.body
        bridge.initialize(worker)


def test_a_flood_of_strangers_waits_while_an_agent_is_answered(bridge: HttpBridge, worker: Holder) -> None:
    session = bridge.initialize(worker)
    # The last stranger's turn comes seconds later than the agent's answers, which wait for nobody.
    flood = MOST_REFUSALS_AT_ONCE + 100
    with ThreadPoolExecutor(flood) as pool:
        began = time.monotonic()
        strangers = [pool.submit(bridge.ask, "POST", {}, INITIALIZE) for _ in range(flood)]
        answers = [bridge.ask("POST", bearer(worker, session), LIST_TOOLS).status for _ in range(5)]
        waiting = sum(not one.done() for one in strangers)
        refusals = [one.result().status for one in strangers]
    assert (answers, set(refusals)) == ([200] * 5, {401})
    assert time.monotonic() - began >= 100 * REFUSAL_SECONDS
    assert waiting > 0, "the agent was answered after all strangers"


def test_a_token_that_begins_many_sessions_has_to_wait(bridge: HttpBridge, daemon: Daemon, worker: Holder) -> None:
    holder = wire.create(daemon, *WORKER)
    # The first one waits for nobody, and the turn of each further one begins a pause later.
    number = MOST_BEGINNINGS_AT_ONCE + 1 + 10
    with ThreadPoolExecutor(number) as pool:
        began = time.monotonic()
        beginnings = [pool.submit(bridge.ask, "POST", bearer(holder), INITIALIZE) for _ in range(number)]
        bridge.initialize(worker)
        answers = [one.result().status for one in beginnings]
    # A session that has just begun is idle and makes room for the next one, or is still being answered.
    assert set(answers) <= {200, 404, 503}
    assert time.monotonic() - began >= 10 * BEGINNING_SECONDS


def test_a_session_is_of_the_token_that_began_it(bridge: HttpBridge, worker: Holder, daemon: Daemon) -> None:
    session = bridge.initialize(worker)
    other = wire.create(daemon, *WORKER)
    assert bridge.ask("POST", bearer(other, session), LIST_TOOLS).status == 404
    assert bridge.ask("DELETE", bearer(other, session)).status == 404
    assert bridge.ask("POST", bearer(worker, session), LIST_TOOLS).status == 200


def test_agents_share_neither_rights_nor_shells(bridge: HttpBridge, worker: Holder, daemon: Daemon) -> None:
    reader = wire.create(daemon, "connection.read")

    async def work() -> None:
        async with (
            bridge.agent(worker, mode="legacy") as first,
            bridge.agent(worker, mode="legacy") as second,
            bridge.agent(reader, mode="legacy") as third,
        ):
            assert "run_command" not in {one.name for one in (await third.list_tools()).tools}
            before = len(daemon.client.shell.list())
            for client in (first, second):
                content(await client.call_tool("run_command", {"system": "local", "command": "true"}))
            assert len(daemon.client.shell.list()) == before + 2, "they use one shell"

    run(work)


@pytest.mark.parametrize(
    ("header", "value", "status"),
    [
        ("Host", "evil.example", 421),
        ("Host", "127.0.0.1", 421),
        ("Host", "localhost:{port}", 200),
        ("Origin", "http://evil.example", 403),
        ("Origin", "http://127.0.0.1:1", 403),
        ("Origin", "null", 403),
        ("Origin", "http://127.0.0.1:{port}", 200),
    ],
)
def test_a_page_of_another_origin_is_refused(
    bridge: HttpBridge, worker: Holder, header: str, value: str, status: int
) -> None:
    named = value.format(port=bridge.url.rpartition(":")[2].partition("/")[0])
    assert bridge.ask("POST", {**bearer(worker), header: named}, INITIALIZE).status == status


def test_other_paths_and_methods_are_nothing(bridge: HttpBridge, worker: Holder) -> None:
    assert bridge.ask("POST", bearer(worker), INITIALIZE, path="/").status == 404
    assert bridge.ask("GET", {}, path="/.well-known/oauth-protected-resource").status == 404
    assert bridge.ask("PUT", bearer(worker), INITIALIZE).status == 405
    assert bridge.ask("POST", bearer(worker, "unknown"), LIST_TOOLS).status == 404


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"\xff\xfe", 10_000 * b"[", b'{"jsonrpc": "2.0", "id": {}, "method": "ping"}']
)
@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28", "9999"])
def test_malformed_requests_are_refused(bridge: HttpBridge, worker: Holder, version: str, body: bytes) -> None:
    answer = bridge.ask("POST", {**bearer(worker), "MCP-Protocol-Version": version}, body)
    assert answer.status == 400, answer.body


def test_a_body_that_is_too_large_is_refused(bridge: HttpBridge, worker: Holder) -> None:
    assert bridge.ask("POST", bearer(worker), b" " * (MAX_BODY_BYTES + 1)).status == 413
    assert bridge.ask("POST", bearer(worker), INITIALIZE).status == 200


def test_a_session_that_was_deleted_is_gone(bridge: HttpBridge, worker: Holder) -> None:
    session = bridge.initialize(worker)
    assert bridge.ask("DELETE", bearer(worker, session)).status == 200
    assert bridge.ask("POST", bearer(worker, session), LIST_TOOLS).status == 404


def test_a_token_has_so_many_sessions_and_its_oldest_idle_one_makes_room(bridge: HttpBridge, daemon: Daemon) -> None:
    holder, other = wire.create(daemon, *WORKER), wire.create(daemon, *WORKER)
    kept, first = bridge.initialize(other), bridge.initialize(holder)
    with ExitStack() as listening:
        for _ in range(MAX_AGENTS_OF_TOKEN - 1):
            listening.enter_context(bridge.asking("GET", bearer(holder, bridge.initialize(holder))))
        last = bridge.initialize(holder)
        assert bridge.ask("POST", bearer(holder, first), LIST_TOOLS).status == 404, "the idle one had to go"
        listening.enter_context(bridge.asking("GET", bearer(holder, last)))
        assert bridge.ask("POST", bearer(holder), INITIALIZE).status == 503
        assert bridge.ask("POST", bearer(other, kept), LIST_TOOLS).status == 200, "another token's sessions stay"


def test_a_token_has_so_many_requests_under_way(bridge: HttpBridge, daemon: Daemon, worker: Holder) -> None:
    holder = wire.create(daemon, *WORKER)
    own = bearer(holder, bridge.initialize(holder))
    # All calls wait for one job, since each job costs processes.
    holder.ok("/shell/start", connection=LOCAL_MACHINE)
    job = holder.ok("/job/start", connection=LOCAL_MACHINE, command="sleep 100")["job"]
    call = {"name": "read_job", "arguments": {"job": job, "wait": 40}}
    with ExitStack() as waiting:
        for number in range(MAX_REQUESTS_OF_TOKEN):
            message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": call}
            assert waiting.enter_context(bridge.asking("POST", own, message)).status == 200
        answer = bridge.ask("POST", own, LIST_TOOLS)
        assert (answer.status, answer.headers["retry-after"]) == (429, "5")
        assert bridge.ask("POST", bearer(worker), INITIALIZE).status == 200, "another token has nothing to do with it"
    daemon.client.token.revoke(holder.id)


def test_a_used_up_quota_is_no_wrong_token(bridge: HttpBridge, daemon: Daemon) -> None:
    holder = wire.create(daemon, *WORKER, quotaPerDay=1)
    answer = bridge.ask("POST", bearer(holder), INITIALIZE)
    assert (answer.status, b"quota_exceeded" in answer.body) == (429, True)


def test_a_revoked_token_begins_no_session(bridge: HttpBridge, daemon: Daemon) -> None:
    holder = wire.create(daemon, *WORKER)
    bridge.initialize(holder)
    daemon.client.token.revoke(holder.id)
    answer = bridge.ask("POST", bearer(holder), INITIALIZE)
    assert (answer.status, b"revoked" in answer.body) == (401, True)


@asynccontextmanager
async def table(daemon: Daemon) -> AsyncIterator[Agents]:
    """Yield the server's table of agents, without a server."""
    async with anyio.create_task_group() as tasks:
        yield Agents(lambda token: Client(daemon.url, daemon.auth_file, token), BridgeServer, tasks)
        tasks.cancel_scope.cancel()


async def begun(there: Agents, holder: Holder) -> ConnectedAgent:
    agent = await there.begin(holder.secret)
    agent.session = "1"
    assert await there.of_session(holder.secret, "1") is agent
    return agent


def test_an_agent_that_is_silent_for_long_goes(daemon: Daemon, worker: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with table(daemon) as there:
            await begun(there, worker)
            await soon(
                lambda: anyio.from_thread.run(there.of_session, worker.secret, "1"), "the agent stays", holds=not_
            )

    monkeypatch.setattr(agents, "IDLE_SECONDS", 0.2)
    run(work)


def test_an_agent_goes_whose_token_is_revoked(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = wire.create(daemon, *WORKER)

    async def work() -> None:
        async with table(daemon) as there:
            await begun(there, holder)
            daemon.client.token.revoke(holder.id)
            with pytest.raises(ClientError, match="revoked"):
                await there.of_session(holder.secret, "1")
            assert await there.of_session(holder.secret, "1") is None

    monkeypatch.setattr(agents, "CHECK_SECONDS", 0.0)
    run(work)


@pytest.mark.parametrize(("number", "program"), [(signal.SIGTERM, [str(PROGRAM)]), (signal.SIGINT, [])])
def test_a_signal_ends_it_while_agents_listen_and_wait(
    daemon: Daemon, worker: Holder, number: int, program: list[str]
) -> None:
    command = f"sleep 100; : {number}"
    call = {"name": "run_command", "arguments": {"system": "local", "command": command, "wait": 40}}
    with HttpBridge(daemon, program=program) as bridge:
        own = bearer(worker, bridge.initialize(worker))
        message = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": call}
        with bridge.asking("GET", own) as listening, bridge.asking("POST", own, message) as waiting:
            eventually(
                lambda: [one.state for one in daemon.client.jobs.query() if one.command == command],
                "the call has started no job",
                holds=lambda states: "running" in states,
            )
            bridge.process.send_signal(number)
            assert "Traceback" not in bridge.ended()
            # They end, but how is not specified.
            listening.read()
            waiting.read()
    (job,) = [one for one in daemon.client.jobs.query() if one.command == command]
    assert job.state == "running"
    daemon.client.jobs.get(job.id).kill()


def test_without_its_daemon_it_tells_so_and_serves_again_when_that_is_back(
    start_daemon: StartDaemon, port: str
) -> None:
    daemon = start_daemon("--port", port)
    holder = wire.create(daemon, *WORKER)
    with HttpBridge(daemon) as bridge:
        session = bridge.initialize(holder)
        daemon.stop()
        answer = bridge.ask("POST", bearer(holder), INITIALIZE)
        assert (answer.status, answer.headers["retry-after"]) == (503, "5")
        start_daemon("--port", port, home=daemon.home)
        assert bridge.ask("POST", bearer(holder, session), LIST_TOOLS).status == 200
        assert bridge.ask("POST", bearer(holder), INITIALIZE).status == 200


@pytest.mark.parametrize("options", [["--http", "--owner"], ["--port", "0"]])
def test_options_that_do_not_go_together_are_refused(daemon: Daemon, worker: Holder, options: list[str]) -> None:
    connmgr = CommandLine(daemon)
    (daemon.home / "token").write_text(worker.secret)
    assert "Usage" in connmgr("mcp", *options, code=2).errors


def test_a_port_that_is_taken_is_told(bridge: HttpBridge, daemon: Daemon) -> None:
    port = bridge.url.rpartition(":")[2].partition("/")[0]
    assert f"Port {port} of 127.0.0.1 cannot be listened on" in fault(daemon, "--http", "--port", port, code=1)


def test_a_server_that_shows_a_token_serves_no_other(daemon: Daemon, worker: Holder, tmp_path: Path) -> None:
    shown = tmp_path / "token"
    shown.write_text(f"{worker.secret}\n")
    with HttpBridge(daemon, "--token-file", str(shown)) as bridge:
        assert bridge.ask("POST", bearer(worker), INITIALIZE).status == 200
        assert bridge.ask("POST", bearer(wire.create(daemon, *WORKER)), INITIALIZE).status == 401
