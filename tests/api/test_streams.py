"""``/shell/exec`` with lines: output while the command runs, and the last line."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from connmgr.client import Client
from tests.api.wire import LOCAL, NOBODY, address, bearer, client_of, send, talk
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS, eventually, eventually_equal, given_time, settled
from tests.plugins.oneself import ssh_server
from tests.plugins.places import ssh_fields

LINES = "application/x-ndjson"

Line = dict[str, Any]


class Stream:
    """A request for lines whose answer is read while the command runs; iterating yields the remaining lines."""

    def __init__(self, daemon: Daemon, fields: Line) -> None:
        self._connection = http.client.HTTPConnection(*address(daemon.url), timeout=DEADLINE_SECONDS)
        headers = {"Content-Type": "application/json", "Accept": LINES, **bearer(daemon)}
        self._connection.request("POST", "/shell/exec", json.dumps(fields).encode(), headers)
        self._answer: http.client.HTTPResponse | None = None

    @property
    def answer(self) -> http.client.HTTPResponse:
        self._answer = self._answer or self._connection.getresponse()
        return self._answer

    def line(self) -> Line:
        found: Line = json.loads(self.answer.readline())
        return found

    def __iter__(self) -> Iterator[Line]:
        return map(json.loads, self.answer)

    def close(self) -> None:
        if self._answer is not None:
            self._answer.close()
        self._connection.close()


Run = Callable[..., Stream]


@pytest.fixture(scope="module")
def over_ssh(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An SSH connection to the user who runs the tests."""
    with ssh_server(tmp_path_factory.mktemp("far")) as server, client_of(daemon) as client:
        fields = {"type": "ssh", **ssh_fields(server, server.user)}
        id = client.connection.add("streamed", fields)
        yield id
        client.connection.remove([id])


@pytest.fixture(params=["local", pytest.param("ssh", marks=pytest.mark.needs("sshd"))])
def connection(request: pytest.FixtureRequest, daemon: Daemon) -> str:
    """A connection with a running shell."""
    id = LOCAL if request.param == "local" else str(request.getfixturevalue("over_ssh"))
    with client_of(daemon) as client:
        client.shell.start(id)
    return id


@pytest.fixture
def run(daemon: Daemon) -> Iterator[Run]:
    """A function that requests lines of a command: ``run(command, connection=..., timeout=...)``."""
    running: list[Stream] = []

    def begin(command: str, *, connection: str = LOCAL, of: Daemon = daemon, **options: Any) -> Stream:
        running.append(Stream(of, {"connection": connection, "command": command, **options}))
        return running[-1]

    yield begin
    for stream in running:
        stream.close()


def whole(lines: list[Line], name: str) -> str:
    return "".join(line.get(name, "") for line in lines)


def wait_for(gate: Path) -> str:
    """Return a command that waits until ``gate`` exists."""
    return f"while [ ! -e {gate} ]; do sleep 0.01; done"


