"""Frames of WebSockets, whole, cut and damaged, read by the daemon's end and by the client's."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from hypothesis import strategies as st
from wsproto import ConnectionType
from wsproto.connection import Connection
from wsproto.events import BytesMessage, CloseConnection, Pong

from connmgr.client import pipe as client
from connmgr.client.errors import ClientError
from connmgr.errors import BadFrame
from connmgr.pipes.clients import FIRST_MESSAGE_BYTES, RECEIVE_BYTES, Opening
from connmgr.streams import frames
from connmgr.streams.frames import MAX_FRAME_BYTES
from connmgr.streams.websocket import BINARY, PING, Codec, ProtocolError, WebSocketMessage, read_closing
from tests.fuzz.rounds import fuzz

KEY = b"\x01\x80\xfe\x10"
HEADERS = {
    "Host": "localhost",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
CODES = {1002, 1003, 1007, 1008, 1009}
"""What a WebSocket closes with that received something else than it may (RFC 6455, section 7.4.1)."""

PAYLOAD = st.one_of(
    st.binary(max_size=300),
    st.sampled_from([0, 125, 126, 127, 65535, 65536, MAX_FRAME_BYTES]).map(lambda size: b"x" * size),
)


class Frame(NamedTuple):
    """A frame as RFC 6455, section 5.2, has it."""

    opcode: int
    payload: bytes
    final: bool = True
    reserved: int = 0
    length: int | None = None
    """The length that it announces, if not its own."""

    def encoded(self, key: bytes) -> bytes:
        """Return its bytes, masked with ``key`` if there is one."""
        length = len(self.payload) if self.length is None else self.length
        first, masks = self.final << 7 | self.reserved << 4 | self.opcode, bool(key) << 7
        if length < 126:
            head = struct.pack("!BB", first, masks | length)
        elif length < 1 << 16:
            head = struct.pack("!BBH", first, masks | 126, length)
        else:
            head = struct.pack("!BBQ", first, masks | 127, length)
        size = len(self.payload)
        mask = int.from_bytes((key * (size // 4 + 1))[:size], "big")
        return head + key + (int.from_bytes(self.payload, "big") ^ mask).to_bytes(size, "big")


def fragments(message: bytes, cuts: Sequence[int], ping: bytes | None) -> list[Frame]:
    """Return the frames of a binary message cut at ``cuts``, with a ping before the last one."""
    ends = [*sorted({cut % (len(message) + 1) for cut in cuts}), len(message)]
    starts = [0, *ends[:-1]]
    found = [
        Frame(0 if start_at else 2, message[start:end], final=start_at == len(ends) - 1)
        for start_at, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]
    return found if ping is None else [*found[:-1], Frame(9, ping), found[-1]]


MESSAGES = st.lists(
    st.tuples(PAYLOAD, st.lists(st.integers(0, 1 << 20), max_size=3), st.none() | st.binary(max_size=125)), max_size=4
)
CUTS = st.lists(st.integers(0, 1 << 20), max_size=8)
ODD_FRAME = st.builds(
    Frame,
    st.integers(0, 15),
    PAYLOAD,
    st.booleans(),
    st.sampled_from([0, 0, 0, 1, 7]),
    st.none() | st.sampled_from([0, 1, 125, 126, 65536, MAX_FRAME_BYTES + 1, 1 << 31, (1 << 63) - 1, 1 << 63]),
)
CLOSING = st.builds(
    lambda code, why: Frame(8, struct.pack("!H", code) + why), st.integers(0, 65535), st.binary(max_size=9)
)
JUNK = st.lists(st.one_of(ODD_FRAME, CLOSING, st.binary(max_size=2).map(lambda code: Frame(8, code))), max_size=6)


def pieces_of(content: bytes, cuts: Sequence[int]) -> Iterator[bytes]:
    ends = [*sorted(cut % (len(content) + 1) for cut in cuts), len(content)]
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        if start < end:
            yield content[start:end]


def read_by_the_daemon(content: bytes, cuts: Sequence[int]) -> tuple[list[WebSocketMessage], int | None]:
    """Return what the daemon's end reads of ``content`` cut at ``cuts``, and the code of its refusal, if any."""
    codec = Codec(is_client=False, max_bytes=MAX_FRAME_BYTES)
    messages: list[WebSocketMessage] = []
    for piece in pieces_of(content, cuts):
        codec.feed(piece)
        try:
            while (message := codec.next()) is not None:
                messages.append(message)
        except ProtocolError as error:
            assert codec.has_ended
            codec.feed(piece)
            assert codec.next() is None
            return messages, error.code
        assert len(codec._fragments) <= MAX_FRAME_BYTES
        assert len(codec._received) <= 2 * MAX_FRAME_BYTES + len(piece)
    return messages, None


