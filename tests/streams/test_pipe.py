"""``/shell/pipe``: a process with raw streams in both directions, over every kind of link."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from wsproto.events import BytesMessage

from connmgr.api import pipe
from connmgr.contract.shell import PipeRequest
from connmgr.errors import ShellLost
from connmgr.plugin import DEFAULT_SEND_ENV, Channel, ClientEnvironment, Pty
from connmgr.streams.websocket import upgrade_request
from connmgr_local.transport import LocalTransport
from tests.api.wire import LOCAL, address, bearer, client_of, send, token_of
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS, eventually
from tests.plugins.oneself import ssh_server
from tests.plugins.places import ssh_fields
from tests.streams.wire import NotUpgradedError, Stream

PATH = "/shell/pipe"
EVERY_BYTE = bytes(range(256)) * 64
WINDOW = 256 * 1024
SAYS_ITS_SIZE = (
    """stty size; echo "$TERM"; trap 'stty size' WINCH; trap 'exit 130' INT; echo ready; while sleep 0.1; do :; done"""
)

Open = Callable[..., Stream]


@pytest.fixture(scope="module")
def ssh(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A connection over SSH."""
    with ssh_server(tmp_path_factory.mktemp("ssh")) as server, client_of(daemon) as client:
        added = client.connection.add("pipes/ssh", {"type": "ssh", **ssh_fields(server, server.user)})
        yield added
        client.connection.remove([added])


@pytest.fixture(params=["local", pytest.param("ssh", marks=pytest.mark.needs("sshd"))])
def place(request: pytest.FixtureRequest) -> str:
    """A connection of each kind."""
    return LOCAL if request.param == "local" else request.getfixturevalue(request.param)


@pytest.fixture
def opened(daemon: Daemon) -> Iterator[Open]:
    """A function that opens a stream and sends its request, if any."""
    streams: list[Stream] = []
    token = token_of(daemon)

    def open(asked: dict[str, Any] | None = None, **options: Any) -> Stream:
        stream = Stream(daemon.url, PATH, **{"token": token, **options})
        streams.append(stream)
        return stream.ask(**asked) if asked is not None else stream

    yield open
    for stream in streams:
        stream.close()


def test_three_streams_and_the_status_arrive(opened: Open, place: str) -> None:
    stream = opened({"connection": place, "command": "cat; echo err >&2; exit 3"})
    stream.write(EVERY_BYTE)
    stream.end_input()
    ended = stream.finish()
    assert (ended.stdout, ended.stderr, ended.status, ended.code) == (EVERY_BYTE, b"err\n", 3, 1000)


def test_argv_arrives_word_by_word(opened: Open, place: str) -> None:
    words = ["", "a b", "it's", "$HOME", "new\nline", "ä", "\\0101", "!x"]
    ended = opened({"connection": place, "argv": ["printf", "%s\\0", *words]}).finish()
    assert ended.stdout.split(b"\0")[:-1] == [word.encode() for word in words]


def test_the_environment_is_the_user_s(opened: Open, place: str) -> None:
    ended = opened({"connection": place, "command": 'echo "${LC_ALL-unset} $PWD"'}).finish()
    assert ended.stdout.split()[0] == b"unset"