def test_lines_come_while_the_command_runs_each_stream_by_its_name(run: Run, connection: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    command = f"echo one; {wait_for(first)}; echo two >&2; {wait_for(second)}; printf three; exit 7"
    stream = run(command, connection=connection)
    assert stream.line() == {"stdout": "one\n"}
    first.touch()
    assert stream.line() == {"stderr": "two\n"}
    second.touch()
    assert list(stream) == [{"stdout": "three"}, {"exitCode": 7}]
    assert stream.answer.status == 200
    assert stream.answer.getheader("Content-Type") == LINES


@pytest.mark.parametrize(
    ("command", "stdout", "stderr"),
    [
        ("true", "", ""),
        (r"printf '\n'", "\n", ""),
        (r"printf 'a\n\n'", "a\n\n", ""),
        (r"printf 'a\000b' >&2", "", "a\0b"),
        (r"printf '\377\376ok'", "\ufffd\ufffdok", ""),
        (r"printf 'cut \303'", "cut \ufffd", ""),
    ],
)
def test_output_is_neither_cut_nor_stripped(run: Run, client: Client, command: str, stdout: str, stderr: str) -> None:
    # A shell may write each line separately.
    lines = list(run(command))
    assert lines.pop() == {"exitCode": 0}
    assert (whole(lines, "stdout"), whole(lines, "stderr")) == (stdout, stderr)


def test_a_character_that_is_printed_byte_by_byte_is_not_cut(run: Run, connection: str) -> None:
    text = "é€𝄞"
    # The daemon reads single bytes, and joins output within 20 ms: both cut characters.
    slowly = "; ".join(f"printf '\\{byte:03o}'; sleep 0.03" for byte in text.encode())
    lines = list(run(slowly, connection=connection))
    assert lines.pop() == {"exitCode": 0}
    assert whole(lines, "stdout") == text
    assert all("\ufffd" not in line["stdout"] for line in lines)


def test_base64_brings_both_streams_byte_by_byte(run: Run, connection: str, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("stdout", "stderr")]
    for file in files:
        file.write_bytes(os.urandom(5_000_000))
    command = f"cat {files[0]} & cat {files[1]} >&2; wait"
    lines = list(run(command, connection=connection, encoding="base64"))
    assert lines.pop() == {"exitCode": 0}
    for file in files:
        came = b"".join(base64.b64decode(line[file.name]) for line in lines if file.name in line)
        assert hashlib.sha256(came).digest() == hashlib.sha256(file.read_bytes()).digest(), file.name


def test_output_has_no_limit(run: Run, start_daemon: StartDaemon) -> None:
    small = start_daemon("--max-output", "1024")
    small.client.shell.start(LOCAL)
    lines = list(run("head -c 3000000 /dev/zero | tr '\\0' y", of=small))
    assert lines.pop() == {"exitCode": 0}
    assert whole(lines, "stdout") == "y" * 3_000_000


def test_a_burst_is_joined(run: Run, client: Client) -> None:
    lines = list(run("i=0; while [ $i -lt 1000 ]; do echo $i; i=$((i+1)); done"))
    assert whole(lines, "stdout") == "".join(f"{number}\n" for number in range(1000))
    assert len(lines) < 100, "almost every write became a line"


def test_after_a_timeout_the_last_line_tells_of_it(run: Run, client: Client) -> None:
    def lines_within(seconds: float) -> list[Line]:
        lines = list(run("echo begun; sleep 50", timeout=seconds))
        message = f"The command ran longer than {seconds:g} s and was killed."
        assert (lines[-1]["error"]["code"], lines[-1]["error"]["message"]) == ("command_timeout", message)
        return lines

    lines = given_time(lines_within, lambda lines: len(lines) > 1)
    assert lines[0] == {"stdout": "begun\n"}
    assert len(lines) == 2
    assert client.shell.exec(LOCAL, "echo free").stdout == "free"


def test_a_shell_that_is_killed_is_told_in_the_last_line(run: Run, clean_daemon: Daemon) -> None:
    clean_daemon.client.shell.start(LOCAL)
    lines = list(run("echo begun; kill -9 $$; sleep 0.1", of=clean_daemon))
    assert lines[0] == {"stdout": "begun\n"}
    assert [line["error"]["code"] for line in lines[1:]] == ["shell_lost"]


def test_a_shell_that_is_stopped_is_told_in_the_last_line(run: Run, clean_daemon: Daemon) -> None:
    clean_daemon.client.shell.start(LOCAL)
    stream = run("echo begun; sleep 50", of=clean_daemon)
    assert stream.line() == {"stdout": "begun\n"}
    clean_daemon.client.shell.stop(LOCAL)
    assert [line["error"]["code"] for line in stream] == ["shell_stopped"]


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"connection": NOBODY, "command": "true"}, 400, "unknown_connection"),
        ({"connection": LOCAL, "command": "true", "cwd": "/nowhere"}, 400, "no_such_directory"),
        ({"connection": LOCAL, "command": 1}, 400, "invalid_request"),
    ],
)
def test_errors_before_the_command_begins_are_answered_without_a_stream(
    daemon: Daemon, client: Client, fields: Line, status: int, code: str
) -> None:
    answer = send(daemon.url, "/shell/exec", fields, {"Accept": LINES, **bearer(daemon)})
    assert (answer.status, answer.code) == (status, code)
    assert answer.headers["Content-Type"] == "application/json"