@fuzz(examples=25, messages=MESSAGES, cuts=CUTS)
def test_the_daemon_reads_the_same_messages_however_they_come(
    messages: list[tuple[bytes, list[int], bytes | None]], cuts: list[int]
) -> None:
    sent = [frame for message in messages for frame in fragments(*message)]
    content = b"".join(frame.encoded(KEY) for frame in [*sent, Frame(8, b"\x03\xe8bye")])
    read, refused = read_by_the_daemon(content, cuts)
    assert refused is None
    assert [message.payload for message in read if message.opcode == BINARY] == [message for message, _, _ in messages]
    assert [message.payload for message in read if message.opcode == PING] == [
        ping for _, _, ping in messages if ping is not None
    ]
    assert read_closing(read[-1].payload) == (1000, "bye")


@fuzz(examples=40, messages=MESSAGES, junk=JUNK, noise=st.binary(max_size=40), cuts=CUTS, masks=st.booleans())
def test_the_daemon_refuses_anything_else_with_a_code_or_waits_for_more(
    messages: list[tuple[bytes, list[int], bytes | None]], junk: list[Frame], noise: bytes, cuts: list[int], masks: bool
) -> None:
    content = b"".join(frame.encoded(KEY) for message in messages for frame in fragments(*message))
    content += b"".join(frame.encoded(KEY if masks else b"") for frame in junk) + noise
    read, refused = read_by_the_daemon(content, cuts)
    assert refused is None or refused in CODES
    whole = [message.payload for message in read if message.opcode == BINARY]
    assert whole[: len(messages)] == [message for message, _, _ in messages]


def taken(pieces: Iterator[bytes]) -> tuple[list[bytes], int | None, str, bytes]:
    """Return the messages that the client reads, the code of the daemon's close, its error, and what it answered."""
    ours, theirs = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 21)
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        reading, error = client.WebSocket(ours), ""
        messages: list[bytes] = []
        try:
            for piece in pieces:
                view = memoryview(piece)
                while view and reading.closed is None:
                    view = view[theirs.send(view[: client.READ_BYTES]) :]
                    # One by one: those before an error count, too.
                    for message in reading.receive():
                        messages.append(bytes(message))
                    assert len(reading._codec._fragments) <= MAX_FRAME_BYTES
                    assert len(reading._codec._received) <= 2 * MAX_FRAME_BYTES
        except ClientError as refusal:
            error = refusal.code
        heard = b""
        with suppress(BlockingIOError, ConnectionResetError):
            while more := theirs.recv(1 << 20):
                heard += more
        return messages, reading.closed, error, heard


def said(heard: bytes) -> list[object]:
    listener = Connection(ConnectionType.SERVER)
    listener.receive_data(heard)
    return list(listener.events())