class Watched(LocalTransport):
    """A transport to this machine that keeps the words of what it starts."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[str] = []

    def open_channel(self, argv: Sequence[str], *, pty: Pty | None = None, timeout: float) -> Channel:
        self.started.extend(argv)
        return super().open_channel(argv, pty=pty, timeout=timeout)


def watched_link() -> Any:
    """Return a link over :class:`Watched`."""
    return SimpleNamespace(environment=ClientEnvironment(DEFAULT_SEND_ENV), transport=Watched())


SECRET = "it's a secret\n of $(several) \\ lines,\t\u00e4 "


@pytest.mark.parametrize(
    "what", [{"command": 'printf %s "$GIVEN"; cat'}, {"argv": ["sh", "-c", 'printf %s "$GIVEN"; cat']}]
)
@pytest.mark.parametrize("is_looking", [False, pytest.param(True, marks=pytest.mark.needs("bwrap", "mounts"))])
def test_variables_are_in_no_words_of_a_process(what: dict[str, Any], is_looking: bool) -> None:
    request = PipeRequest(connection=LOCAL, env={"GIVEN": SECRET, "EMPTY": ""}, **what)
    link = watched_link()
    channel = pipe._start(request, {}, "cookie", "mark" if is_looking else "", link, DEADLINE_SECONDS)
    with closing(link.transport), closing(channel):
        channel.sendall(b"input\n", DEADLINE_SECONDS)
        channel.shutdown_write()
        printed, errors = b"", b""
        with suppress(EOFError):
            while True:
                out, err = channel.recv(DEADLINE_SECONDS)
                printed, errors = printed + out, errors + err
    assert (printed.decode(), errors) == (f"{SECRET}input\n", b"")
    assert not [word for word in link.transport.started if "several" in word or _octal("several") in word]


def test_variables_are_in_no_words_of_a_process_on_a_terminal(opened: Open, place: str) -> None:
    """Nor does the terminal show them, or take what is in them for what somebody types."""
    secret = f"it's {os.urandom(8).hex()} secret\n\x03\x04\x13\x1a\r\x7f of ${{several}} \\ lines{'x' * 9000}"
    show = 'printf %s "$GIVEN" | sha256sum; stty -a; read -r typed; echo "<$typed>"; sleep 100; :'
    for what in ({"command": show}, {"argv": ["sh", "-c", show]}):
        stream = opened({"connection": place, "pty": True, "columns": 200, "env": {"GIVEN": secret}, **what})
        stream.write(b"typ\x7fyped ahead\r")
        printed = stream.until(b"<tyyped ahead>").decode()
        assert hashlib.sha256(secret.encode()).hexdigest() in printed, printed
        assert {"echo", "icanon", "isig", "icrnl", "opost"} <= set(re.split(r"[ ;\r\n]+", printed))
        words = [line for process in psutil.process_iter(["cmdline"]) for line in process.info["cmdline"] or ()]
        assert any("stty -a" in line for line in words), "the process is not there to be looked at"
        assert not [line for line in words if secret[5:21] in line or _octal(secret[5:21]) in line]
        stream.write(b"\x03")
        stream.finish()


def _octal(text: str) -> str:
    return "".join(f"\\0{byte:03o}" for byte in text.encode())


def test_variables_for_a_terminal_are_in_no_words_either() -> None:
    request = PipeRequest(connection=LOCAL, env={"GIVEN": SECRET}, command='printf %s "$GIVEN" | sha256sum', pty=True)
    link = watched_link()
    channel = pipe._start(request, {}, "cookie", "", link, DEADLINE_SECONDS)
    printed = b""
    with closing(link.transport), closing(channel), suppress(EOFError):
        while True:
            printed += channel.recv(DEADLINE_SECONDS)[0]
    assert printed.decode().split() == [hashlib.sha256(SECRET.encode()).hexdigest(), "-"]
    assert not [word for word in link.transport.started if "several" in word or _octal("several") in word]


def test_variables_that_no_terminal_takes_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without stty the terminal would show them."""
    (tmp_path / "stty").write_text("#!/bin/sh\necho no terminal settings here >&2\nexit 1\n")
    (tmp_path / "stty").chmod(0o755)
    request = PipeRequest(connection=LOCAL, env={"GIVEN": SECRET}, command="echo begun", pty=True)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    link = watched_link()
    with (
        closing(link.transport),
        pytest.raises(ShellLost, match="before it had its variables: no terminal settings here"),
    ):
        pipe._start(request, {}, "cookie", "", link, DEADLINE_SECONDS)


def test_variables_arrive_before_the_input(opened: Open, place: str) -> None:
    asked = {"command": 'printf %s "$GIVEN"; cat', "env": {"GIVEN": SECRET, "LANG": "C.UTF-8"}}
    stream = opened({"connection": place, **asked})
    stream.write(EVERY_BYTE)
    stream.end_input()
    ended = stream.finish()
    assert (ended.stdout, ended.stderr, ended.status) == (SECRET.encode() + EVERY_BYTE, b"", 0)


def test_a_terminal_has_the_requested_name_and_size_and_later_sizes(opened: Open, place: str) -> None:
    stream = opened(
        {
            "connection": place,
            "command": SAYS_ITS_SIZE,
            "pty": True,
            "term": "vt220",
            "columns": 99,
            "rows": 33,
        }
    )
    assert stream.until(b"ready").split()[:3] == [b"33", b"99", b"vt220"]
    stream.resize(132, 43)
    stream.until(b"43 132")
    stream.write(b"\x03")
    assert stream.finish().status == 130