def test_without_a_shell_and_while_it_is_busy_the_answer_is_as_ever(run: Run, clean_daemon: Daemon) -> None:
    fields = {"connection": LOCAL, "command": "true", "timeout": 0.2}
    headers = {"Accept": LINES, **bearer(clean_daemon)}
    assert send(clean_daemon.url, "/shell/exec", fields, headers).code == "no_shell"
    clean_daemon.client.shell.start(LOCAL)
    assert run("echo begun; sleep 50", of=clean_daemon).line() == {"stdout": "begun\n"}
    assert send(clean_daemon.url, "/shell/exec", fields, headers).code == "shell_busy"


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("*/*", "application/json"),
        ("application/*", "application/json"),
        (f"{LINES};q=0", "application/json"),
        (f"application/json, {LINES};q=0.5", "application/json"),
        (f"application/json, {LINES}", LINES),
        (f"text/html, {LINES};q=0.5, */*;q=0.1", LINES),
        ("Application/X-NDJSON", LINES),
    ],
)
def test_only_a_client_that_names_the_type_gets_lines(daemon: Daemon, client: Client, accept: str, kind: str) -> None:
    fields = {"connection": LOCAL, "command": "echo hello"}
    answer = send(daemon.url, "/shell/exec", fields, {"Accept": accept, **bearer(daemon)})
    assert answer.headers["Content-Type"] == kind
    if kind == LINES:
        assert answer.body == b'{"stdout":"hello\\n"}\n{"exitCode":0}\n'
    else:
        assert answer.json == {"exitCode": 0, "stdout": "hello", "stderr": ""}


def test_no_other_endpoint_answers_in_lines(daemon: Daemon, client: Client) -> None:
    answer = send(daemon.url, "/shell/start", {"connection": LOCAL}, {"Accept": LINES, **bearer(daemon)})
    assert answer.headers["Content-Type"] == "application/json"
    assert send(daemon.url, "/shell/exec", method="HEAD", headers={"Accept": LINES}).status == 405


def test_a_client_of_http_1_0_gets_lines_until_the_connection_ends(daemon: Daemon, client: Client) -> None:
    body = json.dumps({"connection": LOCAL, "command": "echo one; echo two >&2"})
    host = ":".join(map(str, address(daemon.url)))
    answer = talk(
        daemon.url,
        f"POST /shell/exec HTTP/1.0\r\nHost: {host}\r\nContent-Type: application/json\r\nAccept: {LINES}\r\n"
        f"Authorization: {bearer(daemon)['Authorization']}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode(),
    )
    header, _, lines = answer.partition(b"\r\n\r\n")
    assert header.startswith(b"HTTP/1.0 200 OK\r\n")
    assert b"transfer-encoding" not in header.lower()
    assert lines == b'{"stdout":"one\\n"}\n{"stderr":"two\\n"}\n{"exitCode":0}\n'


def test_a_client_that_leaves_kills_the_command(run: Run, connection: str, daemon: Daemon) -> None:
    stream = run("echo begun; sleep 300", connection=connection)
    assert stream.line() == {"stdout": "begun\n"}
    stream.close()
    # The session is free again long before the command would have ended.
    with client_of(daemon) as client:
        assert client.shell.exec(connection, "echo free", timeout=20).stdout == "free"


MEGABYTES = 24
STILL_SECONDS = 1.0


def printing(progress: Path) -> str:
    """Return a command that prints more than all buffers hold, and records the printed megabytes."""
    return (
        f"i=0; while [ $i -lt {MEGABYTES} ]; do head -c 1000000 /dev/zero; i=$((i+1)); echo $i > {progress}.new; "
        f"mv {progress}.new {progress}; done"
    )


def until_it_stands_still(progress: Path) -> int:
    """Wait until the command has paused for a second, and return the printed megabytes."""
    eventually(progress.exists, "the command printed nothing")
    return int(settled(progress.read_text, STILL_SECONDS, "the command does not pause"))