@fuzz(examples=25, messages=MESSAGES, cuts=CUTS)
def test_the_client_reads_the_same_messages_however_they_come(
    messages: list[tuple[bytes, list[int], bytes | None]], cuts: list[int]
) -> None:
    sent = [frame for message in messages for frame in fragments(*message)]
    content = b"".join(frame.encoded(b"") for frame in [*sent, Frame(8, b"\x03\xe9bye")])
    found, closed, error, heard = taken(pieces_of(content, cuts))
    assert (found, closed, error) == ([message for message, _, _ in messages], 1001, "")
    *pongs, goodbye = said(heard)
    assert [pong.payload for pong in pongs if isinstance(pong, Pong)] == [
        ping for *_, ping in messages if ping is not None
    ]
    assert isinstance(goodbye, CloseConnection)
    assert goodbye.code == 1001


@fuzz(examples=40, messages=MESSAGES, junk=JUNK, noise=st.binary(max_size=40), cuts=CUTS, masks=st.booleans())
def test_the_client_refuses_anything_else_with_a_closing_frame(
    messages: list[tuple[bytes, list[int], bytes | None]], junk: list[Frame], noise: bytes, cuts: list[int], masks: bool
) -> None:
    content = b"".join(frame.encoded(b"") for message in messages for frame in fragments(*message))
    content += b"".join(frame.encoded(KEY if masks else b"") for frame in junk) + noise
    found, closed, error, heard = taken(pieces_of(content, cuts))
    assert found[: len(messages)] == [message for message, _, _ in messages]
    answers = said(heard)
    goodbyes = [event for event in answers if isinstance(event, CloseConnection)]
    assert all(isinstance(event, Pong | CloseConnection) for event in answers), answers
    if error:
        assert [goodbye.code in CODES for goodbye in goodbyes] == [True], goodbyes
    elif closed is not None:
        assert len(goodbyes) == 1


@fuzz(examples=25, parts=st.lists(st.tuples(PAYLOAD, st.booleans()), max_size=4))
def test_wsproto_reads_what_the_client_sends(parts: list[tuple[bytes, bool]]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        sending, heard = client.WebSocket(ours), b""
        for payload, _ in parts:
            sending.send(payload[: len(payload) // 2], payload[len(payload) // 2 :])
        while True:
            sending.flush()
            with suppress(BlockingIOError):
                while more := theirs.recv(1 << 20):
                    heard += more
            if not sending.unsent:
                break
        listener = Connection(ConnectionType.SERVER)
        listener.receive_data(heard)
        found, message = [], b""
        for event in listener.events():
            assert isinstance(event, BytesMessage)
            message += bytes(event.data)
            if event.message_finished:
                found, message = [*found, message], b""
        assert found == [payload for payload, _ in parts]


@fuzz(examples=40, content=st.binary(max_size=60), junk=JUNK, first=PAYLOAD, cuts=CUTS, fragmented=CUTS)
def test_the_request_of_a_stream_is_read_or_refused(
    content: bytes, junk: list[Frame], first: bytes, cuts: list[int], fragmented: list[int]
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 21)
        opening = Opening(HEADERS.get)
        opening.accept(ours)
        whole = b"".join(frame.encoded(KEY) for frame in fragments(first, fragmented, b"ping"))
        message = None
        for piece in pieces_of(whole, cuts):
            assert message is None
            theirs.sendall(piece)
            message = opening.first_message()
        assert message == first
        other = Opening(HEADERS.get)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 21)
        other.accept(ours)
        with suppress(BadFrame):
            for piece in pieces_of(b"".join(frame.encoded(KEY) for frame in junk) + content, cuts):
                theirs.sendall(piece)
                other.first_message()
                assert len(other.codec._fragments) <= FIRST_MESSAGE_BYTES + RECEIVE_BYTES


@fuzz(examples=60, payload=st.binary(max_size=9))
def test_payloads_are_read_or_refused(payload: bytes) -> None:
    for read in (frames.size_in, frames.count_in, frames.status_in):
        with suppress(ValueError):
            read(payload)
    if len(payload) == 4:
        assert frames.acknowledgement(frames.count_in(payload))[1:] == payload
        assert frames.exit_status(frames.status_in(payload))[1:] == payload
