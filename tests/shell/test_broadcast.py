"""``/shell/broadcast``: one command on many connections, some of them faulty."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connmgr.client import LOCAL_MACHINE, ClientError, Outcome, RawResult, Result
from tests.api.wire import NOBODY, address, client_of, token_of
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS, eventually, eventually_equal, given_time, settled
from tests.processes import await_ends

HOSTS = 20


class Hosts:
    """Numbered connections of a daemon to this machine; the number is ``N`` in their shells."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.client = daemon.client
        self.ids = [self._added(number) for number in range(HOSTS)]

    def _added(self, number: int) -> str:
        data = {"type": "shellEnvironment", "host": LOCAL_MACHINE, "commands": [f"export N={number}"]}
        return self.client.connection.add(f"host{number}", data)

    def run(self, command: str, count: int = HOSTS, **options: Any) -> list[Outcome]:
        return list(self.client.shell.broadcast(command, self.ids[:count], **options))


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    daemon = Daemon(tmp_path_factory.mktemp("hosts"))
    yield Hosts(daemon)
    daemon.stop()


def result_of(outcome: Outcome) -> Result:
    assert isinstance(outcome.result, Result), outcome
    return outcome.result


def code_of(outcome: Outcome) -> str:
    assert isinstance(outcome.result, ClientError), outcome
    return outcome.result.code


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_shells_are_started_and_each_runs_the_command_once(hosts: Hosts) -> None:
    answer = hosts.client.post(
        "/shell/broadcast", connections=[*hosts.ids, *hosts.ids], command="echo $N; exit $((N % 2))"
    )
    *lines, counts = map(json.loads, answer.splitlines())
    assert counts == {"connections": HOSTS, "succeeded": HOSTS // 2, "failed": HOSTS // 2, "errors": 0}
    by_id = {line["connection"]: line for line in lines}
    for number, id in enumerate(hosts.ids):
        line = by_id[id]
        assert line.pop("ms") > 0
        assert line == {
            "connection": id,
            "name": ["local machine", f"host{number}"],
            "exitCode": number % 2,
            "stdout": str(number),
            "stderr": "",
        }


def test_failures_on_some_connections_do_not_delay_the_others(hosts: Hosts, closed_port: int) -> None:
    client = hosts.client
    hosts.run("true")
    hangs = hosts.ids[0]
    unreachable = client.connection.add("far", {"type": "ssh", "host": "127.0.0.1", "port": closed_port, "user": "x"})
    locked = _locked(hosts)
    mixed = [hangs, unreachable, locked, NOBODY, *hosts.ids[1:]]
    outcomes = given_time(
        lambda seconds: list(client.shell.broadcast("test $N != 0 || sleep 100; echo $N", mixed, timeout=seconds)),
        lambda outcomes: (
            [code_of(one) for one in outcomes if isinstance(one.result, ClientError)].count("command_timeout") < 2
        ),
        seconds=3,
    )
    assert len(outcomes) == len(mixed)
    by_id = {one.connection: one for one in outcomes}
    assert {id: code_of(by_id[id]) for id in (hangs, unreachable, locked, NOBODY)} == {
        hangs: "command_timeout",
        unreachable: "host_refused",
        locked: "secret_locked",
        NOBODY: "unknown_connection",
    }
    assert [result_of(by_id[id]).stdout for id in hosts.ids[1:]] == [str(n) for n in range(1, HOSTS)]
    assert outcomes[-1].connection == hangs
    assert by_id[NOBODY].name == ()
    assert hosts.run("echo again", 1)[0].result == Result(0, "again", "", truncated=False)


def _locked(hosts: Hosts) -> str:
    """Add a connection with a secret of a user whom the client has not unlocked."""
    with client_of(hosts.daemon) as owner:
        owner.vault.add_user("alice", "correct horse battery")
        owner.vault.unlock("alice", "correct horse battery")
        password = owner.secret.encrypt("hunter2", ["alice"])
        return owner.connection.add("locked", {"type": "ssh", "host": "h.example", "user": "x", "password": password})


def test_a_client_that_leaves_ends_all_that_runs_and_what_waits_is_not_begun(hosts: Hosts, tmp_path: Path) -> None:
    hosts.run("true")
    log = tmp_path / "pids"
    body = {"connections": hosts.ids, "command": f"sh -c 'echo $$ >>{log}; exec sleep 1000'", "parallel": 8}
    leaving = _sent(hosts.daemon, "/shell/broadcast", body)
    eventually_equal(lambda: len(lines_of(log)), 8, "not all commands begin")
    pids = [int(line) for line in lines_of(log)]
    leaving.close()
    await_ends(*pids)
    eventually_equal(lambda: hosts.client.daemon.status().slots.in_use, 0, "the request's slot is not freed")
    assert len(lines_of(log)) == 8
    assert all(one.result == Result(0, "", "", truncated=False) for one in hosts.run("true"))


def _sent(daemon: Daemon, path: str, body: dict[str, Any], receive_buffer: int | None = None) -> socket.socket:
    """Send a request and return the connection, without reading."""
    sent = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {daemon.url.removeprefix('http://')}\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {token_of(daemon)}\r\nContent-Length: {len(sent)}\r\n\r\n"
    )
    connection = socket.socket()
    connection.settimeout(DEADLINE_SECONDS)
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.connect(address(daemon.url))
    connection.sendall(head.encode() + sent)
    return connection


