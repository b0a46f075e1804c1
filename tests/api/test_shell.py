"""``/shell``: the exact answers."""

from __future__ import annotations

import base64
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from connmgr.client import Client
from tests.api.wire import LOCAL, NOBODY, address, bearer, refused, send
from tests.daemon import Daemon
from tests.deadlines import eventually, given_time


def run(client: Client, command: str, **options: Any) -> Any:
    return client.post("/shell/exec", connection=LOCAL, command=command, **options)


def timed_out(client: Client, command: str, printed: str, **options: Any) -> Any:
    """Return the error of a command that was killed after its time, which sufficed to print ``printed``."""
    return given_time(
        lambda timeout: refused(client, "/shell/exec", connection=LOCAL, command=command, timeout=timeout, **options),
        lambda error: error.details.get("stdout") == printed,
    )


def test_start_describes_the_shell_and_again_when_it_runs(client: Client) -> None:
    described = client.post("/shell/start", connection=LOCAL)
    assert set(described) == {"shellDialect", "osType", "osName", "ttyState", "temp"}
    assert (described["osType"], described["ttyState"]) == ("linux", "none")
    assert type(described["shellDialect"]) is int
    assert Path(described["temp"]).is_absolute()
    run(client, "MARK=kept; export MARK")
    assert client.post("/shell/start", connection=LOCAL) == described
    assert run(client, "echo $MARK")["stdout"] == "kept"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("true", (0, "", "")),
        ("exit 3", (3, "", "")),
        ("echo out; echo err >&2; false", (1, "out", "err")),
        (r"printf 'a\n\n'", (0, "a\n", "")),
        (r"printf 'a\r\n'", (0, "a\r", "")),
        (r"printf '\n'", (0, "", "")),
        (r"printf 'no newline'", (0, "no newline", "")),
        (r"printf 'a\\b\"c\tд\001\177'", (0, 'a\\b"c\tд\x01\x7f', "")),
        (r"printf 'a\000b'", (0, "a\0b", "")),
        (r"printf '\377\376ok\n'", (0, "\ufffd\ufffdok", "")),
        (r"printf '\303'", (0, "\ufffd", "")),
        ("", (0, "", "")),
    ],
)
def test_a_result_has_exactly_its_exit_code_and_both_outputs(
    client: Client, command: str, expected: tuple[int, str, str]
) -> None:
    exit_code, stdout, stderr = expected
    assert run(client, command) == {"exitCode": exit_code, "stdout": stdout, "stderr": stderr}


def test_base64_brings_and_takes_bytes_as_they_are(client: Client) -> None:
    raw = bytes(range(256)) + b"\n"
    answer = run(client, "cat; cat >&2 <&-", stdin=base64.b64encode(raw).decode(), encoding="base64")
    assert base64.b64decode(answer["stdout"]) == raw
    answer = run(client, r"printf 'x\n' >&2", encoding="base64")
    assert (answer["stdout"], base64.b64decode(answer["stderr"])) == ("", b"x\n")


def test_options_hold_for_one_command(client: Client, tmp_path: Path) -> None:
    answer = run(client, 'pwd; echo "$A-$B"; cat', cwd=str(tmp_path), env={"A": "1 '2", "B": "ü\n"}, stdin="in\n")
    assert answer["stdout"] == f"{tmp_path}\n1 '2-ü\n\nin"
    assert run(client, 'echo "$A"; pwd')["stdout"].splitlines()[0] == ""
    error = refused(client, "/shell/exec", connection=LOCAL, command="pwd", cwd=str(tmp_path / "none"))
    assert (error.status, error.code) == (400, "no_such_directory")


@pytest.mark.parametrize("size", [1, 1024 * 1024 - 1, 1024 * 1024, 1024 * 1024 + 1, 3_000_000])
@pytest.mark.parametrize("encoding", ["utf-8", "base64"])
def test_output_of_any_size_arrives_whole(client: Client, size: int, encoding: str) -> None:
    # Characters of two bytes, so that some are cut between pieces.
    pairs, odd = divmod(size, 2)
    command = f"yes é | tr -d '\\n' | head -c {2 * pairs}; printf %.{odd}s x"
    answer = run(client, command, encoding=encoding)
    stdout = answer["stdout"] if encoding == "utf-8" else base64.b64decode(answer["stdout"]).decode()
    assert (answer["exitCode"], stdout == "é" * pairs + "x" * odd) == (0, True)


