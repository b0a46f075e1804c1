"""Named shells of a connection, each with its own state, beside the connection's own shell."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil
import pytest

from connmgr.client import Client, ClientError
from connmgr.contract.shell import RunningCommandInfo as RunningCommand
from tests.api.wire import LOCAL
from tests.conftest import Recorded, StartDaemon
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS, eventually, eventually_equal
from tests.processes import await_ends, runs
from tests.shell.test_shells import add_local, exec_text


def start(client: Client, *names: str | None, connection: str = LOCAL) -> None:
    for name in names:
        client.shell.start(connection, session=name)


def pids(client: Client, connection: str = LOCAL) -> dict[str | None, int]:
    return {one.status.session: one.pid for one in client.shell.list(connection)}


def refusal(act: Callable[[], object]) -> tuple[int, str]:
    with pytest.raises(ClientError) as caught:
        act()
    return caught.value.status, str(caught.value.code)


@contextmanager
def at_work(daemon: Daemon, command: str, **options: Any) -> Iterator[list[Any]]:
    """Run a command in another thread, and yield the list that gets its outcome."""
    outcome: list[Any] = []

    def run() -> None:
        with Client(daemon.url, auth_file=daemon.auth_file) as own:
            try:
                outcome.append(own.shell.exec(LOCAL, command, **options))
            except ClientError as error:
                outcome.append(error)

    worker = threading.Thread(target=run)
    worker.start()
    try:
        yield outcome
    finally:
        worker.join(DEADLINE_SECONDS)
    assert outcome


def running(client: Client, session: str | None) -> bool:
    return any(one.status.session == session and one.running_since for one in client.shell.list(LOCAL))


def test_each_has_its_own_directory_and_variables(clean_daemon: Daemon, tmp_path: Path) -> None:
    client = clean_daemon.client
    start(client, None, "a", "b")
    for name in (None, "a", "b"):
        (tmp_path / str(name)).mkdir()
        client.shell.exec(LOCAL, f"cd {tmp_path}/{name}; export WHO={name}", session=name)
    for name in (None, "a", "b"):
        assert client.shell.exec(LOCAL, "echo $PWD $WHO", session=name).stdout == f"{tmp_path}/{name} {name}"
    assert len(set(pids(client).values())) == 3


def test_files_start_from_the_directory_of_the_shell_that_is_named(clean_daemon: Daemon, tmp_path: Path) -> None:
    client, fs = clean_daemon.client, clean_daemon.client.fs
    start(client, None, "a")
    for name in ("own", "a"):
        (tmp_path / name).mkdir()
    client.shell.exec(LOCAL, f"cd {tmp_path}/own")
    client.shell.exec(LOCAL, f"cd {tmp_path}/a", session="a")
    fs.upload(LOCAL, b"of a", "file", session="a")
    fs.upload(LOCAL, b"its own", "file")
    assert (tmp_path / "a" / "file").read_bytes() == b"of a"
    assert fs.read(LOCAL, "file", session="a") == b"of a"
    assert fs.read(LOCAL, "file") == b"its own"
    fs.mkdir(LOCAL, "sub", session="a")
    fs.move(LOCAL, "file", "sub/moved", session="a")
    assert [entry.name for entry in fs.list(LOCAL, "sub", session="a")] == ["moved"]
    assert fs.stat(LOCAL, "sub/moved", session="a").size == 4
    fs.remove(LOCAL, "sub", recursive=True, session="a")
    assert sorted(entry.name for entry in fs.list(LOCAL, ".", session="a")) == []
    assert [entry.name for entry in fs.list(LOCAL, ".")] == ["file"]


def test_a_command_in_one_holds_no_other(clean_daemon: Daemon) -> None:
    client = clean_daemon.client
    start(client, None, "a", "b")
    with at_work(clean_daemon, "sleep 1000", session="a") as hanging:
        eventually(lambda: running(client, "a"), "the command does not run")
        with at_work(clean_daemon, "echo next", session="a") as queued:
            eventually_equal(lambda: client.shell.list(LOCAL)[1].status.waiting, 1, "the second command does not wait")
            assert client.shell.exec(LOCAL, "echo own").stdout == "own"
            assert client.shell.exec(LOCAL, "echo b", session="b").stdout == "b"
            assert not hanging
            assert not queued
            client.shell.stop(LOCAL, session="a")
    assert [hanging[0].code, queued[0].code] == ["shell_stopped", "shell_stopped"]
    assert set(pids(client)) == {None, "b"}
    assert client.shell.exec(LOCAL, "echo b", session="b").stdout == "b"


def test_the_list_describes_the_running_shells(clean_daemon: Daemon, tmp_path: Path) -> None:
    client = clean_daemon.client
    other = add_local(client, "/bin/dash")
    before = datetime.now(timezone.utc)
    start(client, None, "a")
    start(client, "a", connection=other)
    client.shell.exec(LOCAL, f"cd {tmp_path}", session="a")
    own, named = client.post("/shell/list", connection=LOCAL)["shells"]
    assert set(own) == {"connection", "state", "pid", "directory", "since", "uptime", "idle", "waiting"}
    assert set(named) == {*own, "session"}
    assert (named["session"], named["directory"], named["state"]) == ("a", str(tmp_path), "idle")
    assert int(exec_text(client, LOCAL, "echo $$", session="a")) == named["pid"]
    assert before <= datetime.fromisoformat(own["since"].replace("Z", "+00:00")) <= datetime.now(timezone.utc)
    assert [one.status.connection for one in client.shell.list()] == [LOCAL, LOCAL, other]
    with at_work(clean_daemon, "sleep 1000", session="a", timeout=60):
        eventually(lambda: running(client, "a"), "the command does not run")
        (busy,) = [one for one in client.shell.list(LOCAL) if one.running_since]
        assert busy.status.state == "busy"
        assert busy.running_since
        assert before <= busy.since <= busy.running_since <= datetime.now(timezone.utc)
        client.shell.stop(LOCAL, session="a")
    assert refusal(lambda: client.shell.list("ffffffff-0000-4000-8000-000000000000")) == (400, "unknown_connection")


def test_the_daemon_s_status_names_them(clean_daemon: Daemon) -> None:
    client = clean_daemon.client
    start(client, None, "a")
    own, named = client.post("/daemon/status")["sessions"]
    assert set(own) == {"connection", "state", "uptime", "idle", "waiting"}
    assert named["session"] == "a"


def test_without_a_name_it_is_the_connection_s_own(clean_daemon: Daemon) -> None:
    client = clean_daemon.client
    start(client, "a")
    assert refusal(lambda: client.shell.exec(LOCAL, "true")) == (400, "no_shell")
    assert refusal(lambda: client.shell.stop(LOCAL)) == (400, "no_shell")
    start(client, None)
    assert refusal(lambda: client.shell.exec(LOCAL, "true", session="b")) == (400, "no_shell")
    client.shell.stop(LOCAL)
    assert set(pids(client)) == {"a"}


NAMES = ["a", "A-b_c.9", "x" * 64, "..", "-"]
NO_NAMES: list[object] = ["", "x" * 65, "a b", "a/b", "ü", "a\n", "\n", None, 1]


@pytest.mark.parametrize("name", NAMES)
def test_unusual_session_names_are_accepted(clean_daemon: Daemon, name: str) -> None:
    start(clean_daemon.client, name)
    assert set(pids(clean_daemon.client)) == {name}


@pytest.mark.parametrize("name", NO_NAMES)
def test_other_names_are_refused(daemon: Daemon, name: object) -> None:
    for endpoint, fields in (
        ("/shell/start", {}),
        ("/shell/exec", {"command": "true"}),
        ("/shell/stop", {}),
        ("/fs/list", {"path": "/"}),
    ):
        act = lambda: daemon.client.post(endpoint, connection=LOCAL, session=name, **fields)  # noqa: B023, E731
        assert refusal(act) == (400, "invalid_request")


def test_a_connection_has_sixteen_at_most(clean_daemon: Daemon) -> None:
    client = clean_daemon.client
    names = [None, *(f"s{number}" for number in range(15))]
    done: list[object] = []

    def begin(name: str | None) -> None:
        with Client(clean_daemon.url, auth_file=clean_daemon.auth_file) as own:
            done.append(own.shell.start(LOCAL, session=name))

    starters = [threading.Thread(target=begin, args=(name,)) for name in names]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join(DEADLINE_SECONDS)
    assert len(done) == 16
    assert refusal(lambda: client.shell.start(LOCAL, session="more")) == (503, "session_limit")
    assert set(pids(client)) == set(names)
    start(client, "s3")
    other = add_local(client, "/bin/dash")
    start(client, "more", connection=other)
    client.shell.stop(LOCAL, session="s3")
    start(client, "more")
    assert len(pids(client)) == 16


def test_all_of_a_connection_are_stopped_at_once(clean_daemon: Daemon) -> None:
    client = clean_daemon.client
    other = add_local(client, "/bin/dash")
    start(client, None, "a", "b")
    start(client, "a", connection=other)
    found = pids(client)
    with at_work(clean_daemon, "sleep 1000", session="a"):
        eventually(lambda: running(client, "a"), "the command does not run")
        client.shell.stop(LOCAL, all=True)
    assert not any(map(runs, found.values()))
    assert pids(client) == {}
    assert set(pids(client, other)) == {"a"}
    assert refusal(lambda: client.shell.stop(LOCAL, all=True)) == (400, "no_shell")
    assert refusal(lambda: client.shell.stop(other, all=True, session="a")) == (400, "invalid_request")
    assert refusal(lambda: client.shell.stop("ffffffff-0000-4000-8000-000000000000", all=True)) == (
        400,
        "unknown_connection",
    )


def test_a_lost_one_takes_no_other_along(clean_daemon: Daemon) -> None:
    client = clean_daemon.client
    start(client, None, "a")
    assert refusal(lambda: client.shell.exec(LOCAL, "kill -9 $$", session="a")) == (500, "shell_lost")
    assert set(pids(client)) == {None}
    start(client, "a")
    assert client.shell.exec(LOCAL, "echo again", session="a").stdout == "again"


@pytest.mark.parametrize("act", ["update", "remove"])
def test_all_end_with_their_connection(clean_daemon: Daemon, act: str) -> None:
    client = clean_daemon.client
    connection = add_local(client, "/bin/dash")
    start(client, None, "a", "b", connection=connection)
    found = pids(client, connection)
    if act == "update":
        client.connection.update(connection, data={"type": "local", "shell": "/bin/sh"})
        assert pids(client, connection) == {}
    else:
        client.connection.remove([connection])
    assert not any(map(runs, found.values()))
    assert not client.shell.list()


def test_idle_ones_are_closed_each_by_itself(start_daemon: StartDaemon, gate: Path) -> None:
    daemon = start_daemon("--idle-timeout", "1")
    start(daemon.client, "a", None)
    idle = pids(daemon.client)["a"]
    with at_work(daemon, f"cat {gate}"):
        eventually_equal(lambda: set(pids(daemon.client)), {None}, "the idle shell is not closed, or the busy one is")
        await_ends(idle)
        gate.write_bytes(b"")


def test_scripts_go_with_the_shell_that_they_were_made_in(clean_daemon: Daemon) -> None:
    client = clean_daemon.client
    start(client, "a", "b")
    scripts = {name: client.fs.script(LOCAL, client.fs.blob(b"#!/bin/sh\n"), session=name) for name in ("a", "b")}
    client.shell.stop(LOCAL, session="a")
    assert [Path(scripts[name]).exists() for name in ("a", "b")] == [False, True]


def test_the_audit_log_names_the_shell(clean_daemon: Daemon, recorded: Recorded) -> None:
    client = clean_daemon.client
    start(client, None, "a")
    client.fs.list(LOCAL, "/", session="a")
    client.shell.stop(LOCAL, all=True)
    entries = [entry for entry in recorded() if entry["path"].startswith(("/shell", "/fs"))]
    assert [(one["path"], one.get("shell"), one.get("all")) for one in entries] == [
        ("/shell/start", None, None),
        ("/shell/start", "a", None),
        ("/fs/list", "a", None),
        ("/shell/stop", None, True),
    ]
    assert len({one["session"] for one in entries}) == 1, "the client's session is not the shell's name"


def test_many_who_start_stop_and_use_them_at_once_leave_nothing_behind(clean_daemon: Daemon) -> None:
    client = clean_daemon.client
    wrong: list[str] = []
    # On a busy machine some of so many shells do not answer in time, which leaves nothing behind either.
    may_be = {"no_shell", "shell_stopped", "shell_lost", "session_limit", "shell_busy", "unsupported_shell"}

    def work(number: int) -> None:
        session = f"s{number % 20}"
        with Client(clean_daemon.url, auth_file=clean_daemon.auth_file) as own:
            for turn in range(3):
                acts: list[Callable[[], object]] = [
                    lambda: own.shell.start(LOCAL, session=session),
                    lambda: (
                        own.shell.exec(LOCAL, f"echo {session}", session=session).stdout == session or wrong.append("x")
                    ),
                    lambda: own.shell.list(LOCAL),
                    lambda: own.shell.stop(LOCAL, session=session),
                ]
                for act in acts[(number + turn) % 2 :]:
                    try:
                        act()
                    except ClientError as error:
                        if error.code not in may_be:
                            wrong.append(f"{error.code}: {error.message}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "requests are not answered"
    assert not wrong
    with_rest = client.shell.list(LOCAL)
    assert len(with_rest) <= 16
    if with_rest:
        client.shell.stop(LOCAL, all=True)
    daemon = psutil.Process(clean_daemon.pid)
    eventually_equal(daemon.children, [], "shells run that no connection has")
    start(client, "a")
    assert client.shell.exec(LOCAL, "echo on", session="a").stdout == "on"


def test_a_running_command_is_shown_to_those_who_may_know_it(daemon: Daemon) -> None:
    client, scopes = daemon.client, ["shell.any", "connection.read", "token.create"]

    def holding(token: dict[str, Any]) -> Client:
        return Client(daemon.url, api_key=token["token"], name="tool")

    outer = client.token.create("outer", 600, scopes)
    with holding(outer) as above, holding(client.token.create("other", 600, scopes)) as beside:
        inner = above.token.create("inner", 600, ["shell.any", "connection.read"])
        with holding(inner) as below:
            start(client, "shown")
            stream = below.shell.stream(LOCAL, "echo begun; sleep 1000", session="shown")
            assert next(iter(stream)).stdout == b"begun\n"
            seen = {
                one: next(shell for shell in one.shell.list(LOCAL) if shell.status.session == "shown")
                for one in (client, above, below, beside)
            }
            shown = RunningCommand(command="echo begun; sleep 1000", client="tool", token="inner")
            assert [seen[one].running for one in (client, above, below, beside)] == [shown, shown, shown, None]
            assert seen[beside].running_since
            stream.close()
    client.shell.stop(LOCAL, session="shown")