def test_a_size_without_a_terminal_has_no_effect_and_loses_nothing_that_comes_with_it(opened: Open, place: str) -> None:
    stream = opened({"connection": place, "command": "cat"})
    stream.resize(100, 30, times=3, then=b"came with it\n")
    stream.send(4)
    ended = stream.finish()
    assert (ended.stdout, ended.stderr, ended.status, ended.code) == (b"came with it\n", b"", 0, 1000)


def test_a_login_shell_runs_without_a_command(opened: Open, place: str) -> None:
    stream = opened({"connection": place})
    stream.write(b"echo from the shell\nexit 5\n")
    ended = stream.finish()
    assert (ended.stdout, ended.status) == (b"from the shell\n", 5)


def test_unacknowledged_output_pauses_the_process_and_loses_nothing(opened: Open, place: str) -> None:
    size = 3 << 20
    stream = opened({"connection": place, "command": f"head -c {size} /dev/zero | tr '\\0' x"}, acknowledges=False)
    while len(stream.ended.stdout) < WINDOW:
        stream.frames()
    stream.socket.settimeout(0.3)
    with pytest.raises(TimeoutError):
        stream.frames()
    assert len(stream.ended.stdout) == WINDOW
    stream.socket.settimeout(20)
    stream.acknowledges = True
    stream.acknowledge(WINDOW)
    assert stream.finish().stdout == b"x" * size


def test_large_streams_pass_both_ways_at_once(opened: Open, place: str) -> None:
    data = os.urandom(1 << 20) * 4
    stream = opened({"connection": place, "command": "cat"})
    sent, credit = 0, WINDOW
    while len(stream.ended.stdout) < len(data):
        while sent < len(data) and credit:
            piece = data[sent : sent + credit]
            stream.write(piece)
            sent, credit = sent + len(piece), credit - len(piece)
        frames = stream.frames()
        assert frames, stream.ended
        credit += sum(struct.unpack(">I", frame[1:])[0] for frame in frames if frame[0] == 3)
    stream.end_input()
    assert hashlib.sha256(stream.finish().stdout).digest() == hashlib.sha256(data).digest()


def test_the_process_is_hung_up_when_its_client_leaves(opened: Open, place: str, tmp_path: Path) -> None:
    left = tmp_path / "left"
    # A shell that reports its child's end to a closed stream is ended by that.
    command = f"exec 2>/dev/null; trap 'echo hup >{left}; exit' HUP; echo begun; while :; do sleep 0.1; done"
    stream = opened({"connection": place, "command": command})
    stream.until(b"begun")
    stream.close()
    eventually(lambda: left.exists() and left.read_text() == "hup\n", "The process was not sent HUP.")


@pytest.mark.needs("sshd")
def test_processes_are_hung_up_where_the_server_opens_no_further_session(
    daemon: Daemon, opened: Open, tmp_path: Path
) -> None:
    left = tmp_path / "left"
    command = f"exec 2>/dev/null; trap 'echo hup >{left}; exit' HUP; echo begun; while :; do sleep 0.1; done"
    with ssh_server(tmp_path, MaxSessions="2") as server, client_of(daemon) as client:
        far = client.connection.add("pipes/full", {"type": "ssh", **ssh_fields(server, server.user)})
        other = opened({"connection": far, "argv": ["cat"]})
        stream = opened({"connection": far, "argv": ["sh", "-c", command]})
        stream.until(b"begun")
        # So that no second link can be opened.
        server.authorized_keys.write_text("")
        stream.close()
        eventually(server.log, "no further session is asked for", holds=lambda log: log.count("no more sessions") > 1)
        other.end_input()
        assert other.finish().status == 0
        eventually(lambda: left.exists() and left.read_text() == "hup\n", "The process was not sent HUP.")
        assert server.log().count("Failed publickey") <= 1
        client.connection.remove([far])