def test_a_command_waits_for_a_client_that_does_not_read(run: Run, connection: str, tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    stream = run(printing(progress), connection=connection, encoding="base64")
    lines = [stream.line()]
    assert until_it_stands_still(progress) < MEGABYTES, "the command ended, though nobody read what it printed"
    lines += stream
    assert lines.pop() == {"exitCode": 0}
    assert sum(len(base64.b64decode(line["stdout"])) for line in lines) == MEGABYTES * 1_000_000


def test_a_client_that_leaves_without_reading_kills_the_command(
    run: Run, connection: str, daemon: Daemon, tmp_path: Path
) -> None:
    progress = tmp_path / "progress"
    stream = run(printing(progress), connection=connection, encoding="base64")
    stream.line()
    until_it_stands_still(progress)
    stream.close()
    with client_of(daemon) as client:
        assert client.shell.exec(connection, "echo free", timeout=20).stdout == "free"


def test_the_time_of_a_command_goes_on_while_its_client_does_not_read(
    run: Run, connection: str, daemon: Daemon, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    command = f": > {begun}; {printing(tmp_path / 'progress')}"
    stream = run(command, connection=connection, encoding="base64", timeout=2)
    # The next request could have its turn before this one.
    eventually(begun.exists, "the command has not begun")
    with client_of(daemon) as client:
        assert client.shell.exec(connection, "echo free", timeout=20).stdout == "free"
    lines = list(stream)
    assert lines.pop()["error"]["code"] == "command_timeout"
    assert sum(len(base64.b64decode(line["stdout"])) for line in lines) < MEGABYTES * 1_000_000


def test_a_stream_holds_its_slot_and_is_recorded_when_it_ends(
    run: Run, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    daemon = start_daemon("--threads", "1")
    daemon.client.shell.start(LOCAL)
    go = tmp_path / "go"
    stream = run(f"echo one; {wait_for(go)}; echo four >&2; exit 3", of=daemon)
    assert stream.line() == {"stdout": "one\n"}
    busy = send(daemon.url, "/shell/exec", {"connection": LOCAL, "command": "true"}, bearer(daemon))
    assert (busy.status, busy.code) == (503, "busy")
    go.touch()
    assert list(stream) == [{"stderr": "four\n"}, {"exitCode": 3}]
    assert daemon.client.shell.exec(LOCAL, "true").exit_code == 0
    list(run("echo begun; sleep 50", of=daemon, timeout=1))
    assert daemon.client.shell.exec(LOCAL, "true").exit_code == 0

    def streamed() -> list[Line]:
        entries = [json.loads(line) for line in (daemon.data_dir / "audit.log").read_text().splitlines()]
        return [entry for entry in entries if entry["path"] == "/shell/exec" and entry.get("stdoutBytes")]

    # A stream is recorded after its slot is released.
    eventually_equal(lambda: len(streamed()), 2, "not both streams are recorded")
    shown = [
        {name: entry.get(name) for name in ("status", "code", "exitCode", "stdoutBytes", "stderrBytes")}
        for entry in streamed()
    ]
    assert shown == [
        {"status": 200, "code": None, "exitCode": 3, "stdoutBytes": 4, "stderrBytes": 5},
        {"status": 200, "code": "command_timeout", "exitCode": None, "stdoutBytes": 6, "stderrBytes": 0},
    ]


def test_a_command_that_its_client_left_is_recorded_as_cancelled(run: Run, own_daemon: Daemon) -> None:
    own_daemon.client.shell.start(LOCAL)
    stream = run("while echo again; do sleep 0.05; done", of=own_daemon)
    stream.line()
    stream.close()
    assert own_daemon.client.shell.exec(LOCAL, "true", timeout=20).exit_code == 0

    def codes() -> list[str | None]:
        return [json.loads(line).get("code") for line in (own_daemon.data_dir / "audit.log").read_text().splitlines()]

    eventually(codes, "nothing is recorded of it", holds=lambda seen: "command_cancelled" in seen)
