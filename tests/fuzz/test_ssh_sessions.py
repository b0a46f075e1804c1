"""A hostile SSH server after the key exchange, and programs on its side that use the forwarded agent: every message
ends in an answer or an error, in time, and without an exception that nobody catches."""

from __future__ import annotations

import logging
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import paramiko
import pytest
from hypothesis import strategies as st
from paramiko.common import AUTH_SUCCESSFUL, OPEN_SUCCEEDED

from connmgr.errors import ConnmgrError
from connmgr_ssh import Ssh
from connmgr_ssh.agent import MAX_CLIENTS, AgentClient, ForwardedAgent
from connmgr_ssh.packets import packed
from tests.deadlines import DEADLINE_SECONDS
from tests.fuzz.rounds import fuzz
from tests.fuzz.ssh import NUMBER, Port

STEP_SECONDS = 1.0
GRACE_SECONDS = 15.0
OUTPUT_BYTES = 64 << 20
"""More than a hostile server sends here, and no more than a client may take without asking."""

TEXT = st.one_of(
    st.sampled_from(
        [b"exit-status", b"exit-signal", b"xon-xoff", b"eow@openssh.com", b"keepalive@openssh.com", b"", b"\xff\xfe"]
    ),
    st.sampled_from([b"session", b"x11", b"direct-tcpip", b"forwarded-tcpip", b"auth-agent@openssh.com"]),
    st.sampled_from([b"hostkeys-00@openssh.com", b"tcpip-forward", b"cancel-tcpip-forward", b"no-more-sessions"]),
    st.binary(max_size=20),
)
FIELD = st.one_of(
    NUMBER.map(lambda number: struct.pack(">I", number)),
    TEXT.map(packed),
    st.sampled_from([b"\0", b"\1"]),
    st.binary(max_size=12),
)
REST = st.lists(FIELD, max_size=5).map(b"".join)
CHANNEL = b"CHAN"
"""Stands for the number of the client's channel."""

TO_CHANNEL = st.builds(
    lambda kind, number, rest: bytes((kind,)) + number + rest,
    st.integers(91, 100),
    st.one_of(st.just(CHANNEL), st.just(CHANNEL), NUMBER.map(lambda number: struct.pack(">I", number))),
    REST,
)
ABOUT_CHANNEL = st.one_of(
    st.binary(max_size=200).map(lambda data: b"\x5e" + CHANNEL + packed(data)),
    NUMBER.map(lambda size: b"\x5d" + CHANNEL + struct.pack(">I", size)),
    st.builds(lambda code, data: b"\x5f" + CHANNEL + struct.pack(">I", code) + packed(data), NUMBER, st.binary()),
    st.builds(
        lambda name, wants, rest: b"\x62" + CHANNEL + packed(name) + wants + rest,
        TEXT,
        st.sampled_from([b"\0", b"\1", b""]),
        REST,
    ),
    st.sampled_from([b"\x60" + CHANNEL, b"\x61" + CHANNEL, b"\x63" + CHANNEL, b"\x64" + CHANNEL]),
)
OPENING = st.builds(
    lambda kind, number, window, size, rest: b"\x5a" + packed(kind) + struct.pack(">III", number, window, size) + rest,
    TEXT,
    NUMBER,
    NUMBER,
    NUMBER,
    REST,
)
ANY = st.builds(lambda kind, rest: bytes((kind,)) + rest, st.integers(0, 255), REST)
GLOBAL = st.builds(
    lambda kind, name, wants, rest: bytes((kind,)) + packed(name) + wants + rest,
    st.sampled_from([80, 81, 82]),
    TEXT,
    st.sampled_from([b"\0", b"\1"]),
    REST,
)
MESSAGES = st.lists(st.one_of(ABOUT_CHANNEL, ABOUT_CHANNEL, TO_CHANNEL, OPENING, GLOBAL, ANY), max_size=5)


class Hostile(paramiko.ServerInterface):
    """Lets everybody in, and sends messages at three moments."""

    def __init__(self, before: list[bytes], opened: list[bytes], begun: list[bytes]) -> None:
        self.before, self.opened, self.begun = before, opened, begun
        self.transport: Any = None
        self.ended = threading.Event()

    def get_allowed_auths(self, username: str) -> str:
        return "password"

    def check_auth_password(self, username: str, password: str) -> int:
        self._send(self.before)
        return AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        self._send(self.opened)
        return OPEN_SUCCEEDED

    def check_channel_forward_agent_request(self, channel: paramiko.Channel) -> bool:
        return True

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self._send(self.begun, channel.remote_chanid)
        return True

    def _send(self, messages: list[bytes], channel: int = 0) -> None:
        for one in messages:
            self.transport._send_message(paramiko.Message(one.replace(CHANNEL, struct.pack(">I", channel))))


class HostilePort(Port):
    """Serves each connection as :attr:`server`."""

    def __init__(self) -> None:
        self.server = Hostile([], [], [])
        self._key = paramiko.ECDSAKey.generate()
        super().__init__()

    def serve(self, connected: socket.socket) -> None:
        server = self.server
        server.transport = paramiko.Transport(connected)
        server.transport.add_server_key(self._key)
        with suppress(paramiko.SSHException, EOFError, OSError):
            server.transport.start_server(server=server)
        server.ended.wait(DEADLINE_SECONDS)
        server.transport.close()


