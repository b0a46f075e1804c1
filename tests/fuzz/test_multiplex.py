"""Packets of OpenSSH's multiplexing protocol, whole, cut and damaged, read by the daemon's control sockets."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from pathlib import Path

from hypothesis import strategies as st

from connmgr.multiplex.clients import MAX_ANSWERS_BYTES, MultiplexClient
from connmgr.multiplex.packets import (
    MAX_PACKET_BYTES,
    Malformed,
    NewSession,
    StdioForward,
    length_of,
    packet,
    read_hello,
    read_request,
)
from connmgr.streams.loop import Loop
from tests.fuzz.rounds import fuzz
from tests.fuzz.test_websockets import CUTS, pieces_of
from tests.multiplex.wire import GREETING, Wire, session

NUMBER = st.one_of(
    st.integers(0, 16),
    st.sampled_from([0xFFFFFFFF, 0xFFFFFFFE, 65535, 65536, 0x7E]),
    st.integers(0x10000000, 0x10000011),
    st.integers(0, 0xFFFFFFFF),
)
MEMBER = st.one_of(
    NUMBER, st.binary(max_size=40), st.sampled_from([b"", b"true", b"A=b", b"LANG=C", b"localhost", b"*"])
)
PACKET = st.lists(MEMBER, max_size=12).map(lambda members: packet(*members))
NOISE = st.binary(max_size=60)
LIKELY = st.sampled_from([GREETING, session(b"true"), packet(0x10000004, 1), packet(0x10000006, 1, 1, b"", 1, b"h", 2)])


@fuzz(examples=200, content=st.binary(max_size=200), members=st.lists(MEMBER, max_size=14))
def test_a_packet_is_understood_or_malformed(content: bytes, members: list[int | bytes]) -> None:
    for each in (content, packet(*members)[4:]):
        for read in (read_hello, read_request):
            fault = ""
            try:
                read(each)
            except Malformed as malformed:
                fault = str(malformed)
            assert fault.isprintable()
            assert len(fault) < 200


@fuzz(examples=100, command=st.binary(max_size=80), term=st.binary(max_size=20), flags=st.integers(0, 15))
def test_a_session_is_read_as_it_was_sent(command: bytes, term: bytes, flags: int) -> None:
    command, term = command.replace(b"\0", b""), term.replace(b"\0", b"")
    bits = [flags >> place & 1 for place in range(4)]
    sent = packet(0x10000002, 7, b"ignored", *bits, 0x7E, term, command, b"A=b=c", b"B")
    assert length_of(sent) == len(sent) - 4
    found = read_request(sent[4:])
    assert isinstance(found, NewSession)
    wanted = [found.wants_terminal, found.wants_x11, found.wants_agent, found.is_subsystem]
    assert [int(one) for one in wanted] == bits
    assert (found.number, found.term, found.command, found.escape) == (7, term, command, 0x7E)
    assert found.environment == {b"A": b"b=c", b"B": b""}
    stream = read_request(packet(0x10000008, 1, b"", term, 22)[4:])
    assert isinstance(stream, StdioForward)
    assert (stream.host, stream.port) == (term, 22)


class _Shared:
    """What a client needs of the daemon; nothing is carried out."""

    def __init__(self) -> None:
        self.loop = Loop(foreground=True)
        self.pipeline = self
        self.asked: list[object] = []
        self.gone = 0

    def left(self, client: object) -> None:
        self.gone += 1

    def number(self) -> int:
        return 1

    def why_busy(self, at: object) -> None:
        return None

    def keep(self, at: object, forward: object, *, lasts: bool) -> None: ...

    def is_kept(self, at: object, forward: object) -> bool:
        return False

    def passengers_of(self, at: object) -> list[object]:
        return []


class _Served:
    connection, name = "uuid", "web"

    class sender:  # noqa: N801 - an object
        token = holder = None
        ended = False


def _open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@fuzz(
    examples=60,
    packets=st.lists(st.one_of(PACKET, LIKELY, NOISE), max_size=8),
    cuts=CUTS,
    passed=st.lists(st.integers(0, 12), max_size=5),
    greets=st.booleans(),
)
def test_a_client_gets_answers_or_is_closed_and_nothing_leaks(
    packets: list[bytes], cuts: Sequence[int], passed: list[int], greets: bool
) -> None:
    before = _open_descriptors()
    ours, theirs = socket.socketpair()
    shared = _Shared()
    shared.loop.work = lambda _: None  # type: ignore[method-assign]
    client = MultiplexClient(shared, ours, _Served())  # type: ignore[arg-type]
    theirs.setblocking(False)
    wire = Wire.__new__(Wire)
    wire.socket = theirs
    content = (GREETING if greets else b"") + b"".join(packets)
    try:
        for at, piece in enumerate(pieces_of(content, cuts)):
            if client.closed:
                break
            theirs.send(piece[:4000])
            if at in passed:
                wire.pass_on(*[theirs.fileno()] * (passed.count(at)))
            _turn(client)
            assert len(client._received) <= 2 * MAX_PACKET_BYTES
            assert client._outbox.size <= MAX_ANSWERS_BYTES
    except (BrokenPipeError, ConnectionResetError):
        assert client.closed
    _answers(theirs)
    theirs.close()
    if not client.closed:
        _turn(client)
        client.close()
    assert shared.gone == 1
    if client.passenger is not None:
        client.passenger.abandon()
    shared.loop.close()
    assert _open_descriptors() == before


def _turn(client: MultiplexClient) -> None:
    for _ in range(4):
        if not client.closed:
            client._receive()


def _answers(theirs: socket.socket) -> None:
    """All that the daemon has sent is packets."""
    received = b""
    try:
        while piece := theirs.recv(1 << 16):
            received += piece
    except (BlockingIOError, ConnectionResetError):
        pass
    while received:
        length = struct.unpack_from(">I", received)[0]
        assert len(received) >= 4 + length
        received = received[4 + length :]
