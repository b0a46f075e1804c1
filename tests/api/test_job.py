"""``/job``: starting, reading by offsets, awaiting, feeding, killing, finding and removing jobs."""

from __future__ import annotations

import base64
import hashlib
import os
import resource
import socket
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from connmgr.client import Client, ClientError
from connmgr.contract.shell import fresh_session
from connmgr.processes import current_session
from tests.api.wire import LOCAL, add, address, bearer, client_of, refused
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.deadlines import eventually_equal
from tests.rights.wire import create

POLL_SECONDS = 25


def start(client: Client, command: str, **options: Any) -> str:
    job: str = client.post("/job/start", connection=LOCAL, command=command, **options)["job"]
    return job


def poll(client: Client, job: str, **options: Any) -> Any:
    return client.post("/job/output", job=job, **options)


def ended(client: Client, job: str, **options: Any) -> Any:
    return poll(client, job, wait=POLL_SECONDS, until="exit", **options)


def test_a_job_prints_and_ends(client: Client) -> None:
    job = start(client, "echo out; echo err >&2; exit 3")
    answer = ended(client, job)
    assert answer == {
        "state": "exited",
        "exitCode": 3,
        "stdout": {"data": "out\n", "next": 4, "eof": True, "size": 4},
        "stderr": {"data": "err\n", "next": 4, "eof": True, "size": 4},
        "truncated": False,
        "stale": False,
    }
    assert ended(client, job) == answer, "what was read once can be read again"


def test_a_job_runs_where_its_shell_is_and_changes_nothing_there(client: Client, tmp_path: Path) -> None:
    client.shell.exec(LOCAL, f"cd {tmp_path}; export COLOUR='a b'; unset LANG")
    job = start(client, 'pwd; echo "$COLOUR,$MORE,${LANG-none}"; cd /; export COLOUR=changed', env={"MORE": "more"})
    assert ended(client, job)["stdout"]["data"] == f"{tmp_path}\na b,more,none\n"
    assert client.shell.exec(LOCAL, 'echo "$PWD $COLOUR$MORE"').stdout == f"{tmp_path} a b"
    job = start(client, "pwd", cwd="/usr")
    assert ended(client, job)["stdout"]["data"] == "/usr\n"
    assert refused(client, "/job/start", connection=LOCAL, command="true", cwd="/nowhere").code == "no_such_directory"


def test_a_job_tells_where_its_command_ended(client: Client, tmp_path: Path) -> None:
    directory = tmp_path / "größer"
    directory.mkdir()
    for text in (f"cd '{directory}'", f"cd '{directory}' && sleep 0.1"):
        job = client.jobs.start(LOCAL, text, tell_directory=True)
        job.wait(20)
        for _ in range(2):
            assert job.output(wait=20).directory == str(directory)
    silent = client.jobs.start(LOCAL, "cd /")
    silent.wait(20)
    assert silent.output().directory is None