@pytest.fixture
def port() -> Iterator[HostilePort]:
    running = HostilePort()
    # The server's own complaints are about this client's answers.
    logging.getLogger("paramiko.transport").setLevel(logging.CRITICAL)
    yield running
    logging.getLogger("paramiko.transport").setLevel(logging.NOTSET)
    running.close()


@fuzz(examples=12, before=MESSAGES, opened=MESSAGES, begun=MESSAGES)
def test_a_session_with_a_hostile_server_ends_in_time(
    port: HostilePort, ssh: Ssh, unheard: list[Any], before: list[bytes], opened: list[bytes], begun: list[bytes]
) -> None:
    server = port.server = Hostile(before, opened, begun)
    login = {"host": "127.0.0.1", "port": port.number, "user": "someone", "password": "secret"}
    data = ssh.schema().load({**login, "hostKeyChecking": "acceptNew"})
    began = time.monotonic()
    refused: ConnmgrError | None = None
    try:
        _use(ssh, data)
    except ConnmgrError as error:
        refused = error
    finally:
        server.ended.set()
    if refused is not None:
        assert refused.code != "internal"
        assert "secret" not in refused.message
        assert len(refused.message) < 4000
        assert all(character.isprintable() or character == "\n" for character in refused.message), refused.message
    assert time.monotonic() - began < 4 * STEP_SECONDS + GRACE_SECONDS
    # paramiko's thread of the server's side may trip over what this client sends.
    assert [one.exc_value for one in unheard if one.thread is not server.transport] == []


@pytest.mark.parametrize("message", [b"\x63" + CHANNEL, b"\x62" + CHANNEL + packed(b"x") + b"\1", b"\x61" + CHANNEL])
def test_a_message_about_a_channel_that_is_not_open_ends_the_link(
    port: HostilePort, ssh: Ssh, unheard: list[Any], message: bytes
) -> None:
    server = port.server = Hostile([], [message], [])
    login = {"host": "127.0.0.1", "port": port.number, "user": "someone", "password": "secret"}
    data = ssh.schema().load({**login, "hostKeyChecking": "acceptNew"})
    try:
        with pytest.raises(ConnmgrError):
            _use(ssh, data)
    finally:
        server.ended.set()
    assert [one.exc_value for one in unheard if one.thread is not server.transport] == []


def _use(ssh: Ssh, data: dict[str, Any]) -> None:
    """Log in, run a program, and read what comes until the end or for a second."""
    with closing(ssh.open(data, None, timeout=2 * STEP_SECONDS + GRACE_SECONDS / 3)) as transport:
        channel = transport.open_channel(["true"], timeout=STEP_SECONDS)
        received, until = 0, time.monotonic() + STEP_SECONDS / 4
        try:
            while time.monotonic() < until:
                received += sum(map(len, channel.recv(STEP_SECONDS / 4)))
                assert received < OUTPUT_BYTES
            channel.sendall(b"x" * 100, STEP_SECONDS / 4)
        except (EOFError, OSError):
            with suppress(EOFError, OSError):
                status = channel.exit_status(STEP_SECONDS / 4)
                assert status is None or 0 <= status < 1 << 32
        finally:
            channel.close()


FRAMES = st.lists(
    st.one_of(
        st.binary(max_size=40).map(packed),
        st.builds(lambda kind, rest: packed(bytes((kind,)) + rest), st.sampled_from([11, 13, 17, 27]), REST),
        st.builds(lambda size, rest: struct.pack(">I", size) + rest, NUMBER, st.binary(max_size=20)),
    ),
    max_size=4,
).map(b"".join)


def whole(data: bytes) -> list[bytes]:
    """Return the messages of an agent's protocol at the beginning of ``data`` that are whole and not empty."""
    found: list[bytes] = []
    while len(data) >= 4 and 0 < (size := int.from_bytes(data[:4], "big")) <= len(data) - 4:
        found.append(data[: 4 + size])
        data = data[4 + size :]
    return found


def received(end: socket.socket) -> bytes:
    """Return what comes until the other side closes, perhaps with input of ours that it did not read."""
    data = b""
    with suppress(ConnectionResetError):
        while piece := end.recv(65536):
            data += piece
    return data


@fuzz(examples=60, asked=FRAMES, answers=FRAMES, cut=st.none() | st.integers(0, 60))
def test_a_forwarded_agent_gets_whole_requests_and_the_remote_host_whole_answers(
    unheard: list[Any], asked: bytes, answers: bytes, cut: int | None
) -> None:
    asked = asked[:cut]
    near, remote_side = socket.socketpair()
    ours, agents_side = socket.socketpair()
    with remote_side, agents_side:
        for end, said in ((remote_side, asked), (agents_side, answers)):
            end.settimeout(DEADLINE_SECONDS)
            end.sendall(said)
            end.shutdown(socket.SHUT_WR)
        forwarded = ForwardedAgent(AgentClient(lambda _: ours), "host")
        for _ in range(MAX_CLIENTS):
            assert forwarded.takes()
        assert not forwarded.takes()
        forwarded.serve(near)  # type: ignore[arg-type] # a socket does what it needs of a channel
        requests, told = received(agents_side), received(remote_side)
    assert b"".join(whole(requests)) == requests
    assert whole(asked)[: len(whole(requests))] == whole(requests)
    assert b"".join(whole(told)) == told
    assert len(whole(told)) <= len(whole(requests))
    until = time.monotonic() + DEADLINE_SECONDS
    while not forwarded.takes():
        assert time.monotonic() < until, "a channel that ended keeps its place"
        time.sleep(0.001)
    assert unheard == []
