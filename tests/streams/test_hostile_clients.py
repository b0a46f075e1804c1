"""Clients of streams that break the protocol: what they leave behind, and what they cost."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from wsproto.events import BytesMessage, CloseConnection, Ping

from connmgr.api.stream_endpoint import FIRST_MESSAGE_SECONDS
from connmgr.daemon.server import TOKEN_CONNECTIONS
from connmgr.pipes.clients import Opening
from connmgr.streams.loop import Loop
from tests.api.wire import LOCAL, client_of, send, token_of
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS, eventually, eventually_equal
from tests.plugins.oneself import ssh_server
from tests.plugins.places import ssh_fields
from tests.processes import await_ends, descriptors
from tests.rights.wire import create
from tests.streams.wire import NotUpgradedError, Stream

PATH = "/shell/pipe"
WINDOW = 256 * 1024


@pytest.fixture
def stream(own_daemon: Daemon) -> Iterator[Stream]:
    with contextlib.closing(Stream(own_daemon.url, PATH, token_of(own_daemon))) as opened:
        yield opened


def test_a_client_that_closes_and_reads_nothing_is_disconnected(own_daemon: Daemon, stream: Stream) -> None:
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stream.ask(connection=LOCAL, command="cat /dev/zero")
    # More than the sockets hold and less than the daemon keeps.
    for _ in range(14):
        eventually(lambda: _waits(own_daemon), "The process does not wait for its client.")
        stream.acknowledge(WINDOW)
    eventually(lambda: _waits(own_daemon), "The process does not wait for its client.")
    stream._write(stream.connection.send(CloseConnection(1000)))
    eventually_equal(psutil.Process(own_daemon.pid).children, [], "The process runs on without its client.")
    assert "Traceback" not in own_daemon.stderr()


def test_a_client_that_closes_before_its_request_is_disconnected(own_daemon: Daemon, stream: Stream) -> None:
    stream._write(stream.connection.send(CloseConnection(1000)))
    assert stream.finish().code == 1008
    assert "Traceback" not in own_daemon.stderr()


def test_a_client_that_disconnects_before_its_request_causes_no_traceback(own_daemon: Daemon, stream: Stream) -> None:
    before = descriptors(own_daemon.pid)["socket"]
    stream.close()
    eventually(
        lambda: descriptors(own_daemon.pid)["socket"], "The socket stays open.", holds=lambda seen: seen < before
    )
    assert "Traceback" not in own_daemon.stderr()


def test_a_client_that_pings_and_reads_no_answer_is_disconnected(stream: Stream) -> None:
    stream.ask(connection=LOCAL, command="sleep 600")
    pings = stream.connection.send(Ping(bytes(125))) * 1000
    with pytest.raises(ConnectionError):  # noqa: PT012 - it depends on the sockets' buffers when
        for _ in range(1000):
            stream.socket.sendall(pings)


def test_the_first_message_is_awaited_without_a_thread(own_daemon: Daemon) -> None:
    token, daemon = token_of(own_daemon), psutil.Process(own_daemon.pid)
    with contextlib.ExitStack() as silent:
        streams = [silent.enter_context(contextlib.closing(Stream(own_daemon.url, PATH, token))) for _ in range(200)]
        eventually(daemon.num_threads, "each client that says nothing takes a thread", holds=lambda seen: seen < 40)
        assert send(own_daemon.url, "/daemon/version", {}, {"Authorization": f"Bearer {token}"}).status == 200
        streams[0].ask(connection=LOCAL, command="echo heard")
        assert streams[0].finish().stdout == b"heard\n"
        for sent in (b'{"connection": "', LOCAL.encode(), b'", "command": "echo pieces"}'):
            streams[1]._write(streams[1].connection.send(BytesMessage(sent, message_finished=sent.endswith(b"}"))))
        assert streams[1].finish().stdout == b"pieces\n"


def test_silent_streams_of_a_token_take_its_share_and_no_more(own_daemon: Daemon) -> None:
    holder = create(own_daemon, "shell.any")
    with contextlib.ExitStack() as silent:
        for _ in range(TOKEN_CONNECTIONS):
            silent.enter_context(contextlib.closing(Stream(own_daemon.url, PATH, holder.secret)))
        with pytest.raises(NotUpgradedError) as refused:
            Stream(own_daemon.url, PATH, holder.secret)
        assert (refused.value.answer.status, refused.value.answer.code) == (503, "busy")
        with client_of(own_daemon) as owner:
            assert owner.post("/daemon/version")


def test_other_frames_do_not_extend_the_deadline_of_the_request() -> None:
    headers = {
        "Host": "localhost",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    ours, theirs = socket.socketpair()
    opening, loop, heard = Opening(headers.get), Loop(), threading.Event()
    with ours, theirs, contextlib.closing(ours):
        opening.accept(ours)
        assert opening.first_message() is None
        opening.await_message(loop, heard.set)
        theirs.sendall(b"\x89\x80\0\0\0\0" * 100 + b"\x02\x81\0\0\0\0{")
        assert not heard.wait(0.2), "who waits is woken by less than a whole message"
        theirs.sendall(b"\x80\x81\0\0\0\0}")
        assert heard.wait(DEADLINE_SECONDS)
        assert opening.first_message() == b"{}"
        loop.close(DEADLINE_SECONDS)


def test_a_size_without_a_terminal_loses_nothing_that_came_with_it(own_daemon: Daemon, stream: Stream) -> None:
    stream.ask(connection=LOCAL, command='read -r line; echo "got $line"')
    frames = [BytesMessage(b"\2\0P\0\x18"), BytesMessage(b"\0input\n")]
    stream._write(b"".join(stream.connection.send(frame) for frame in frames))
    assert stream.finish().stdout == b"got input\n"
    assert "Traceback" not in own_daemon.stderr()


def test_empty_input_of_a_terminal_keeps_no_answer_from_its_program(clean_daemon: Daemon) -> None:
    token = token_of(clean_daemon)
    bearer = {"Authorization": f"Bearer {token}"}
    command = (
        "read -r go; stty -icanon -echo; printf '\\033[5n'; IFS= read -rd n answer; echo \"answered ${#answer}\"; cat"
    )
    asked = {"connection": LOCAL, "command": f"exec bash -c '{command}'".replace("'\\033[5n'", '"\\033[5n"')}
    terminal = send(clean_daemon.url, "/terminal/open", asked, bearer).json["terminal"]
    with contextlib.closing(
        Stream(clean_daemon.url, f"/terminal/attach/{terminal}", token, acknowledges=False)
    ) as client:
        for _ in range(50):
            client._write(client.connection.send(BytesMessage(b"\0")))
        client._write(client.connection.send(CloseConnection(1000)))
        client.finish()
    send(clean_daemon.url, "/terminal/input", {"terminal": terminal, "data": "go\r"}, bearer)
    wanted = {"terminal": terminal, "contains": "answered 3", "wait": 10}
    lines = send(clean_daemon.url, "/terminal/screen", wanted, bearer).json["lines"]
    assert any("answered 3" in line for line in lines), lines


def test_a_stream_without_a_request_ends_with_its_token(own_daemon: Daemon) -> None:
    holder = create(own_daemon, "shell.any")
    with contextlib.closing(Stream(own_daemon.url, PATH, holder.secret)) as silent:
        own_daemon.client.post("/token/revoke", id=holder.id)
        began = time.monotonic()
        assert silent.finish().error["code"] == "token_revoked"
        assert time.monotonic() - began < FIRST_MESSAGE_SECONDS / 2


PING_FRAME, EMPTY_PIECE = b"\x89\x80\0\0\0\0", b"\0\x80\0\0\0\0"


@pytest.mark.parametrize(
    ("first", "endless"), [(b"", PING_FRAME), (b"\1\x80\0\0\0\0", EMPTY_PIECE)], ids=["pings", "pieces"]
)
def test_a_client_that_sends_frames_without_pause_before_its_request_stops_no_other_stream(
    own_daemon: Daemon, stream: Stream, first: bytes, endless: bytes
) -> None:
    stream.ask(connection=LOCAL, command="cat")
    stream.write(b"0 before")
    stream.until(b"0 before")
    floods = [Stream(own_daemon.url, PATH, create(own_daemon, "shell.any").secret) for _ in range(3)]

    def flood(one: Stream) -> None:
        with contextlib.suppress(OSError):
            one._write(first)
            while True:
                one._write(endless * 40_000)

    threads = [threading.Thread(target=flood, args=(one,)) for one in floods]
    for thread in threads:
        thread.start()
    for number in range(1, 20):
        stream.write(b"%d during" % number)
        stream.until(b"%d during" % number)
        time.sleep(0.05)
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    assert not any(thread.is_alive() for thread in threads), "the daemon reads on without an end"
    for one in floods:
        one.close()


@pytest.mark.parametrize("reads", [True, False], ids=["a client that reads", "a client that does not"])
def test_processes_of_pipes_end_with_the_daemon(own_daemon: Daemon, stream: Stream, *, reads: bool) -> None:
    stream.ask(connection=LOCAL, command="echo begun; sleep 600; true")
    stream.until(b"begun")
    processes = psutil.Process(own_daemon.pid).children(recursive=True)
    assert processes
    own_daemon.process.terminate()
    if reads:
        assert stream.finish().error["code"] == "stopping"
    own_daemon.process.wait(20)
    await_ends(*(process.pid for process in processes))


def _waits(daemon: Daemon) -> bool:
    """Whether the process runs and sleeps because nobody reads its output."""
    found = psutil.Process(daemon.pid).children(recursive=True)
    return bool(found) and all(_in_pipe(one) for one in found)


def _in_pipe(process: psutil.Process) -> bool:
    time.sleep(0.05)
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() == psutil.STATUS_SLEEPING)
    return False


@pytest.mark.needs("sshd")
def test_a_frozen_remote_host_stops_no_other_stream(own_daemon: Daemon, tmp_path: Path) -> None:
    token = token_of(own_daemon)
    with contextlib.ExitStack() as opened:
        server = opened.enter_context(ssh_server(tmp_path))
        client = opened.enter_context(client_of(own_daemon))
        far = client.connection.add("far", {"type": "ssh", **ssh_fields(server, server.user), "keepAlive": 600})
        stalled = opened.enter_context(contextlib.closing(Stream(own_daemon.url, PATH, token)))
        stalled.ask(connection=far, command="echo begun; cat >/dev/null", pty=True).until(b"begun\r\n")
        server.freeze()
        try:
            # More than the socket to the remote host holds, which is 4 MB.
            for number in range(20):
                stalled.resize(80 + number % 2, 24, times=5000)
            stalled.await_taken()
            other = opened.enter_context(contextlib.closing(Stream(own_daemon.url, PATH, token)))
            assert other.ask(connection=LOCAL, command="echo there").finish().stdout == b"there\n"
        finally:
            server.thaw()
        stalled.write(b"\4")
        assert stalled.finish().status == 0