def test_truncated_output_is_reported_as_truncated(client: Client) -> None:
    answer = run(client, "head -c 17000000 /dev/zero | tr '\\0' x; echo end >&2")
    assert (len(answer["stdout"]), answer["stderr"], answer["truncated"]) == (16 * 1024 * 1024, "end", True)


@pytest.mark.parametrize(("encoding", "shown"), [("utf-8", "\ufffd"), ("base64", "/wo=")])
def test_an_error_shows_output_as_an_answer_does(client: Client, encoding: str, shown: str) -> None:
    command = r"printf '\377\n'; sleep 60"
    error = timed_out(client, command, shown, encoding=encoding)
    assert (error.details["stdout"], error.details["stderr"]) == (shown, "")
    assert "truncated" not in error.details


def test_truncated_output_of_a_killed_command_is_reported_as_truncated(client: Client) -> None:
    command = "yes | head -c 17000000; sleep 1000"
    error = given_time(
        lambda timeout: refused(client, "/shell/exec", connection=LOCAL, command=command, timeout=timeout),
        lambda error: error.details.get("truncated"),
        seconds=2,
    )
    assert (len(error.details["stdout"]), error.details["truncated"]) == (16 * 1024 * 1024 - 1, True)


def test_a_timeout_is_500_with_what_was_printed_and_the_session_goes_on(client: Client) -> None:
    error = timed_out(client, "echo begun; sleep 60", "begun")
    assert (error.status, error.code, error.details["stdout"]) == (500, "command_timeout", "begun")
    assert run(client, "echo on")["stdout"] == "on"


def test_without_a_shell_there_is_nothing_to_run_or_stop(clean_daemon: Daemon) -> None:
    client = clean_daemon.client
    for path, fields in (("/shell/exec", {"command": "true"}), ("/shell/stop", {})):
        error = refused(client, path, connection=LOCAL, **fields)
        assert (error.status, error.code) == (400, "no_shell")
        error = refused(client, path, connection=NOBODY, **fields)
        assert (error.status, error.message) == (400, f"Unknown connection: {NOBODY}")
    assert refused(client, "/shell/start", connection=NOBODY).status == 400


def test_stop_is_answered_when_the_shell_has_exited(clean_daemon: Daemon) -> None:
    client = clean_daemon.client
    client.post("/shell/start", connection=LOCAL)
    pid = int(client.post("/shell/exec", connection=LOCAL, command="echo $$")["stdout"])
    assert Path(f"/proc/{pid}").exists()
    assert client.post("/shell/stop", connection=LOCAL) == {}
    assert not Path(f"/proc/{pid}").exists()
    assert refused(client, "/shell/exec", connection=LOCAL, command="true").code == "no_shell"


def test_a_shell_that_cannot_start_is_500(daemon: Daemon) -> None:
    data = {"type": "local", "shell": "/nowhere/sh"}
    id = daemon.client.post("/connection/add", name="broken", data=data)["connection"]
    error = refused(daemon.client, "/shell/start", connection=id)
    assert error.status == 500
    daemon.client.post("/connection/remove", connections=[id])


def test_when_the_client_goes_away_its_command_is_killed(client: Client, daemon: Daemon, tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    body = json.dumps(
        {"connection": LOCAL, "command": f"echo $$ $BASHPID > {marker}.new; mv {marker}.new {marker}; sleep 300"}
    )
    authorization = bearer(daemon)["Authorization"]
    host = ":".join(map(str, address(daemon.url)))
    with socket.create_connection(address(daemon.url), timeout=30) as connection:
        connection.sendall(
            f"POST /shell/exec HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            f"Authorization: {authorization}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        eventually(marker.exists, "the command did not start")
    # The session is free again long before the command would have ended.
    assert run(client, "echo free", timeout=20)["stdout"] == "free"


def test_a_slow_reader_gets_all_of_a_large_answer(client: Client, daemon: Daemon) -> None:
    answer = send(
        daemon.url,
        "/shell/exec",
        {"connection": LOCAL, "command": "head -c 12000000 /dev/zero | tr '\\0' y"},
        bearer(daemon),
    )
    assert answer.json["stdout"] == "y" * 12_000_000
    assert "Content-Length" not in answer.headers
