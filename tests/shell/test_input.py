"""The input of ``/shell/exec`` as the body of the request: its stream, its limits, its errors, its record."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from connmgr.client import LOCAL_MACHINE, Client, ClientError
from tests.api.wire import address
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS, eventually, eventually_equal, given_time, settled

MEBIBYTE = 1 << 20
BYTES = "application/octet-stream"
LINES = "application/x-ndjson"
PIECE = bytes(range(256)) * 256

pytestmark = pytest.mark.needs("bash")


class Fed:
    """A raw request to ``/shell/exec`` whose body is sent piece by piece."""

    def __init__(self, daemon: Daemon, accept: str = LINES, **request: Any) -> None:
        daemon.client.shell.ensure(LOCAL_MACHINE)
        self.socket = socket.create_connection(address(daemon.url), timeout=DEADLINE_SECONDS)
        head = [
            "POST /shell/exec HTTP/1.1",
            "Host: {}:{}".format(*address(daemon.url)),
            f"Authorization: Bearer {daemon.client.session_token}",
            f"Content-Type: {BYTES}",
            f"Accept: {accept}",
            "Transfer-Encoding: chunked",
        ]
        self.socket.sendall("".join(f"{line}\r\n" for line in [*head, ""]).encode())
        self.chunk(json.dumps({"connection": LOCAL_MACHINE, **request}).encode() + b"\n")
        self._file = self.socket.makefile("rb")

    def chunk(self, piece: bytes) -> None:
        self.socket.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))

    def end(self) -> None:
        self.socket.sendall(b"0\r\n\r\n")

    def line(self) -> dict[str, Any]:
        """Return the next line of JSON; the frame of a response is skipped."""
        while True:
            line = self._file.readline()
            assert line, "the answer has ended"
            if line.startswith(b"{"):
                return dict(json.loads(line))

    def close(self) -> None:
        self._file.close()
        self.socket.close()


@pytest.fixture
def fed(daemon: Daemon) -> Iterator[Any]:
    opened: list[Fed] = []

    def open(**request: Any) -> Fed:
        opened.append(Fed(daemon, **request))
        return opened[-1]

    yield open
    for one in opened:
        one.close()


def commands_with(marker: str) -> list[str]:
    """Return the command lines of this machine's processes that contain ``marker``."""
    lines = [" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])]
    return [line for line in lines if marker in line]


def test_input_and_output_alternate_and_the_end_of_the_body_is_the_end_of_the_input(fed: Any) -> None:
    request = fed(command="while read -r word; do echo got $word; done; echo over")
    assert request.line() == {"begun": True}
    for word in ("one", "two"):
        request.chunk(f"{word}\n".encode())
        assert request.line() == {"stdout": f"got {word}\n"}, "input waits for more"
    request.end()
    assert request.line() == {"stdout": "over\n"}
    assert request.line() == {"exitCode": 0}


def test_a_command_that_reads_nothing_is_answered_before_the_body_ends(fed: Any) -> None:
    request = fed(command="exit 3")
    assert [request.line(), request.line()] == [{"begun": True}, {"exitCode": 3}]


def test_an_answer_without_lines_comes_at_the_end(daemon: Daemon) -> None:
    daemon.client.shell.ensure(LOCAL_MACHINE)
    request = {"connection": LOCAL_MACHINE, "command": "tr a-z A-Z; exit 4"}
    answer = daemon.client._session.send("/shell/exec", json.dumps(request).encode() + b"\nshout", BYTES)
    assert answer == {"exitCode": 4, "stdout": "SHOUT", "stderr": ""}


def test_a_body_that_breaks_off_kills_the_command(fed: Any, tmp_path: Path) -> None:
    marker = f"{tmp_path}/whole"
    request = fed(command=f"cat >/dev/null; echo >{marker}; : {marker}")
    request.line()
    request.chunk(b"a part")
    request.close()
    eventually_equal(lambda: commands_with(marker), [], "the command still runs")
    assert not Path(marker).exists(), "a part was taken for the whole"


def test_a_malformed_body_kills_the_command_and_says_why(fed: Any, tmp_path: Path) -> None:
    request = fed(command=f"cat >/dev/null; echo >{tmp_path}/whole")
    request.line()
    request.socket.sendall(b"this is no chunk\r\n")
    assert request.line()["error"]["code"] == "command_cancelled"
    assert not (tmp_path / "whole").exists()


@pytest.mark.parametrize("family", ["tcp", "unix"])
def test_a_killed_client_whose_input_is_not_read_kills_the_command(daemon: Daemon, family: str, tmp_path: Path) -> None:
    """Even when every buffer is full, and the client's end could hide behind unread input."""
    daemon.client.shell.ensure(LOCAL_MACHINE)
    seconds, sent = f"1000.{os.getpid()}", tmp_path / "sent"
    text = (
        "import sys; from connmgr.client import Client\n"
        "url, auth, connection, command, sent = sys.argv[1:]\n"
        "def pieces():\n"
        "    with open(sent, 'wb', buffering=0) as note:\n"
        "        while note.write(b'x'): yield bytes(65536)\n"
        f"with Client(url, auth_file=auth, foreign={family == 'tcp'}) as client:\n"
        "    list(client.shell.stream(connection, command, stdin=pieces()))"
    )
    words = [daemon.url, str(daemon.auth_file), LOCAL_MACHINE, f"sleep {seconds}", str(sent)]
    with subprocess.Popen([sys.executable, "-c", text, *words]) as client:
        eventually(sent.exists, "the client sends nothing")
        settled(lambda: sent.stat().st_size, 0.5, "the client is never held back")
        client.kill()
    eventually_equal(lambda: commands_with(f"sleep {seconds}"), [], "the command still runs")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"not json\n", "not valid JSON"),
        (b'{"no": "newline"}', "does not begin with a line"),
        (b'{"command": "true"}\n', "connection"),
        (f'{{"connection": "{LOCAL_MACHINE}", "command": "cat", "stdin": "x"}}\n'.encode(), "Not together"),
        (f'{{"connection": "{LOCAL_MACHINE}", "command": "cat", "detachAfter": 1}}\n'.encode(), "Not together"),
    ],
)
def test_a_malformed_request_is_refused(daemon: Daemon, body: bytes, said: str) -> None:
    with pytest.raises(ClientError, match=said) as refused:
        daemon.client._session.send("/shell/exec", body, BYTES)
    assert refused.value.code == "invalid_request"


