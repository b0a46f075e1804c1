"""Shells of a real daemon: one a connection, kept open, with a queue, ended in time and never left behind."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from connmgr.client import Client, ClientError
from tests.api.wire import LOCAL, add
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS, eventually, eventually_equal
from tests.processes import await_ends, runs


def add_local(client: Client, shell: str) -> str:
    data = {"type": "local", "shell": shell}
    return add(client, f"local {shell}", **data)


def exec_text(client: Client, connection: str, command: str, **options: object) -> str:
    result = client.post("/shell/exec", connection=connection, command=command, **options)
    assert result["exitCode"] == 0, result
    return str(result["stdout"])


def supervisor(client: Client, connection: str) -> psutil.Process:
    return psutil.Process(int(exec_text(client, connection, "echo $$")))


def test_a_running_session_is_left_alone_and_described_again(clean_daemon: Daemon) -> None:
    client = clean_daemon.client
    first = client.post("/shell/start", connection=LOCAL)
    exec_text(client, LOCAL, "cd /usr")
    assert client.post("/shell/start", connection=LOCAL) == first
    assert exec_text(client, LOCAL, "pwd") == "/usr"


def test_stop_ends_the_shell_before_it_answers(clean_daemon: Daemon) -> None:
    client = clean_daemon.client
    client.post("/shell/start", connection=LOCAL)
    shell = supervisor(client, LOCAL)
    client.post("/shell/stop", connection=LOCAL)
    assert not runs(shell.pid)
    with pytest.raises(ClientError) as caught:
        client.post("/shell/exec", connection=LOCAL, command="true")
    assert (caught.value.status, caught.value.code) == (400, "no_shell")


def test_a_lost_shell_is_said_once_and_can_be_started_again(clean_daemon: Daemon) -> None:
    client = clean_daemon.client
    client.post("/shell/start", connection=LOCAL)
    with pytest.raises(ClientError) as caught:
        client.post("/shell/exec", connection=LOCAL, command="kill -9 $$")
    assert (caught.value.status, caught.value.code) == (500, "shell_lost")
    with pytest.raises(ClientError) as caught:
        client.post("/shell/exec", connection=LOCAL, command="true")
    assert caught.value.code == "no_shell"
    client.post("/shell/start", connection=LOCAL)
    assert exec_text(client, LOCAL, "echo hi") == "hi"


def test_a_shell_that_died_while_idle_is_started_anew(clean_daemon: Daemon) -> None:
    client = clean_daemon.client
    client.post("/shell/start", connection=LOCAL)
    shell = supervisor(client, LOCAL)
    shell.kill()
    await_ends(shell.pid)
    client.post("/shell/start", connection=LOCAL)
    assert supervisor(client, LOCAL).pid != shell.pid


def test_fifty_requests_at_once_on_one_session(clean_daemon: Daemon) -> None:
    client = clean_daemon.client
    client.post("/shell/start", connection=LOCAL)
    answers: dict[int, str] = {}

    def ask(number: int) -> None:
        with Client(clean_daemon.url, auth_file=clean_daemon.auth_file) as own:
            answers[number] = exec_text(own, LOCAL, f"sleep 0.01; echo {number}")

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == {number: str(number) for number in range(50)}


def test_the_shells_of_removed_connections_end(clean_daemon: Daemon) -> None:
    client = clean_daemon.client
    connection = add_local(client, "/bin/dash")
    client.post("/shell/start", connection=connection)
    shell = supervisor(client, connection)
    client.post("/connection/remove", connections=[connection])
    await_ends(shell.pid)


def test_the_shell_table_keeps_each_shell_when_its_connection_changes_while_it_starts(clean_daemon: Daemon) -> None:
    connection = add_local(clean_daemon.client, "/bin/dash")
    over = threading.Event()

    def start_again_and_again() -> None:
        with Client(clean_daemon.url, auth_file=clean_daemon.auth_file) as own:
            while not over.is_set():
                own.post("/shell/start", connection=connection)

    starters = [threading.Thread(target=start_again_and_again) for _ in range(3)]
    for starter in starters:
        starter.start()
    try:
        for shell in ("/bin/sh", "/bin/dash") * 15:
            data = {"type": "local", "shell": shell}
            clean_daemon.client.post("/connection/update", connection=connection, data=data)
    finally:
        over.set()
        for starter in starters:
            starter.join(60)
    clean_daemon.client.post("/shell/start", connection=connection)
    clean_daemon.client.post("/shell/stop", connection=connection)
    daemon = psutil.Process(clean_daemon.pid)
    eventually_equal(daemon.children, [], "shells run that no connection has")


def test_the_shells_over_a_changed_connection_end_with_its_own(clean_daemon: Daemon) -> None:
    client = clean_daemon.client
    host = add_local(client, "/bin/dash")
    data = {"type": "shellEnvironment", "host": host, "elevated": False}
    wrapper = add(client, "over it", **data)
    client.post("/shell/start", connection=wrapper)
    shell = supervisor(client, wrapper)
    client.post("/connection/update", connection=host, name="another name")
    assert supervisor(client, wrapper).pid == shell.pid
    client.post("/connection/update", connection=host, data={"type": "local", "shell": "/bin/sh"})
    await_ends(shell.pid)


def test_idle_shells_are_closed_and_busy_ones_are_not(start_daemon: StartDaemon) -> None:
    client = start_daemon("--idle-timeout", "1").client
    busy = add_local(client, "/bin/dash")
    client.post("/shell/start", connection=LOCAL)
    client.post("/shell/start", connection=busy)
    idle = supervisor(client, LOCAL)
    assert exec_text(client, busy, "sleep 3; echo done") == "done"
    await_ends(idle.pid)
    anew = client.post("/shell/exec", connection=LOCAL, command="true", start=True)
    assert anew.get("restarted"), "nobody is told that the directory is another one"


def test_a_command_whose_client_left_is_killed(clean_daemon: Daemon) -> None:
    client = clean_daemon.client
    client.post("/shell/start", connection=LOCAL)
    shell = supervisor(client, LOCAL)
    impatient = Client(clean_daemon.url, auth_file=clean_daemon.auth_file, timeout=1)
    impatient.post("/daemon/version")
    with pytest.raises((OSError, ClientError)):
        impatient.post("/shell/exec", connection=LOCAL, command="sleep 1000")
    impatient.close()
    eventually_equal(shell.children, [], "the command of a client that left still runs")
    assert exec_text(client, LOCAL, "echo hi") == "hi"


def test_a_stopping_daemon_ends_commands_and_shells(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    client = daemon.client
    client.post("/shell/start", connection=LOCAL)
    shell = supervisor(client, LOCAL)
    outcome: list[ClientError] = []

    def run_long() -> None:
        with Client(daemon.url, auth_file=daemon.auth_file) as own, pytest.raises(ClientError) as caught:
            own.post("/shell/exec", connection=LOCAL, command="sleep 1000")
        outcome.append(caught.value)

    thread = threading.Thread(target=run_long)
    thread.start()
    eventually(shell.children, "the command does not run")
    command = shell.children(recursive=True)
    daemon.stop()
    thread.join(DEADLINE_SECONDS)
    assert [error.code for error in outcome] == ["shell_stopped"]
    assert not runs(shell.pid)
    assert not any(runs(process.pid) for process in command)


def test_shells_of_a_killed_daemon_are_ended_by_the_next(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    client = daemon.client
    client.post("/shell/start", connection=LOCAL)
    shell = supervisor(client, LOCAL)

    def run_long() -> None:
        with Client(daemon.url, auth_file=daemon.auth_file) as own, pytest.raises((OSError, ClientError)):
            own.post("/shell/exec", connection=LOCAL, command="sleep 1000; true")

    thread = threading.Thread(target=run_long)
    thread.start()
    eventually(shell.children, "the command does not run")
    tree = [shell, *shell.children(recursive=True)]
    daemon.kill()
    thread.join(DEADLINE_SECONDS)
    assert runs(shell.pid), "without a successor the shell would run on"
    start_daemon(home=daemon.home)
    await_ends(*(process.pid for process in tree))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A daemon's home with a data directory of one megabyte."""
    data = tmp_path / "home" / "data" / "connmgr"
    data.mkdir(parents=True)
    for directory in (data, data.parent):
        directory.chmod(0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", str(data)], check=True, timeout=20)
    yield tmp_path / "home"
    subprocess.run(["umount", "--lazy", str(data)], check=True, timeout=20)


def fill(directory: Path) -> Path:
    """Fill the file system of ``directory``, and return the file that does."""
    ballast = directory / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(512))
    return ballast