def test_a_job_does_not_wait_for_the_commands_of_its_shell(daemon: Daemon, client: Client, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with ThreadPoolExecutor(1) as pool, client_of(daemon) as other:
        running = pool.submit(other.shell.exec, LOCAL, f"cat {fifo}")
        with fifo.open("w") as writer:
            job = start(client, "echo at once")
            assert ended(client, job)["stdout"]["data"] == "at once\n"
            writer.write("later")
        assert running.result(20).stdout == "later"


def test_words_run_without_a_shell(client: Client) -> None:
    job = client.post("/job/start", connection=LOCAL, argv=["printf", "%s|", "a b", "$HOME", "ü"])["job"]
    assert ended(client, job)["stdout"]["data"] == "a b|$HOME|ü|"


@pytest.mark.parametrize(
    "fields", [{}, {"command": "true", "argv": ["true"]}, {"argv": []}, {"command": "true", "keep": -1}]
)
def test_malformed_starts_are_refused(client: Client, fields: dict[str, Any]) -> None:
    assert refused(client, "/job/start", connection=LOCAL, **fields).code == "invalid_request"


def test_text_is_cut_between_characters_and_bytes_are_exact(client: Client) -> None:
    job = start(client, "printf 'aäöü€x'; printf '\\377\\000' >&2")
    ended(client, job)
    text, at = "", 0
    for _ in range(20):
        piece = poll(client, job, stdout=at, maxBytes=16)["stdout"]
        text, at = text + piece["data"], piece["next"]
        if piece["eof"]:
            break
    assert text == "aäöü€x"
    whole = poll(client, job, encoding="base64")
    assert base64.b64decode(whole["stderr"]["data"]) == b"\xff\0"
    assert poll(client, job, stdout=2)["stdout"]["data"] == "\ufffdöü€x", "an offset within a character"


def test_the_end_is_told_at_once_to_who_takes_a_part_of_the_output(client: Client) -> None:
    job = start(client, "seq 1000; sleep 0.2")
    began = time.monotonic()
    answer = ended(client, job, maxBytes=16)
    assert time.monotonic() - began < POLL_SECONDS
    assert (answer["state"], answer["stdout"]["next"], answer["stdout"]["size"]) == ("exited", 16, 3893)
    assert not answer["stdout"]["eof"]
    assert poll(client, job, stdout=3888)["stdout"] == {"data": "1000\n", "next": 3893, "eof": True, "size": 3893}


def test_all_bytes_come_once_whatever_the_pieces(client: Client) -> None:
    job = start(client, "head -c 3000000 /dev/urandom | tee /dev/stderr")
    digests = {"stdout": hashlib.sha256(), "stderr": hashlib.sha256()}
    offsets = {"stdout": 0, "stderr": 0}
    eof = False
    while not eof:
        answer = poll(client, job, **offsets, wait=POLL_SECONDS, maxBytes=100_003, encoding="base64")
        for name in offsets:
            digests[name].update(base64.b64decode(answer[name]["data"]))
            offsets[name] = answer[name]["next"]
        eof = answer["stdout"]["eof"] and answer["stderr"]["eof"]
    assert offsets == {"stdout": 3_000_000, "stderr": 3_000_000}
    assert digests["stdout"].digest() == digests["stderr"].digest()


def test_a_poll_waits_for_news(client: Client, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    job = start(client, f"echo first; cat {fifo}; echo last")
    assert poll(client, job, wait=POLL_SECONDS)["stdout"] == {"data": "first\n", "next": 6, "eof": False, "size": 6}
    began = time.monotonic()
    assert poll(client, job, stdout=6, wait=0.3)["stdout"] == {"data": "", "next": 6, "eof": False, "size": 6}
    assert 0.3 <= time.monotonic() - began < POLL_SECONDS
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(poll, client, job, stdout=6, wait=POLL_SECONDS)
        fifo.write_text("news\n")
        assert waiting.result(20)["stdout"]["data"].startswith("news\n")


def test_output_is_not_repeated_while_nothing_is_printed(client: Client) -> None:
    job = start(client, "echo once; echo err >&2; read x", stdin="open")
    before = poll(client, job, wait=POLL_SECONDS)
    while not (before["stdout"]["next"] == 5 and before["stderr"]["next"] == 4):
        before = poll(client, job, wait=1)
    for _ in range(3):
        # The wait is longer than the daemon's last view of the job is used.
        again = poll(client, job, stdout=5, stderr=4, wait=0.2)
        assert (again["stdout"]["data"], again["stderr"]["data"]) == ("", "")
    client.post("/job/remove", job=job, force=True)


def test_waiting_for_a_job_holds_no_thread_and_no_slot(daemon: Daemon, client: Client) -> None:
    job = start(client, "read x", stdin="open")
    authorization, sockets = bearer(daemon)["Authorization"], []
    for _ in range(200):
        one = socket.create_connection(address(daemon.url))
        body = f'{{"job":"{job}","wait":25}}'.encode()
        head = (
            f"POST /job/wait HTTP/1.1\r\nHost: localhost:{address(daemon.url)[1]}\r\nAuthorization: {authorization}\r\n"
        )
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        one.sendall(head.encode() + body)
        sockets.append(one)
    try:
        assert client.shell.exec(LOCAL, "echo free").stdout == "free"
        eventually_equal(lambda: client.daemon.status().slots.in_use, 0, "who waits holds a slot")
        client.post("/job/input", job=job, data="x\n")
        for one in sockets:
            one.settimeout(20)
            assert one.recv(65536).startswith(b"HTTP/1.1 200")
    finally:
        for one in sockets:
            one.close()


def test_open_input_arrives_in_order_to_its_end(client: Client) -> None:
    job = start(client, "cat; echo done", stdin="open")
    for number in range(5):
        client.post("/job/input", job=job, data=f"{number}\n")
    client.post("/job/input", job=job, data=base64.b64encode(b"\0\xff").decode(), encoding="base64", eof=True)
    answer = ended(client, job, encoding="base64")
    assert base64.b64decode(answer["stdout"]["data"]) == b"0\n1\n2\n3\n4\n\0\xffdone\n"
    assert refused(client, "/job/input", job=job, data="late").code == "job_finished"


def test_input_after_its_end_and_without_any(client: Client) -> None:
    job = start(client, "cat; sleep 60", stdin="open")
    client.post("/job/input", job=job, data="a", eof=True)
    assert refused(client, "/job/input", job=job, data="b").code == "stdin_closed"
    client.post("/job/remove", job=job, force=True)
    job = start(client, "sleep 60")
    assert refused(client, "/job/input", job=job, data="b").code == "stdin_closed"
    client.post("/job/remove", job=job, force=True)
    assert refused(client, "/job/info", job=job).code == "unknown_job"


def test_text_for_input(client: Client) -> None:
    job = start(client, "cat", stdin="a\nb'\n$HOME\n")
    assert ended(client, job)["stdout"]["data"] == "a\nb'\n$HOME\n"
    job = start(client, "cat")
    assert ended(client, job)["stdout"] == {"data": "", "next": 0, "eof": True, "size": 0}


def test_a_killed_job(client: Client) -> None:
    job = start(client, "echo begun; sleep 300 & sleep 300")
    assert poll(client, job, wait=POLL_SECONDS)["stdout"]["data"] == "begun\n"
    client.post("/job/kill", job=job)
    described = client.post("/job/wait", job=job)
    assert (described["state"], described["exitCode"]) == ("killed", 143)
    assert refused(client, "/job/kill", job=job).code == "job_finished"
    assert described["ended"] > described["created"]


def test_a_job_that_ignores_term_is_killed_after_the_grace(client: Client) -> None:
    job = start(client, "trap '' TERM; echo ready; while :; do sleep 1; done")
    poll(client, job, wait=POLL_SECONDS)
    client.post("/job/kill", job=job, grace=0.5)
    assert client.post("/job/wait", job=job)["exitCode"] == 137


def test_a_job_beyond_its_time(client: Client) -> None:
    job = start(client, "echo begun; sleep 300", timeout=0.5)
    answer = ended(client, job)
    assert (answer["state"], answer["stdout"]["data"]) == ("timed_out", "begun\n")


def test_a_key_starts_once(daemon: Daemon, client: Client, tmp_path: Path) -> None:
    key, mark = str(uuid.uuid4()), tmp_path / "mark"

    def begin() -> str:
        with client_of(daemon) as own:
            return start(own, f"echo once >>{mark}", key=key)

    with ThreadPoolExecutor(6) as pool:
        jobs = {begun.result(30) for begun in [pool.submit(begin) for _ in range(6)]}
    assert len(jobs) == 1
    ended(client, jobs.pop())
    assert mark.read_text() == "once\n"


@pytest.mark.needs("linux")
def test_a_job_that_the_vault_cannot_record_is_killed_and_is_no_refusal(own_daemon: Daemon, tmp_path: Path) -> None:
    client, mark = own_daemon.client, tmp_path / "mark"
    # The shell and its helper start before the daemon's files may not grow.
    client.shell.start(LOCAL)
    first = start(client, "true")
    ended(client, first)
    unlimited = resource.prlimit(own_daemon.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(own_daemon.pid, resource.RLIMIT_FSIZE, (1, unlimited[1]))
    refusal = refused(client, "/job/start", connection=LOCAL, command=f"echo $$ >{mark}; exec sleep 300")
    resource.prlimit(own_daemon.pid, resource.RLIMIT_FSIZE, unlimited)
    # 503 would say that nothing has begun, and that the request may be repeated.
    assert (refusal.status, refusal.code) == (500, "command_cancelled")
    assert "The command began, and was killed" in refusal.message
    if mark.exists() and (pid := mark.read_text().strip()):
        assert not psutil.pid_exists(int(pid)), "the command runs on"
    assert [job["job"] for job in client.post("/job/query")["jobs"]] == [first]
    assert ended(client, start(client, "echo again"))["stdout"]["data"] == "again\n"


@pytest.mark.parametrize(
    "other", [{"command": "echo 2"}, {"env": {"A": "2"}}, {"cwd": "/"}, {"stdin": "2"}, {"keep": 1}, {"timeout": 9}]
)
def test_a_key_is_not_used_for_something_else(client: Client, other: dict[str, Any]) -> None:
    key = str(uuid.uuid4())
    fields: dict[str, Any] = {"connection": LOCAL, "command": "echo 1", "env": {"A": "1"}, "key": key}
    job = client.post("/job/start", **fields, sendEnv={"LANG": "C.UTF-8"})["job"]
    said = refused(client, "/job/start", **{**fields, **other})
    assert (said.code, said.status, said.details["job"]) == ("key_reused", 409, job)
    # Where the client runs does not matter.
    assert client.post("/job/start", **fields, sendEnv={"LANG": "C"})["job"] == job


def test_a_start_may_be_repeated_from_another_terminal(client: Client) -> None:
    here = current_session()
    names = [here._replace(terminal=terminal).name for terminal in ("pts/1", "pts/2")]
    fields = {"connection": LOCAL, "command": "echo 1", "key": str(uuid.uuid4())}
    jobs = set()
    for name in names:
        client.shell.start(LOCAL, session=name)
        jobs.add(client.post("/job/start", **fields, session=name)["job"])
    assert len(jobs) == 1
    client.shell.start(LOCAL, session="build")
    assert refused(client, "/job/start", **fields, session="build").code == "key_reused"


def test_a_start_in_a_fresh_shell_may_be_repeated(client: Client) -> None:
    fields = {"connection": LOCAL, "command": "echo 1", "key": str(uuid.uuid4())}
    jobs = set()
    for name in (fresh_session(), fresh_session()):
        client.shell.start(LOCAL, session=name)
        jobs.add(client.post("/job/start", **fields, session=name)["job"])
        client.shell.stop(LOCAL, session=name)
    assert len(jobs) == 1
    # Another shell has another directory and other variables.
    client.shell.start(LOCAL)
    assert refused(client, "/job/start", **fields).code == "key_reused"


def test_the_keys_of_a_token_are_its_own(daemon: Daemon, client: Client) -> None:
    fields: dict[str, Any] = {"connection": LOCAL, "key": str(uuid.uuid4())}
    own = client.post("/job/start", **fields, command="echo owner")["job"]
    holder = create(daemon, "shell.any", "job")
    theirs = holder.ok("/job/start", **fields, command="echo token")["job"]
    assert theirs != own
    assert holder.ok("/job/info", job=theirs)["key"] == fields["key"]


def test_offsets_beyond_the_end(client: Client) -> None:
    job = start(client, "echo x")
    ended(client, job)
    assert refused(client, "/job/output", job=job, stdout=3).code == "invalid_request"
    assert refused(client, "/job/output", job=job, stdout=-1).code == "invalid_request"
    assert refused(client, "/job/output", job=str(uuid.uuid4())).code == "unknown_job"


def test_query_filters_jobs(client: Client) -> None:
    name = str(uuid.uuid4())
    done, running = start(client, "true", name=name), start(client, "sleep 60", name=name)
    ended(client, done)

    def found(**fields: Any) -> list[str]:
        return [one["job"] for one in client.post("/job/query", name=name, **fields)["jobs"]]

    assert found() == [done, running]
    assert found(states=["exited"]) == [done]
    assert found(states=["running"]) == [running]
    assert found(connectionFilter="nothing") == []
    assert found(minAge=3600) == []
    assert found(maxAge=3600) == [done, running]
    assert refused(client, "/job/remove", job=running).code == "job_running"
    client.post("/job/remove", job=running, force=True)
    assert found() == [done]


def test_info_describes_a_job(client: Client) -> None:
    job = start(client, "exit 2", name="n", keep=60)
    client.post("/job/wait", job=job)
    described = client.post("/job/info", job=job)
    assert {**described, "created": "", "ended": ""} == {
        "job": job,
        "connection": LOCAL,
        "session": None,
        "name": "n",
        "key": None,
        "command": "exit 2",
        "state": "exited",
        "exitCode": 2,
        "stdinOpen": False,
        "created": "",
        "ended": "",
        "keep": 60,
        "stale": False,
    }


def test_a_job_needs_a_running_shell(client: Client) -> None:
    client.shell.stop(LOCAL)
    assert refused(client, "/job/start", connection=LOCAL, command="true").code == "no_shell"


def test_a_job_outlives_its_shell(client: Client) -> None:
    job = start(client, "echo begun; read x; echo $x", stdin="open")
    client.shell.stop(LOCAL)
    client.post("/job/input", job=job, data="after\n")
    assert ended(client, job)["stdout"]["data"] == "begun\nafter\n"


def test_a_command_that_ends_in_time_is_answered_as_any_other(client: Client) -> None:
    options = {"connection": LOCAL, "command": "echo out; echo err >&2; exit 3", "detachAfter": POLL_SECONDS}

    def known() -> set[str]:
        return {one["job"] for one in client.post("/job/query")["jobs"]}

    before = known()
    assert client.post("/shell/exec", **options) == {"exitCode": 3, "stdout": "out", "stderr": "err"}
    assert known() <= before, "a job is left of it"


def test_a_command_that_goes_on_is_answered_as_a_job(client: Client, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    options = {"connection": LOCAL, "command": f"echo begun; cat {fifo}; echo done", "detachAfter": 2}
    answer = client.post("/shell/exec", **options)
    job = answer.pop("job")
    assert answer == {"stdout": "begun", "stderr": ""}
    client.shell.stop(LOCAL)
    fifo.write_bytes(b"")
    assert ended(client, job)["stdout"]["data"] == "begun\ndone\n"


def test_a_command_that_goes_on_keeps_its_timeout(client: Client) -> None:
    options = {"connection": LOCAL, "command": "echo begun; sleep 60", "detachAfter": POLL_SECONDS, "timeout": 2}
    with pytest.raises(ClientError) as caught:
        client.post("/shell/exec", **options)
    assert (caught.value.code, caught.value.details["stdout"]) == ("command_timeout", "begun")


@pytest.mark.needs("dash")
def test_limits_hold_for_jobs_that_are_started_in_a_burst(start_daemon: StartDaemon) -> None:
    client = start_daemon("--max-connection-jobs", "5", "--max-jobs", "8").client
    data = {"type": "local", "shell": "/bin/dash"}
    other = add(client, "other", **data)
    started: dict[str, list[str]] = {LOCAL: [], other: []}
    for connection in started:
        client.post("/shell/start", connection=connection)

    def begin(connection: str) -> None:
        job = client.post("/job/start", connection=connection, command="sleep 600")["job"]
        started[connection].append(job)

    def limited(connection: str) -> bool:
        return refused(client, "/job/start", connection=connection, command="sleep 600").code == "job_limit"

    try:
        for connection in [LOCAL] * 4 + [other] * 3 + [LOCAL]:
            begin(connection)
        assert limited(LOCAL), "more jobs than --max-connection-jobs"
        assert limited(other), "more jobs than --max-jobs"
        client.post("/job/remove", job=started[LOCAL].pop(), force=True)
        begin(other)
        assert limited(LOCAL), "a count of a moment ago counts for another connection's jobs"
    finally:
        for job in [*started[LOCAL], *started[other]]:
            client.post("/job/remove", job=job, force=True)