def test_a_body_of_json_has_no_input(daemon: Daemon) -> None:
    with pytest.raises(ClientError, match="Needs a body of type application/octet-stream"):
        daemon.client.post("/shell/exec", connection=LOCAL_MACHINE, command="cat", input="body")


def test_errors_before_the_beginning_have_a_status_and_take_no_input(daemon: Daemon) -> None:
    def pieces() -> Iterator[bytes]:
        pytest.fail("the input is read although the command does not begin")
        yield b""

    with pytest.raises(ClientError) as refused:
        daemon.client.shell.stream(LOCAL_MACHINE, "cat", stdin=pieces(), session="nowhere")
    assert (refused.value.code, refused.value.status) == ("no_shell", 400)


def test_the_client_sends_bytes_files_and_iterators_of_any_size(daemon: Daemon, tmp_path: Path) -> None:
    data = PIECE * 40
    (tmp_path / "file").write_bytes(data)
    shell = daemon.client.shell
    shell.ensure(LOCAL_MACHINE)
    with (tmp_path / "file").open("rb") as file:
        for source in (data, file, iter([b"", data[:1], b"", data[1:]])):
            with shell.stream(LOCAL_MACHINE, "cat", stdin=source) as stream:
                assert stream.collect().stdout == data
    assert shell.exec_bytes(LOCAL_MACHINE, "cat", stdin=data).stdout == data
    assert shell.exec(LOCAL_MACHINE, "cat", stdin="ä" * MEBIBYTE).stdout == "ä" * MEBIBYTE
    assert shell.exec(LOCAL_MACHINE, "echo next").stdout == "next", "the client cannot be used again"


