"""Hostile messages of a host are read in little time and memory, and unsolicited ones end the connection."""

from __future__ import annotations

import re
import socket
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paramiko import common
from paramiko.message import Message
from paramiko.ssh_exception import SSHException

from connmgr.errors import AuthFailed
from connmgr.plugin import Deadline
from connmgr_ssh import Ssh
from connmgr_ssh.agent import AgentClient
from connmgr_ssh.channels import STDERR, STDOUT, WINDOW_BYTES, ChannelOpenFailure, SessionChannel, SshChannel
from connmgr_ssh.config import matches
from connmgr_ssh.keys import _strings
from connmgr_ssh.link import MAX_POSTPONED, SshLink
from connmgr_ssh.login import MAX_ROUNDS, MAX_UNREAD_ANSWERS, UserAuthentication
from connmgr_ssh.packets import Wire, packed
from connmgr_ssh.transport import refused_stream
from tests.hostile import SIZE, fill, quickly
from tests.plugins.ssh.test_prompts import Serve, log_in, serve  # noqa: F401 - a fixture

NO_LINK = cast(Any, SimpleNamespace(reading=SimpleNamespace(sleeping=set())))
"""What a channel looks at of a link that nobody waits for."""


@pytest.fixture
def link() -> Iterator[SshLink]:
    """A link that has received nothing yet."""
    ours, theirs = socket.socketpair()
    link = SshLink(Wire(ours, None), "host")
    yield link
    link.close()
    theirs.close()