def test_a_tcp_stream_of_the_remote_host(opened: Open, place: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        stream = opened({"connection": place, "tcp": {"host": "127.0.0.1", "port": server.getsockname()[1]}})
        peer, _ = server.accept()
        with peer:
            stream.write(b"to the server")
            stream.end_input()
            received = b""
            while piece := peer.recv(100):
                received += piece
            peer.sendall(b"to the client")
        ended = stream.finish()
    assert (received, ended.stdout, ended.status) == (b"to the server", b"to the client", 0)


def test_an_unreachable_tcp_address_is_reported(opened: Open, place: str, closed_port: int) -> None:
    ended = opened({"connection": place, "tcp": {"host": "127.0.0.1", "port": closed_port}}).finish()
    assert (ended.error["code"], ended.code) == ("host_refused", 1011)


def test_waiting_pipes_occupy_neither_threads_nor_slots(daemon: Daemon, opened: Open) -> None:
    before = psutil.Process(daemon.pid).num_threads()
    streams = [opened({"connection": LOCAL, "command": "echo begun; cat"}) for _ in range(40)]
    for stream in streams:
        stream.until(b"begun")
    # Where the machine is slow, many open at the same time, and the threads that opened them end when they have been
    # idle for half a minute.
    eventually(
        lambda: psutil.Process(daemon.pid).num_threads() - before,
        "waiting pipes occupy threads",
        holds=lambda more: more < 20,
    )
    for stream in streams:
        stream.end_input()
    assert [stream.finish().status for stream in streams] == [0] * 40


BAD = {
    "a text message": (lambda stream: stream.say("text"), 1003),
    "an unknown kind": (lambda stream: stream.send(9), 1008),
    "an empty message": (lambda stream: stream._write(stream.connection.send(BytesMessage(b""))), 1008),
    "a message that is too large": (lambda stream: stream.send(0, bytes(WINDOW + 1)), 1009),
    "more than the window": (lambda stream: [stream.write(bytes(WINDOW)) for _ in range(40)], 1008),
    "an acknowledgement of what was not sent": (lambda stream: stream.acknowledge(1 << 30), 1008),
    "half an acknowledgement": (lambda stream: stream.send(3, b"12"), 1008),
    "no columns": (lambda stream: stream.resize(0, 24), 1008),
    "data behind their end": (lambda stream: (stream.end_input(), stream.write(b"x")), 1008),
    "a frame of a reserved kind": (lambda stream: stream._write(b"\x83\x80abcd"), 1002),
    "a frame that is not masked": (lambda stream: stream._write(b"\x82\x01x"), 1002),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_breach_of_the_protocol_is_refused_with_a_reason(opened: Open, bad: str) -> None:
    send, code = BAD[bad]
    stream = opened({"connection": LOCAL, "command": "echo begun; sleep 600"})
    stream.until(b"begun")
    send(stream)
    ended = stream.finish()
    assert (ended.error.get("code"), ended.code) == ("bad_frame", code), ended
    assert len(ended.error["message"]) > 20


REFUSED = {
    "an unknown connection": ({"connection": "00000000-0000-4000-8000-000000000000"}, "unknown_connection"),
    "two things to run": ({"connection": LOCAL, "command": "id", "argv": ["id"]}, "invalid_request"),
    "a terminal of no columns": ({"connection": LOCAL, "pty": True, "columns": 0}, "invalid_request"),
    "a field that there is not": ({"connection": LOCAL, "commnd": "id"}, "invalid_request"),
    "no connection": ({}, "invalid_request"),
}


@pytest.mark.parametrize("refused", REFUSED)
def test_a_request_that_fails_is_answered_with_its_error(opened: Open, refused: str) -> None:
    asked, code = REFUSED[refused]
    ended = opened(asked).finish()
    assert (ended.error["code"], ended.code) == (code, 1008)


@pytest.mark.parametrize("first", ["{", "[]", "x" * (1 << 20) + "x"])
def test_a_malformed_first_message_is_answered_with_an_error(opened: Open, first: str) -> None:
    stream = opened()
    stream.say(first)
    assert stream.finish().error["code"] in {"invalid_request", "bad_frame"}


def test_the_first_message_may_be_binary(opened: Open) -> None:
    stream = opened()
    message = json.dumps({"connection": LOCAL, "command": "echo here"})
    stream.send(message.encode()[0], message.encode()[1:])
    assert stream.finish().stdout == b"here\n"


NO_UPGRADE = {
    "no token": ({"token": None}, 401, "not_authenticated"),
    "a wrong token": ({"token": "wrong"}, 403, "invalid_token"),
    "a foreign page": ({"headers": {"Origin": "http://evil.example"}}, 403, "forbidden_origin"),
    "another site": ({"headers": {"Sec-Fetch-Site": "cross-site"}}, 403, "forbidden_origin"),
}


@pytest.mark.parametrize("case", NO_UPGRADE)
def test_an_unauthorised_client_is_refused_before_the_upgrade(opened: Open, case: str) -> None:
    options, status, code = NO_UPGRADE[case]
    with pytest.raises(NotUpgradedError) as caught:
        opened(**options)
    assert (caught.value.answer.status, caught.value.answer.code) == (status, code)


def test_a_token_in_the_url_is_ignored(daemon: Daemon) -> None:
    with pytest.raises(NotUpgradedError) as caught:
        Stream(daemon.url, f"{PATH}?token={token_of(daemon)}", None)
    assert caught.value.answer.status == 401


def test_a_request_without_upgrade_is_told_to_use_a_websocket(daemon: Daemon) -> None:
    answer = send(daemon.url, PATH, headers={"Authorization": f"Bearer {token_of(daemon)}"}, method="GET")
    assert (answer.status, answer.code) == (426, "upgrade_required")


@pytest.mark.parametrize(("method", "version"), [("HEAD", "1.1"), ("GET", "1.0")])
def test_a_websocket_begins_with_a_get_of_http_1_1(daemon: Daemon, method: str, version: str) -> None:
    asked, _ = upgrade_request()
    headers = {"Host": daemon.url.removeprefix("http://"), **asked, **bearer(daemon)}
    lines = [f"{method} {PATH} HTTP/{version}", *[f"{name}: {value}" for name, value in headers.items()], "", ""]
    with socket.create_connection(address(daemon.url), DEADLINE_SECONDS) as connection:
        connection.sendall("\r\n".join(lines).encode())
        assert connection.recv(65536).startswith(f"HTTP/{version} 426 ".encode())


def test_the_daemon_s_stop_is_reported(own_daemon: Daemon) -> None:
    stream = Stream(own_daemon.url, PATH, token_of(own_daemon)).ask(connection=LOCAL, command="echo begun; sleep 600")
    stream.until(b"begun")
    own_daemon.process.terminate()
    ended = stream.finish()
    assert (ended.error["code"], ended.code) == ("stopping", 1001)


def test_a_pipe_ends_with_its_connection(daemon: Daemon, opened: Open) -> None:
    with client_of(daemon) as client:
        added = client.connection.add("pipes/removed", {"type": "local", "shell": "/bin/sh"})
        stream = opened({"connection": added, "command": "echo begun; sleep 600"})
        stream.until(b"begun")
        client.connection.remove([added])
    assert stream.finish().error["code"] == "shell_stopped"


@pytest.mark.needs("sshd")
def test_a_machine_runs_nothing_but_what_was_asked_for(daemon: Daemon, opened: Open, tmp_path: Path) -> None:
    log = tmp_path / "commands"
    note = f'printf \'%s\\n\' "$SSH_ORIGINAL_COMMAND" >>{log}; eval "$SSH_ORIGINAL_COMMAND"'
    with client_of(daemon) as client, ssh_server(tmp_path, ForceCommand=note) as server:
        far = client.connection.add("pipes/noted", {"type": "ssh", **ssh_fields(server, server.user)})
        with socket.create_server(("127.0.0.1", 0)) as target:
            stream = opened({"connection": far, "tcp": {"host": "127.0.0.1", "port": target.getsockname()[1]}})
            peer, _ = target.accept()
            peer.close()
            stream.finish()
        for asked in ({"argv": ["echo", "asked-for"]}, {"command": "echo asked-for", "pty": True}):
            assert b"asked-for" in opened({"connection": far, **asked}).finish().stdout
        # Only a command without a terminal may be a line of the login shell, whose language is asked for then.
        assert "posix" not in log.read_text()
        assert opened({"connection": far, "command": "echo asked-for"}).finish().status == 0
        eventually(lambda: "posix" in log.read_text(), "the shell's language is not asked for")
        client.connection.remove([far])


@pytest.mark.needs("sshd")
def test_a_pipe_opened_soon_after_another_finds_the_link_open(daemon: Daemon, opened: Open, tmp_path: Path) -> None:
    with client_of(daemon) as client, ssh_server(tmp_path) as server:
        far = client.connection.add("pipes/again", {"type": "ssh", **ssh_fields(server, server.user)})
        for _ in range(3):
            assert opened({"connection": far, "command": "true"}).finish().status == 0
        assert server.log().count("Accepted publickey") == 1
        client.connection.remove([far])


@pytest.mark.needs("sshd")
def test_a_broken_link_is_reported(daemon: Daemon, opened: Open, tmp_path: Path) -> None:
    with client_of(daemon) as client:
        with ssh_server(tmp_path) as server:
            far = client.connection.add("pipes/lost", {"type": "ssh", **ssh_fields(server, server.user)})
            stream = opened({"connection": far, "command": "echo begun; sleep 600"})
            stream.until(b"begun")
        ended = stream.finish()
        client.connection.remove([far])
    assert (ended.error["code"], ended.code) == ("shell_lost", 1011)