@pytest.mark.needs("root", "linux")
def test_on_a_full_disk_shells_start_and_so_does_the_daemon(small_disk: Path, start_daemon: StartDaemon) -> None:
    daemon = start_daemon(home=small_disk)
    other = add_local(daemon.client, "/bin/dash")
    ballast = fill(daemon.data_dir)
    for connection in (LOCAL, other):
        daemon.client.post("/shell/start", connection=connection)
        assert exec_text(daemon.client, connection, "echo hi") == "hi"
    daemon.client.post("/shell/stop", connection=other)
    assert "shells.json: No space left on device" in daemon.stderr()
    assert list(daemon.data_dir.glob(".shells*")) == [], "a draft was left"
    daemon.kill()
    again = start_daemon(home=small_disk)
    ballast.unlink()
    again.client.post("/shell/start", connection=LOCAL)
    assert str(supervisor(again.client, LOCAL).pid) in (again.data_dir / "shells.json").read_text()


@pytest.mark.parametrize("end", ["the shell", "the daemon"])
def test_background_processes_of_a_finished_command_run_on(start_daemon: StartDaemon, end: str) -> None:
    daemon = start_daemon()
    daemon.client.post("/shell/start", connection=LOCAL)
    jobs = "\n".join(f"{word} sleep 300 >/dev/null 2>&1 & echo $!" for word in ("", "nohup", "setsid"))
    left = [psutil.Process(int(pid)) for pid in exec_text(daemon.client, LOCAL, jobs).split()]
    try:
        if end == "the shell":
            daemon.client.post("/shell/stop", connection=LOCAL)
        else:
            daemon.stop()
        assert [runs(job.pid) for job in left] == [True] * 3
    finally:
        for job in left:
            job.kill()