def test_an_exception_of_the_input_s_source_kills_the_command_and_is_raised(daemon: Daemon, tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"a part"
        raise LookupError("no more")

    daemon.client.shell.ensure(LOCAL_MACHINE)
    with pytest.raises(LookupError, match="no more"):
        daemon.client.shell.exec_bytes(LOCAL_MACHINE, f"cat; echo >{tmp_path}/whole", stdin=pieces())
    assert daemon.client.shell.exec(LOCAL_MACHINE, "echo next").stdout == "next"
    assert not (tmp_path / "whole").exists()


def test_the_output_until_the_time_was_over_is_there(daemon: Daemon) -> None:
    daemon.client.shell.ensure(LOCAL_MACHINE)

    def late(seconds: float) -> ClientError:
        read, write = os.pipe()
        with os.fdopen(read, "rb") as source, os.fdopen(write, "wb"), pytest.raises(ClientError) as caught:
            daemon.client.shell.exec_bytes(LOCAL_MACHINE, "echo out; cat", stdin=source, timeout=seconds)
        assert caught.value.code == "command_timeout"
        return caught.value

    assert given_time(late, lambda error: error.details["stdout"]).details["stdout"] == "b3V0Cg=="


def test_the_audit_log_has_the_size_of_the_input(daemon: Daemon) -> None:
    daemon.client.shell.ensure(LOCAL_MACHINE)
    daemon.client.shell.exec_bytes(LOCAL_MACHINE, "cat >/dev/null", stdin=PIECE * 20)
    daemon.client.shell.exec(LOCAL_MACHINE, "cat >/dev/null", stdin="12345")
    entries = daemon.client.post("/audit/query", action="shell.exec")["entries"]
    assert [entry.get("stdinBytes") for entry in entries[:2]] == [5, len(PIECE) * 20]


def test_memory_stays_flat_and_a_slow_reader_slows_the_sender(own_daemon: Daemon) -> None:
    """200 MiB through a command, of which daemon and client never hold more than a few."""
    size, daemon, client = 200, psutil.Process(own_daemon.pid), own_daemon.client
    client.shell.ensure(LOCAL_MACHINE)
    client.shell.exec_bytes(LOCAL_MACHINE, "cat", stdin=bytes(4 * MEBIBYTE))
    before, most, taken = daemon.memory_info().rss, 0, 0
    lead = 0

    def pieces() -> Iterator[bytes]:
        nonlocal taken
        piece = bytes(MEBIBYTE)
        for _ in range(size):
            taken += len(piece)
            yield piece

    received = 0
    with client.shell.stream(LOCAL_MACHINE, "cat", stdin=pieces()) as stream:
        for out, _ in stream:
            received += len(out)
            lead = max(lead, taken - received)
            most = max(most, daemon.memory_info().rss)
    assert received == size * MEBIBYTE
    assert most - before < 32 * MEBIBYTE, f"{(most - before) / MEBIBYTE:.0f} MiB more"
    assert lead < 48 * MEBIBYTE, f"the sender was {lead / MEBIBYTE:.0f} MiB ahead of the reader"


def test_a_token_whose_rule_forbids_input_may_send_none(daemon: Daemon) -> None:
    rules = [{"effect": "allow", "argv": ["cat"], "stdin": False}]
    token = daemon.client.post("/token/create", name="fed", expires=60, scopes=["shell.argv"], rules=rules)["token"]
    daemon.client.shell.ensure(LOCAL_MACHINE)
    with Client(daemon.url, auth_file=daemon.auth_file, api_key=token) as limited:
        assert limited.shell.exec(LOCAL_MACHINE, argv=["cat"]).exit_code == 0
        with pytest.raises(ClientError) as denied:
            limited.shell.stream(LOCAL_MACHINE, argv=["cat"], stdin=iter([b"x"]))
        assert denied.value.code == "policy_denied"


def test_a_person_is_told_that_the_input_is_unknown_and_the_request_then_runs(daemon: Daemon) -> None:
    rules = [{"effect": "ask", "argv": ["cat"]}]
    token = daemon.client.post("/token/create", name="asks", expires=60, scopes=["shell.argv"], rules=rules)["token"]
    daemon.client.shell.ensure(LOCAL_MACHINE)
    with Client(daemon.url, auth_file=daemon.auth_file, api_key=token) as limited:
        with pytest.raises(ClientError) as required:
            limited.shell.stream(LOCAL_MACHINE, argv=["cat"], stdin=iter([b"never read"]))
        assert required.value.code == "approval_required"
        pending = daemon.client.post("/approval/query", states=["pending"])["approvals"]
        [approval] = [one for one in pending if one["tokenName"] == "asks"]
        assert approval["asked"]["input"].startswith("unknown")
        daemon.client.post("/approval/decide", approval=approval["approval"], decision="once")
        with limited.shell.stream(LOCAL_MACHINE, argv=["cat"], stdin=iter([b"read now"])) as stream:
            assert stream.collect().stdout == b"read now"


@pytest.mark.needs("curl")
def test_curl_streams_both_ways(daemon: Daemon) -> None:
    daemon.client.shell.ensure(LOCAL_MACHINE)
    words = ["-sN", "-T", ".", "-X", "POST", "-H", f"Content-Type: {BYTES}", "-H", f"Accept: {LINES}"]
    authorised = ["-H", f"Authorization: Bearer {daemon.client.session_token}", f"{daemon.url}/shell/exec"]
    request = {"connection": LOCAL_MACHINE, "command": "while read -r word; do echo got $word; done"}
    with subprocess.Popen(["curl", *words, *authorised], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as curl:
        assert curl.stdin
        assert curl.stdout
        killer = threading.Timer(DEADLINE_SECONDS, curl.kill)
        killer.start()
        curl.stdin.write(json.dumps(request).encode() + b"\n")
        curl.stdin.flush()
        assert json.loads(curl.stdout.readline()) == {"begun": True}
        curl.stdin.write(b"one\n")
        curl.stdin.flush()
        assert json.loads(curl.stdout.readline()) == {"stdout": "got one\n"}
        curl.stdin.close()
        assert json.loads(curl.stdout.readline()) == {"exitCode": 0}
        killer.cancel()