def test_a_reader_that_waits_keeps_further_commands_from_beginning(hosts: Hosts, tmp_path: Path) -> None:
    hosts.run("true")
    log = tmp_path / "begun"
    size = 4 << 20
    body = {"connections": hosts.ids, "command": f"echo >>{log}; head -c {size} /dev/zero | tr '\\0' x", "parallel": 2}
    with _sent(hosts.daemon, "/shell/broadcast", body, receive_buffer=64 << 10) as reader:
        eventually(lambda: len(lines_of(log)), "the first commands do not begin", holds=lambda seen: seen >= 2)
        begun = settled(lambda: len(lines_of(log)), 1, "more and more commands begin")
        # Results that fit into the sockets, and two that wait to be sent.
        assert 2 <= begun <= 6
        received = b""
        while b'"succeeded"' not in received[-200:]:
            piece = reader.recv(1 << 20)
            assert piece, "the answer breaks off"
            received = received[-200:] + piece
    assert f'"succeeded":{HOSTS},"failed":0,"errors":0' in received.decode()
    assert len(lines_of(log)) == HOSTS


@pytest.mark.parametrize("start", [True, False])
def test_no_more_run_at_a_time_than_parallel_says(hosts: Hosts, tmp_path: Path, *, start: bool) -> None:
    hosts.run("true", 6)
    if start:
        for id in hosts.ids[:6]:
            hosts.client.shell.stop(id)
    log = tmp_path / "log"
    # No command ends before two have begun.
    pause = f"until [ $(grep -c + {log}) -ge 2 ]; do sleep 0.02; done; sleep 0.1"
    assert len(hosts.run(f"echo + >>{log}; {pause}; echo - >>{log}", 6, parallel=2, start=start)) == 6
    running, most = 0, 0
    for line in lines_of(log):
        running += 1 if line == "+" else -1
        most = max(most, running)
    assert (running, most, len(lines_of(log))) == (0, 2, 12)


@pytest.mark.parametrize("session", [None, "second"])
def test_shells_that_run_begin_before_those_that_are_to_be_started(hosts: Hosts, session: str | None) -> None:
    named: dict[str, Any] = {"session": session} if session else {}
    hosts.run("true", 6, **named)
    for id in hosts.ids[:3]:
        hosts.client.shell.stop(id, **named)
    order = [one.connection for one in hosts.run("true", 6, parallel=1, **named)]
    for id in hosts.ids[:6]:
        hosts.client.shell.stop(id, **named)
    assert set(order[:3]) == set(hosts.ids[3:6])


def test_without_start_a_connection_without_a_shell_is_told(hosts: Hosts) -> None:
    hosts.run("true")
    hosts.client.shell.stop(hosts.ids[0])
    outcomes = {one.connection: one for one in hosts.run("true", 3, start=False)}
    assert code_of(outcomes[hosts.ids[0]]) == "no_shell"
    assert all(result_of(outcomes[id]).exit_code == 0 for id in hosts.ids[1:3])


def test_a_busy_shell_runs_it_afterwards(hosts: Hosts, tmp_path: Path) -> None:
    hosts.run("true")
    begun, go = tmp_path / "begun", tmp_path / "go"
    os.mkfifo(go)
    before = _sent(
        hosts.daemon, "/shell/exec", {"connection": hosts.ids[0], "command": f"touch {begun}; cat {go}; cd /usr"}
    )
    eventually(begun.exists, "the command before it does not begin")
    with hosts.client.shell.broadcast("pwd", hosts.ids[:5]) as running:
        outcomes = iter(running)
        first = [next(outcomes).connection for _ in range(4)]
        assert set(first) == set(hosts.ids[1:5])
        go.write_text("")
        last = next(outcomes)
    assert (last.connection, result_of(last).stdout) == (hosts.ids[0], "/usr")
    before.close()


def test_a_shell_that_is_killed_meanwhile_is_lost_and_the_others_go_on(hosts: Hosts) -> None:
    hosts.run("true")
    # The parent of a command's process is the shell.
    outcomes = {one.connection: one for one in hosts.run("test $N != 0 || kill -9 $$; sleep 0.2; echo $N")}
    assert code_of(outcomes[hosts.ids[0]]) == "shell_lost"
    assert [result_of(outcomes[id]).stdout for id in hosts.ids[1:]] == [str(n) for n in range(1, HOSTS)]
    again = {one.connection: one.result for one in hosts.run("true")}
    assert again.pop(hosts.ids[0]) == Result(0, "", "", truncated=False, restarted=True)
    assert all(one == Result(0, "", "", truncated=False) for one in again.values())


