"""``start`` in a request: a lost shell is started again, and no command runs twice."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from connmgr.client import Client, ClientError
from tests.api.wire import LOCAL
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS, eventually, eventually_equal
from tests.plugins.oneself import ssh_server
from tests.plugins.places import ssh_fields
from tests.plugins.sshd import Sshd

pytestmark = pytest.mark.needs("sshd", "bash")

numbers = itertools.count(20)


@pytest.fixture(scope="module")
def restarting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    running = Daemon(tmp_path_factory.mktemp("r"))
    yield running
    running.stop()


@pytest.fixture
def client(restarting: Daemon) -> Client:
    return restarting.client


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Sshd]:
    with ssh_server(tmp_path) as started:
        yield started


@pytest.fixture
def far(client: Client, server: Sshd) -> str:
    return add(client, server)


def add(client: Client, server: Sshd, **fields: Any) -> str:
    """Add a connection that equals no other."""
    number = next(numbers)
    data = {"type": "ssh", **ssh_fields(server, server.user, connectTimeout=number, **fields)}
    return client.connection.add(f"far{number}", data)


def run(client: Client, connection: str, command: str, **options: Any) -> dict[str, Any]:
    answer = client.post("/shell/exec", connection=connection, command=command, **options)
    return dict(answer)


def failure(act: Callable[[], object]) -> ClientError:
    with pytest.raises(ClientError) as caught:
        act()
    return caught.value


def state(client: Client, connection: str) -> list[str]:
    return [one.status.state for one in client.shell.list(connection)]


def lose(client: Client, server: Sshd, connection: str) -> None:
    """Break the link of an idle shell, and return once the daemon knows."""
    server.kill_sessions()
    eventually_equal(lambda: state(client, connection), ["lost"], "a shell whose link broke is not shown as lost")


def test_without_start_a_lost_shell_is_reported_once_and_then_unknown(client: Client, server: Sshd, far: str) -> None:
    assert failure(lambda: run(client, far, "true")).code == "no_shell"
    client.shell.start(far)
    lose(client, server, far)
    lost = failure(lambda: run(client, far, "true"))
    assert (lost.code, lost.details.get("restarted")) == ("shell_lost", None)
    assert failure(lambda: run(client, far, "true")).code == "no_shell"


def test_a_lost_shell_is_started_anew_and_that_is_told_once(client: Client, server: Sshd, far: str) -> None:
    first = run(client, far, "cd /usr; export ODD=1", start=True)
    assert first == {"exitCode": 0, "stdout": "", "stderr": ""}, "a first shell is told as one that was lost"
    assert run(client, far, "pwd", start=True)["stdout"] == "/usr"
    lose(client, server, far)
    anew = run(client, far, 'pwd; echo "<$ODD>"', start=True)
    assert anew.get("restarted"), anew
    assert anew["stdout"].splitlines()[0] != "/usr"
    assert anew["stdout"].endswith("<>")
    assert "restarted" not in run(client, far, "true", start=True)


def test_a_shell_that_was_stopped_was_not_lost(client: Client, far: str) -> None:
    run(client, far, "cd /usr", start=True)
    client.shell.stop(far)
    assert "restarted" not in run(client, far, "pwd", start=True)


def test_a_shell_that_ended_because_its_connection_was_changed_is_told_as_lost(client: Client, far: str) -> None:
    run(client, far, "cd /usr", start=True)
    run(client, far, "cd /usr", start=True, session="other")
    [stored] = client.connection.info([far])
    client.connection.update(far, data={"type": stored.type, **stored.data, "keepAlive": 9.0})
    for session in (None, "other"):
        more = {} if session is None else {"session": session}
        assert run(client, far, "pwd", start=True, **more).get("restarted")
        assert "restarted" not in run(client, far, "pwd", start=True, **more)
    client.connection.update(far, name=f"{stored.path}-renamed")
    assert "restarted" not in run(client, far, "pwd", start=True)


def test_a_command_whose_link_breaks_is_not_run_twice(
    client: Client, server: Sshd, far: str, tmp_path: Path, gate: Path
) -> None:
    counter = tmp_path / "counter"
    caught: list[ClientError] = []

    def work() -> None:
        with client.clone() as own:
            caught.append(failure(lambda: run(own, far, f"echo once >> {counter}; cat {gate}", start=True)))

    worker = threading.Thread(target=work)
    worker.start()
    eventually(counter.exists, "the command has not begun")
    server.kill_sessions()
    worker.join(DEADLINE_SECONDS)
    assert caught[0].code == "shell_lost", caught[0].message
    next_one = run(client, far, f"cat {counter}", start=True)
    assert next_one["stdout"] == "once", "the command ran twice"
    assert next_one.get("restarted"), "nobody is told that the shell is a new one"


def test_a_command_behind_one_that_lost_the_shell_runs_in_a_new_shell(
    client: Client, server: Sshd, far: str, gate: Path
) -> None:
    outcomes: dict[str, Any] = {}

    def work(name: str, command: str) -> None:
        with client.clone() as own:
            try:
                outcomes[name] = run(own, far, command, start=True)
            except ClientError as error:
                outcomes[name] = error.code

    run(client, far, "cd /usr", start=True)
    workers = [threading.Thread(target=work, args=("first", f"cat {gate}"))]
    workers[0].start()
    eventually_equal(lambda: state(client, far), ["busy"], "the first command has not begun")
    workers.append(threading.Thread(target=work, args=("second", "pwd")))
    workers[1].start()
    eventually_equal(lambda: client.shell.list(far)[0].status.waiting, 1, "the second command does not wait")
    server.kill_sessions()
    for worker in workers:
        worker.join(DEADLINE_SECONDS)
    assert outcomes["first"] == "shell_lost"
    assert outcomes["second"]["exitCode"] == 0
    assert outcomes["second"].get("restarted")
    assert outcomes["second"]["stdout"] != "/usr"


def test_a_lost_shell_is_reported_although_its_machine_was_away_in_between(
    client: Client, server: Sshd, far: str
) -> None:
    run(client, far, "cd /usr", start=True)
    server.stop()
    eventually_equal(lambda: state(client, far), ["lost"], "a shell whose machine stopped is not shown as lost")
    for _ in range(2):
        assert failure(lambda: run(client, far, "pwd", start=True)).code == "host_refused"
    server.start()
    assert run(client, far, "pwd", start=True).get("restarted")


def test_lines_begin_with_it(client: Client, server: Sshd, far: str, restarting: Daemon) -> None:
    import urllib.request

    run(client, far, "true", start=True)
    lose(client, server, far)
    request = urllib.request.Request(
        f"{restarting.url}/shell/exec",
        json.dumps({"connection": far, "command": "echo out; exit 3", "start": True}).encode(),
        {
            "Content-Type": "application/json",
            "Accept": "application/x-ndjson",
            "Authorization": f"Bearer {client.session_token}",
        },
    )
    with urllib.request.urlopen(request, timeout=DEADLINE_SECONDS) as response:
        lines = [json.loads(line) for line in response]
    assert lines == [{"restarted": True}, {"stdout": "out\n"}, {"exitCode": 3}]


def test_an_error_in_a_new_shell_tells_that_it_is_new(client: Client, server: Sshd, far: str, tmp_path: Path) -> None:
    (tmp_path / "below" / "deep").mkdir(parents=True)
    run(client, far, f"cd {tmp_path}/below", start=True)
    assert run(client, far, "pwd", cwd="deep", start=True)["exitCode"] == 0
    lose(client, server, far)
    refused = failure(lambda: run(client, far, "pwd", cwd="deep", start=True))
    assert (refused.code, refused.details.get("restarted")) == ("no_such_directory", True)
    server.kill_sessions()
    eventually_equal(lambda: state(client, far), ["lost"], "the new shell's loss is not shown")
    # Only the first answer tells that the shell is new, and so what it prints has enough time also on a busy machine.
    killed = failure(lambda: run(client, far, "echo out; sleep 100", timeout=3, start=True))
    assert killed.code == "command_timeout"
    assert (killed.details.get("restarted"), killed.details["stdout"]) == (True, "out")


def test_a_broadcast_tells_it_where_it_was(client: Client, server: Sshd, far: str) -> None:
    other = add(client, server)
    run(client, far, "true", start=True)
    lose(client, server, far)
    fields = {"command": "echo hi", "connections": [far, other]}
    with client.shell.broadcast(**fields, start=False) as outcomes:  # type: ignore[arg-type]
        codes = {one.connection: one.result.code for one in outcomes if isinstance(one.result, ClientError)}
    assert codes == {far: "shell_lost", other: "no_shell"}
    answer = client.send("/shell/broadcast", json.dumps(fields).encode(), "application/json")
    lines = {line.get("connection"): line for line in map(json.loads, answer.splitlines())}
    assert [lines[id]["stdout"] for id in (far, other)] == ["hi", "hi"]
    assert [lines[id].get("restarted") for id in (far, other)] == [True, None]


def test_a_start_tells_it_when_asked(client: Client, server: Sshd, far: str) -> None:
    plain = client.post("/shell/start", connection=far)
    assert client.post("/shell/start", connection=far, tellRestarted=True) == plain
    lose(client, server, far)
    assert client.post("/shell/start", connection=far) == plain, "the plain answer has changed"
    lose(client, server, far)
    assert client.post("/shell/start", connection=far, tellRestarted=True) == {**plain, "restarted": True}


def test_a_command_that_may_become_a_job_starts_its_shell(client: Client, server: Sshd, far: str) -> None:
    assert failure(lambda: run(client, far, "true", detachAfter=30)).code == "no_shell"
    assert run(client, far, "echo hi", detachAfter=30, start=True) == {"exitCode": 0, "stdout": "hi", "stderr": ""}
    lose(client, server, far)
    assert run(client, far, "echo hi", detachAfter=30, start=True).get("restarted")
    lose(client, server, far)
    job = run(client, far, "sleep 100", detachAfter=0, start=True)
    assert (set(job), job.get("restarted")) == ({"job", "stdout", "stderr", "restarted"}, True)
    client.jobs.get(job["job"]).kill(signal="KILL", grace=0)


def test_a_silent_host_is_shown_as_lost_when_its_time_is_over(client: Client, server: Sshd) -> None:
    far = add(client, server, keepAlive=0.2)
    run(client, far, "true", start=True)
    server.freeze()
    try:
        eventually_equal(lambda: state(client, far), ["lost"], "a shell whose host fell silent is not shown as lost")
    finally:
        server.thaw()
    assert run(client, far, "pwd", start=True).get("restarted")


def test_lost_shells_do_not_count_towards_the_limit(client: Client) -> None:
    connection = client.connection.add("many", {"type": "local", "shell": "bash"})
    names = [f"s{number}" for number in range(16)]
    for name in names:
        client.shell.start(connection, session=name)
    for one in client.shell.list(connection):
        psutil.Process(one.pid).kill()
    eventually_equal(lambda: set(state(client, connection)), {"lost"}, "shells that were killed are not shown as lost")
    for name in names:
        assert failure(lambda name=name: run(client, connection, "true", session=name)).code == "shell_lost"  # type: ignore[misc]
    client.shell.start(connection, session="another")
    assert "restarted" not in run(client, connection, "true", session="another", start=True)
    assert run(client, connection, "true", session="s15", start=True).get("restarted")
    client.shell.stop(connection, all=True)


def test_lost_shells_of_a_removed_connection_are_forgotten(client: Client, server: Sshd) -> None:
    far = add(client, server)
    run(client, far, "true", start=True)
    lose(client, server, far)
    client.connection.remove([far])
    assert failure(lambda: run(client, far, "true", start=True)).code == "unknown_connection"
    assert run(client, LOCAL, "echo hi", start=True)["stdout"] == "hi"
