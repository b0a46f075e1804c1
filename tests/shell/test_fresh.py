"""``fresh`` in a request: the command runs in a new shell, which leaves nothing behind."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

from connmgr.client import Client, ClientError
from tests.api.wire import LOCAL
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS, eventually, eventually_equal
from tests.processes import await_ends, runs

pytestmark = pytest.mark.needs("bash")


@pytest.fixture
def client(clean_daemon: Daemon) -> Client:
    clean_daemon.client.shell.start(LOCAL)
    clean_daemon.client.shell.exec(LOCAL, "cd /usr; export ODD=1")
    return clean_daemon.client


def shells(client: Client) -> list[tuple[str | None, str]]:
    return [(one.status.session, one.directory) for one in client.shell.list()]


def test_a_command_of_its_own_shell_finds_nothing_and_leaves_nothing(client: Client, clean_daemon: Daemon) -> None:
    before = shells(client)
    found = client.shell.exec(LOCAL, 'pwd; echo "<$ODD>"; cd /etc; export ODD=2; echo $$', fresh=True)
    directory, variable, pid = found.stdout.splitlines()
    assert (directory, variable) == (str(clean_daemon.home), "<>")
    assert not runs(int(pid)), "its shell still runs"
    assert shells(client) == before == [(None, "/usr")]
    assert client.shell.exec(LOCAL, 'pwd; echo "$ODD"').stdout == "/usr\n1"


def test_a_fresh_shell_with_streamed_output_leaves_nothing_either(client: Client) -> None:
    with client.shell.stream(LOCAL, "cd /etc; pwd", fresh=True) as stream:
        assert b"".join(piece.stdout for piece in stream) == b"/etc\n"
    assert shells(client) == [(None, "/usr")]


def test_a_fresh_shell_whose_command_fails_leaves_nothing_either(client: Client) -> None:
    for command, code in (("kill -9 $$; sleep 100", "shell_lost"), ("sleep 100", "command_timeout")):
        with pytest.raises(ClientError) as caught:
            client.shell.exec(LOCAL, command, fresh=True, timeout=1 if code == "command_timeout" else DEADLINE_SECONDS)
        assert caught.value.code == code
        assert shells(client) == [(None, "/usr")]


def test_a_fresh_shell_whose_client_leaves_is_killed_with_its_command(client: Client, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    other = client.clone()

    def run() -> None:
        with contextlib.suppress(ClientError):
            other.shell.exec(LOCAL, f"echo $$ > {mark}.new; mv {mark}.new {mark}; sleep 100", fresh=True)

    worker = threading.Thread(target=run)
    worker.start()
    eventually(mark.exists, "the command has not begun")
    assert len(shells(client)) == 2
    other._session._connection.sock.shutdown(2)  # type: ignore[union-attr]
    worker.join(DEADLINE_SECONDS)
    eventually_equal(lambda: shells(client), [(None, "/usr")], "a shell of its own outlives its client")
    await_ends(int(mark.read_text()))


def test_each_of_many_has_a_shell_of_its_own(client: Client) -> None:
    posix = client.connection.add("posix", {"type": "local", "shell": "sh"})
    with client.shell.broadcast("pwd; cd /etc", [LOCAL, posix], fresh=True) as outcomes:
        found: list[Any] = [one.result for one in outcomes]
    assert [one.exit_code for one in found] == [0, 0]
    assert "/usr" not in {one.stdout for one in found}
    assert shells(client) == [(None, "/usr")]


@pytest.mark.parametrize("other", [{"session": "build"}, {"detachAfter": 1}])
def test_fresh_excludes_a_named_shell_and_detaching(client: Client, other: dict[str, Any]) -> None:
    with pytest.raises(ClientError) as caught:
        client.post("/shell/exec", connection=LOCAL, command="true", fresh=True, **other)
    assert caught.value.code == "invalid_request"
    assert "fresh" in caught.value.message