def test_options_hold_for_every_connection(hosts: Hosts) -> None:
    data = bytes(range(256)) * 100
    command = "pwd; echo $GREETING; cat"
    got = list(
        hosts.client.shell.broadcast_bytes(command, hosts.ids[:3], stdin=data, cwd="/usr", env={"GREETING": "good day"})
    )
    assert [one.result for one in got] == [RawResult(0, b"/usr\ngood day\n" + data, b"", truncated=False)] * 3


def test_a_session_means_the_shell_of_that_name_on_each_connection(hosts: Hosts) -> None:
    hosts.run("cd /usr", 3)
    hosts.run("cd /etc", 3, session="second")
    assert {result_of(one).stdout for one in hosts.run("pwd", 3)} == {"/usr"}
    assert {result_of(one).stdout for one in hosts.run("pwd", 3, session="second", start=False)} == {"/etc"}
    hosts.run("cd /", 3)
    for id in hosts.ids[:3]:
        hosts.client.shell.stop(id, session="second")


def test_filters_select_and_nothing_selected_is_an_answer(hosts: Hosts) -> None:
    found = hosts.client.shell.broadcast("echo $N", connection="**/host1?", type="shell*", category="default")
    assert sorted(result_of(one).stdout for one in found) == [str(number) for number in range(10, 20)]
    for selection in ({"connectionFilter": "nothing"}, {"connections": []}):
        answer = hosts.client.post("/shell/broadcast", **selection, command="true")
        assert json.loads(answer) == {"connections": 0, "succeeded": 0, "failed": 0, "errors": 0}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "connections"),
        ({"connections": [], "typeFilter": "ssh"}, "typeFilter"),
        ({"connections": [], "parallel": 0}, "parallel"),
        ({"connections": [], "parallel": 129}, "parallel"),
        ({"connections": [str(number) for number in range(1001)]}, "1,000"),
        ({"connectionFilter": "{"}, "connectionFilter"),
    ],
)
def test_malformed_broadcasts_are_refused(hosts: Hosts, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ClientError) as refused:
        hosts.client.post("/shell/broadcast", command="true", **fields)
    assert (refused.value.status, refused.value.code) == (400, "invalid_request")
    assert said in refused.value.message


def test_output_beyond_the_limit_is_dropped_on_each_connection(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--max-output", "2048")
    (one,) = daemon.client.shell.broadcast("head -c 5000 /dev/zero | tr '\\0' x", [LOCAL_MACHINE])
    assert one.result == Result(0, "x" * 2048, "", truncated=True)


def test_one_request_takes_one_slot(start_daemon: StartDaemon) -> None:
    hosts = Hosts(start_daemon("--threads", "1"))
    assert {result_of(one).stdout for one in hosts.run("echo $N")} == {str(number) for number in range(HOSTS)}


def test_the_audit_log_says_where_it_ran_and_how_it_went(hosts: Hosts) -> None:
    hosts.run("true")
    list(hosts.client.shell.broadcast("exit $N", [*hosts.ids[:3], NOBODY]))
    log = hosts.daemon.data_dir / "audit.log"

    def last() -> Any:
        return json.loads(log.read_text().splitlines()[-1])

    # The request is recorded at the end of its answer.
    eventually_equal(lambda: last().get("connections"), [*hosts.ids[:3], NOBODY], "it is not recorded")
    entry = last()
    assert entry["path"] == "/shell/broadcast"
    assert (entry["succeeded"], entry["failed"], entry["errors"]) == (1, 2, 1)
    assert entry["commandBytes"] == len("exit $N")


def test_a_daemon_that_stops_ends_it_with_an_answer_for_each(start_daemon: StartDaemon, tmp_path: Path) -> None:
    hosts = Hosts(start_daemon())
    log = tmp_path / "begun"
    body = {"connections": hosts.ids, "command": f"echo >>{log}; sleep 1000", "parallel": 4}
    with _sent(hosts.daemon, "/shell/broadcast", body) as connection:
        eventually_equal(lambda: len(lines_of(log)), 4, "the first commands do not begin")
        hosts.daemon.process.send_signal(signal.SIGTERM)
        hosts.daemon.process.wait(DEADLINE_SECONDS)
        received = connection.makefile("rb").read().decode()
    codes = set(re.findall(r'"code":"(\w+)"', received))
    assert codes <= {"shell_stopped", "stopping", "no_shell"}, received
    assert len(lines_of(log)) == 4
