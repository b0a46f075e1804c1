"""The codec of WebSockets beside wsproto, an implementation by another hand: whatever comes, both read the same."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage
from wsproto.frame_protocol import FrameProtocol, Opcode, RsvBits, XorMaskerSimple

from connmgr.streams.websocket import (
    BINARY,
    CLOSE,
    CONTINUATION,
    INVALID_DATA,
    NO_STATUS,
    NORMAL,
    PING,
    PONG,
    PROTOCOL_ERROR,
    TEXT,
    TOO_LARGE,
    Codec,
    ProtocolError,
    WebSocketMessage,
    acceptance,
    is_accepted,
    masked,
    read_closing,
    require_upgrade,
    upgrade_request,
)

LIMIT = 1 << 17
BAD_GATEWAY = 1014
"""A code that was registered after wsproto's list was made."""

sides = st.booleans()
payloads = st.one_of(
    st.binary(max_size=200),
    st.sampled_from([bytes(125), bytes(126), bytes(127), b"\xff" * 65535, b"x" * 65536, b"y" * 70000]),
)


def _frame(
    opcode: int, payload: bytes, *, final: bool = True, masks: bool, reserved: int = 0, form: int | None = None
) -> bytes:
    """Return a frame, perhaps one that is not allowed; ``form`` forces a form of its length."""
    length = len(payload)
    shortest = 7 if length < 126 else 16 if length < 1 << 16 else 64
    form = max(form or shortest, shortest)
    mark = {7: length, 16: 126, 64: 127}[form]
    head = bytes((0x80 * final | reserved << 4 | opcode, 0x80 * masks | mark))
    head += {7: b"", 16: struct.pack("!H", length & 0xFFFF), 64: struct.pack("!Q", length)}[form]
    key = b"\x01\x80\xfe\x33"
    return head + (key + bytes(XorMaskerSimple(key).process(bytearray(payload))) if masks else payload)


closings = st.one_of(
    st.just(b""),
    st.binary(max_size=4),
    st.builds(
        lambda code, text: struct.pack("!H", code) + text.encode(),
        st.integers(0, 5100).filter(lambda code: code != BAD_GATEWAY),
        st.text(max_size=20),
    ),
)
texts = st.one_of(st.text(max_size=100).map(str.encode), st.binary(max_size=20))


def _frames(*, masks: bool) -> st.SearchStrategy[bytes]:
    """Frames as a peer sends them, some of them broken."""
    data = st.builds(
        lambda opcode, payload, final: _frame(opcode, payload, final=final, masks=masks),
        st.sampled_from([0, 0, TEXT, BINARY, BINARY]),
        texts,
        st.booleans(),
    )
    large = st.builds(lambda payload: _frame(BINARY, payload, masks=masks), payloads)
    control = st.builds(
        lambda opcode, payload: _frame(opcode, payload, masks=masks),
        st.sampled_from([PING, PONG]),
        st.binary(max_size=125),
    )
    closing = st.builds(lambda payload: _frame(CLOSE, payload, masks=masks), closings)
    broken = st.builds(
        lambda opcode, payload, final, reserved, masks, form: _frame(
            opcode, payload, final=final, masks=masks, reserved=reserved, form=form
        ),
        st.integers(0, 15),
        st.binary(max_size=140),
        st.booleans(),
        st.integers(0, 7),
        st.booleans(),
        st.sampled_from([7, 16, 64]),
    )
    return st.one_of(data, data, large, control, control, closing, broken)


streams = sides.flatmap(
    lambda is_client: st.tuples(
        st.just(is_client),
        st.lists(_frames(masks=not is_client), max_size=8),
        st.lists(st.integers(1, 5000), max_size=6),
    )
)