@pytest.mark.parametrize("streams", [(STDOUT,), (STDERR,), (STDOUT, STDERR)])
@pytest.mark.parametrize("size", [1, 37, 4095])
def test_a_window_of_tiny_messages_costs_little_more_than_it_holds(streams: tuple[int, ...], size: int) -> None:
    stream = SshChannel(NO_LINK, 1)
    message = memoryview(b"x" * (9 + size))[9:]
    count = min(WINDOW_BYTES // size, 8 << 10)
    tracemalloc.start()
    for number in range(count):
        stream.receive(streams[number % len(streams)], memoryview(bytes(message)))
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 1.1 * count * size + (64 << 10), f"{count} messages of {size} bytes hold {held >> 10} KB"


class Arrived(SessionChannel):
    """A channel without a link, after its last message."""

    def _wait(self, ready: Callable[[], object], timeout: float) -> bool:
        return bool(ready())


def test_a_window_of_tiny_messages_is_read_whole_and_in_order() -> None:
    channel = Arrived(NO_LINK, 1)
    sent = bytes(range(256)) * 256
    for number, byte in enumerate(sent):
        channel.receive(STDERR if number % 3 else STDOUT, bytes([byte]))
    assert channel.recv(0) == (sent[::3], bytes(byte for number, byte in enumerate(sent) if number % 3))
    channel._end()
    with pytest.raises(EOFError):
        channel.recv(0)


def repeat(function: Callable[[], object], times: int) -> None:
    for _ in range(times):
        function()


def test_answers_to_nothing_end_the_connection() -> None:
    stream = SshChannel(NO_LINK, 1)
    with pytest.raises(SSHException):
        repeat(lambda: stream._request_success(Message()), SIZE)


def test_the_number_of_extensions_that_a_host_names_is_not_counted_to(link: SshLink) -> None:
    with quickly(), pytest.raises(SSHException):
        link._parse_ext_info(Message(struct.pack(">I", 2**32 - 1)))


def test_extensions_are_kept(link: SshLink) -> None:
    link._parse_ext_info(Message(struct.pack(">I", 1) + packed(b"server-sig-algs") + packed(b"\xffone,two")))
    assert link.server_extensions == {"server-sig-algs": b"\xffone,two"}


def test_questions_during_a_key_exchange_that_does_not_come_end_the_connection(link: SshLink) -> None:
    link.clear_to_send.clear()
    with pytest.raises(SSHException):
        repeat(
            lambda: link._parse_global_request(Message(packed(b"keepalive@openssh.com") + b"\1")),
            MAX_POSTPONED + 1,
        )


def login(link: SshLink) -> UserAuthentication:
    return UserAuthentication(link, "someone", "far.example:22", Deadline(20))


def test_answers_to_no_login_end_the_connection(link: SshLink) -> None:
    held = login(link)
    refusal = held._handler_table[common.MSG_USERAUTH_FAILURE]
    with pytest.raises(SSHException):
        repeat(lambda: refusal(Message(packed(b"password") + b"\0")), MAX_UNREAD_ANSWERS + 1)


@pytest.mark.parametrize("pattern", [b",", b"\xff,", b"\x1b[2J,", b"password,", b"x"])
def test_offers_of_a_host_are_quoted_within_bounds(link: SshLink, pattern: bytes) -> None:
    held = login(link)
    with quickly():
        assert not held._concludes((common.MSG_USERAUTH_FAILURE, Message(packed(fill(pattern, 256 << 10)))))
        refusal = held._refusal()
    assert len(refusal) < 1000
    assert refusal.isprintable()


def test_a_host_that_asks_without_end_is_given_up(ssh: Ssh, serve: Serve) -> None:  # noqa: F811 - the fixture
    server = serve([[] for _ in range(10 * MAX_ROUNDS)])
    with pytest.raises(AuthFailed):
        log_in(ssh, server)
    assert len(server.examiner.answers) <= MAX_ROUNDS


@pytest.mark.parametrize("pattern", ["x", "\x1b[2J", "\n", "refused "])
def test_why_a_stream_was_refused_is_quoted_in_bounds(pattern: str) -> None:
    error = refused_stream(ChannelOpenFailure(2, pattern * (SIZE // 64 // len(pattern))), "there:22", "gateway")
    assert len(error.message) < 1000
    assert error.message.isprintable()


@pytest.mark.parametrize("pattern", [packed(b""), packed(b"a"), b"\0\0\1"])
def test_the_names_in_a_certificate_are_read_in_linear_time(pattern: bytes) -> None:
    with quickly():
        assert _strings(fill(pattern, 256 << 10))


@pytest.mark.parametrize("pattern", ["*a" * 50_000 + "b", "*?" * 20 + "b", "a*" * 30 + "b", "*" * 100_000 + "b"])
def test_patterns_of_hosts_are_tried_in_polynomial_time(pattern: str) -> None:
    with quickly():
        assert not matches([pattern], "a" * 255)


LETTERS = st.text(alphabet="ab.*?!", max_size=8)


@given(pattern=LETTERS, subject=st.text(alphabet="abA.", max_size=8))
def test_patterns_of_hosts_mean_what_their_expressions_mean(pattern: str, subject: str) -> None:
    wanted = pattern.removeprefix("!").lower()
    expression = "".join({"*": ".*", "?": "."}.get(character, re.escape(character)) for character in wanted)
    fits = re.fullmatch(expression, subject.lower(), re.DOTALL) is not None
    assert matches([pattern], subject) == (fits and not pattern.startswith("!"))


def test_many_plain_names_are_compared_quickly() -> None:
    names = [f"host{number}.example" for number in range(SIZE // 64)]
    with quickly():
        assert not matches(names, "other.example")


AGENT_KEY = packed(b"\0\0\0\x0bssh-ed25519" + packed(bytes(32)))
AGENT_ANSWERS = {
    "more keys than it sends": b"\x0c" + struct.pack(">I", 2**32 - 1) + AGENT_KEY + packed(b"a"),
    "a key that is cut off": b"\x0c" + struct.pack(">I", 1) + struct.pack(">I", 1 << 20) + b"x",
    "a key without a type": b"\x0c" + struct.pack(">I", 1) + packed(b"") + packed(b"a"),
    "a type that is not text": b"\x0c" + struct.pack(">I", 1) + packed(packed(b"\xff")) + packed(b"a"),
    "no count": b"\x0c\0\0\1",
}


@pytest.fixture
def agent_that_says() -> Iterator[Callable[[bytes], AgentClient]]:
    """A function that returns an agent with one answer."""
    with ExitStack() as stack:

        def says(answer: bytes) -> AgentClient:
            ours, theirs = (stack.enter_context(end) for end in socket.socketpair())
            theirs.sendall(packed(answer))
            theirs.shutdown(socket.SHUT_WR)
            return AgentClient(lambda _: ours)

        yield says


@pytest.mark.parametrize("case", AGENT_ANSWERS)
def test_a_malformed_list_of_an_agents_keys_is_an_error_at_once(
    agent_that_says: Callable[[bytes], AgentClient], case: str
) -> None:
    with quickly(), pytest.raises(AuthFailed, match="malformed"):
        agent_that_says(AGENT_ANSWERS[case]).identities(Deadline(20))


def test_an_agents_comment_need_not_be_text(agent_that_says: Callable[[bytes], AgentClient]) -> None:
    agent = agent_that_says(b"\x0c" + struct.pack(">I", 1) + AGENT_KEY + packed(b"\xff"))
    assert [identity.public.type for identity in agent.identities(Deadline(20))] == ["ssh-ed25519"]