def _pieces(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(data[at : at + size])
        at += size
    return [*pieces, data[at:]]


def _ours(pieces: Sequence[bytes], *, is_client: bool) -> tuple[list[tuple[int, bytes]], int | None]:
    """Return what our codec reads, and the code of its refusal."""
    codec, read = Codec(is_client=is_client, max_bytes=LIMIT), []
    try:
        for piece in pieces:
            codec.feed(piece)
            while (message := codec.next()) is not None:
                if message.opcode != CONTINUATION:
                    read.append((message.opcode, message.payload))
    except ProtocolError as error:
        assert codec.next() is None, "nothing is read after a refusal"
        return read, error.code
    return read, None


def _theirs(pieces: Sequence[bytes], *, is_client: bool) -> tuple[list[tuple[int, bytes]], int | None]:
    """Return what wsproto reads, with messages joined."""
    connection = Connection(ConnectionType.CLIENT if is_client else ConnectionType.SERVER)
    read: list[tuple[int, bytes]] = []
    begun = b""
    for piece in pieces:
        # It raises on data after a closing frame, of which nothing matters.
        if connection.state.name != "OPEN":
            break
        connection.receive_data(piece)
        for event in connection.events():
            if isinstance(event, CloseConnection) and connection.state.name == "OPEN":
                return read, int(event.code)
            begun += _data(event)
            if isinstance(event, TextMessage | BytesMessage):
                if event.message_finished:
                    read.append((TEXT if isinstance(event, TextMessage) else BINARY, begun))
                    begun = b""
            elif isinstance(event, Ping | Pong):
                read.append((PING if isinstance(event, Ping) else PONG, bytes(event.payload)))
            elif isinstance(event, CloseConnection):
                code = int(event.code)
                closing = b"" if code == NO_STATUS else struct.pack("!H", code) + (event.reason or "").encode()
                read.append((CLOSE, closing))
    return read, None


def _data(event: Event) -> bytes:
    if isinstance(event, TextMessage):
        return event.data.encode()
    return bytes(event.data) if isinstance(event, BytesMessage) else b""


@given(streams)
@settings(deadline=None, max_examples=300)
def test_any_frames_are_read_as_wsproto_reads_them(stream: tuple[bool, list[bytes], list[int]]) -> None:
    is_client, frames, sizes = stream
    pieces = _pieces(b"".join(frames), sizes)
    ours, refusal = _ours(pieces, is_client=is_client)
    theirs, other = _theirs(pieces, is_client=is_client)
    if refusal == other:
        assert ours == theirs
        return
    # A text that is not UTF-8 is refused by wsproto with the frame that breaks it, by us at the message's end.
    assert INVALID_DATA in (refusal, other) or refusal == TOO_LARGE, (refusal, other)
    assert ours[: len(theirs)] == theirs[: len(ours)]


@given(sides, st.sampled_from([TEXT, BINARY]), payloads, st.lists(st.integers(1, 70000), max_size=5))
@settings(deadline=None)
def test_wsproto_reads_what_is_built(is_client: bool, opcode: int, payload: bytes, sizes: list[int]) -> None:
    payload = payload if opcode == BINARY else payload.hex().encode()[:70000]
    other = Connection(ConnectionType.SERVER if is_client else ConnectionType.CLIENT)
    codec = Codec(is_client=is_client, max_bytes=LIMIT)
    sent = (
        codec.frame(opcode, payload[:10], payload[10:]) + codec.frame(PING, b"there?") + codec.closing(4000, "ä" * 99)
    )
    got, pings, closed = b"", [], None
    for piece in _pieces(sent, sizes):
        other.receive_data(piece)
        for event in other.events():
            got += _data(event)
            if isinstance(event, Ping):
                pings.append(bytes(event.payload))
            elif isinstance(event, CloseConnection):
                closed = event
    assert (got, pings) == (payload, [b"there?"])
    assert closed is not None
    assert (closed.code, closed.reason) == (4000, "ä" * 61)


@pytest.mark.parametrize("is_client", [True, False])
def test_a_message_beyond_the_limit_is_refused_by_its_announcement(is_client: bool) -> None:
    for frames in (
        [_frame(BINARY, bytes(LIMIT + 1), masks=not is_client)[:14]],
        [
            _frame(BINARY, bytes(LIMIT), final=False, masks=not is_client),
            _frame(0, b"x", masks=not is_client)[:6],
        ],
    ):
        assert _ours(frames, is_client=is_client) == ([], TOO_LARGE)


@pytest.mark.parametrize("is_client", [True, False])
def test_data_of_up_to_the_limit_is_one_message_however_it_is_cut(is_client: bool) -> None:
    cut = b"".join(
        [
            _frame(BINARY, b"a" * (LIMIT // 2), final=False, masks=not is_client),
            _frame(PING, b"between", masks=not is_client),
            _frame(0, b"", final=False, masks=not is_client),
            _frame(0, b"b" * (LIMIT // 2), masks=not is_client),
        ]
    )
    whole = b"a" * (LIMIT // 2) + b"b" * (LIMIT // 2)
    for size in (1, 7, 4096):
        pieces = [cut[at : at + size] for at in range(0, len(cut), size)] if size > 1 else [cut]
        assert _ours(pieces, is_client=is_client) == ([(PING, b"between"), (BINARY, whole)], None)


def test_nothing_is_read_after_a_closing_frame() -> None:
    codec = Codec(is_client=True, max_bytes=LIMIT)
    codec.feed(_frame(CLOSE, b"\x03\xe8bye", masks=False) + _frame(BINARY, b"more", masks=False))
    assert codec.next() == WebSocketMessage(CLOSE, b"\x03\xe8bye")
    codec.feed(b"\xff" * 100)
    assert (codec.next(), codec.has_ended) == (None, True)


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"", (NO_STATUS, "")),
        (b"\x03\xe8", (NORMAL, "")),
        (b"\x03\xe8\xc3\xa4", (NORMAL, "ä")),
        (struct.pack("!H", BAD_GATEWAY), (BAD_GATEWAY, "")),
        (b"\x0f\xa0own", (4000, "own")),
        (b"\x03", PROTOCOL_ERROR),
        (struct.pack("!H", 999), PROTOCOL_ERROR),
        (struct.pack("!H", NO_STATUS), PROTOCOL_ERROR),
        (struct.pack("!H", 2000), PROTOCOL_ERROR),
        (struct.pack("!H", 5000), PROTOCOL_ERROR),
        (b"\x03\xe8\xff", INVALID_DATA),
    ],
)
def test_codes_of_closing_frames(payload: bytes, expected: object) -> None:
    if isinstance(expected, int):
        with pytest.raises(ProtocolError) as refused:
            read_closing(payload)
        assert refused.value.code == expected
    else:
        assert read_closing(payload) == expected


@given(st.binary(max_size=2000), st.binary(min_size=4, max_size=4))
@settings(deadline=None)
def test_payloads_are_masked_as_wsproto_does(payload: bytes, key: bytes) -> None:
    assert masked(payload, key) == XorMaskerSimple(key).process(bytearray(payload))


def test_frames_of_a_client_are_masked_by_keys_that_differ() -> None:
    codec = Codec(is_client=True, max_bytes=LIMIT)
    assert len({codec.frame(BINARY, bytes(4)) for _ in range(20)}) == 20
    decoded = FrameProtocol(client=False, extensions=[])
    decoded.receive_bytes(codec.frame(PING, b"x"))
    [frame] = decoded.received_frames()
    assert (frame.opcode, bytes(frame.payload), RsvBits(False, False, False)) == (Opcode.PING, b"x", (False,) * 3)


def test_an_upgrade_is_asked_for_and_accepted() -> None:
    wanted, key = upgrade_request()
    asked = require_upgrade({**wanted, "Host": "localhost"}.get)
    lines = acceptance(asked, "connmgr.v1").decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:-2])}
    assert lines[0].startswith("HTTP/1.1 101 ")
    assert headers["sec-websocket-protocol"] == "connmgr.v1"
    assert is_accepted(headers, key)
    assert not is_accepted(headers, b"another key")
    assert not is_accepted({**headers, "upgrade": "h2c"}, key)
    # The example of RFC 6455, section 1.3.
    assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in acceptance(b"dGhlIHNhbXBsZSBub25jZQ==")


GOOD = {
    "Host": "localhost",
    "Connection": "keep-alive, Upgrade",
    "Upgrade": "WebSocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("Host", None, "Host"),
        ("Connection", "keep-alive", "Connection"),
        ("Connection", None, "Connection"),
        ("Upgrade", "h2c", "Upgrade"),
        ("Upgrade", None, "Upgrade"),
        ("Sec-WebSocket-Version", "8", "Version"),
        ("Sec-WebSocket-Version", None, "Version"),
        ("Sec-WebSocket-Key", None, "Key"),
        ("Sec-WebSocket-Key", "c2hvcnQ=", "Key"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==x", "Key"),
        ("Sec-WebSocket-Key", "ä", "Key"),
    ],
)
def test_a_request_that_is_not_for_a_websocket_is_refused_with_what_it_lacks(
    name: str, value: str | None, reason: str
) -> None:
    assert require_upgrade(GOOD.get) == GOOD["Sec-WebSocket-Key"].encode()
    with pytest.raises(ValueError, match=reason):
        require_upgrade({**GOOD, name: value}.get)
