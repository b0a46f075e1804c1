"""Requests to a real daemon, damaged: each is answered or its connection closed, and what is accepted is what another
parser of HTTP, h11, takes for the same requests."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import h11
import pytest
from hypothesis import strategies as st
from waitress.buffers import OverflowableBuffer

from connmgr.daemon.parser import ChunkedBody
from tests.api.wire import address, token_of
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS
from tests.fuzz.rounds import fuzz

QUERY = b'{"filter":"*"}'
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

REFUSED_BY_H11 = re.compile(rb"[0-9A-Fa-f][ \t]+;|[\x80-\xff][^\r\n]* HTTP/1\.[01][ \t]*\r\n")
"""Blanks before the extension of a chunk, which RFC 9112, section 7.1.1, has recipients accept; and bytes beyond ASCII
in a target, as curl sends them for a path that was not encoded."""

FIRST = st.sampled_from(
    [b"POST /category/query HTTP/1.1"] * 8
    + [b"POST /category/query HTTP/1.0", b"GET /category/query HTTP/1.1", b"POST //category/query HTTP/1.1", b"* * *"]
    + [b"POST http://HOST/category/query HTTP/1.1", b"POST /category/query?a=%zz HTTP/1.1", b"POST /%00 HTTP/1.1", b""]
)
LENGTH = st.one_of(
    st.just(b"Content-Length: 14"),
    st.builds(lambda number: b"Content-Length: %d" % number, st.sampled_from([0, 13, 15, 1 << 16, 1 << 62, 10**40])),
    st.just(b"Transfer-Encoding: chunked"),
    st.sampled_from(
        [
            b"content-length:14",
            b"Content-Length: +14",
            b"Content-Length: 14,14",
            b"Content-Length : 14",
            b"Content_Length: 3",
        ]
    )
    | st.sampled_from(
        [
            b"Transfer-Encoding: Chunked",
            b"Transfer-Encoding: x, chunked",
            b"Transfer-Encoding:\x0bchunked",
            b"Transfer_Encoding: chunked",
        ]
    ),
)
FIELD = st.one_of(
    st.sampled_from(
        [
            b"Connection: close",
            b"Connection: keep-alive",
            b"Connection: upgrade",
            b"Upgrade: h2c",
            b"Expect: 100-continue",
        ]
    ),
    st.sampled_from(
        [
            b"X: y",
            b"X:",
            b"X: \xff",
            b"X: a\tb",
            b" X: folded",
            b"X\0: y",
            b"X: \0",
            b"X y",
            b": y",
            b"X: a\rb",
            b"X: a\nY: b",
        ]
    ),
    st.sampled_from([b"Content-Type: text/plain", b"Authorization: Bearer wrong", b"Origin: http://evil"]),
)
SIZE = st.sampled_from(
    [
        b"e",
        b"E",
        b"0e",
        b"00000e",
        b"e;x",
        b"e ;x=y",
        b'e;x="a;b"',
        b"e;",
        b"f",
        b"d",
        b" e",
        b"e ",
        b"0xe",
        b"-1",
        b"g",
        b"",
        b"f" * 17,
    ]
)
CHUNKS = st.builds(
    lambda size, content, end, last, trailer: size + b"\r\n" + content + end + last + b"\r\n" + trailer + b"\r\n",
    SIZE,
    st.sampled_from([QUERY] * 6 + [QUERY[:-1], b"\r\n", b"0\r\n\r\n"]),
    st.sampled_from([b"\r\n"] * 6 + [b"\n", b"", b"\r\n\r\n", b"x\r\n"]),
    st.sampled_from([b"0"] * 6 + [b"00", b"0;x", b"1", b"", b"-0"]),
    st.sampled_from([b""] * 6 + [b"X: y\r\n", b"X y\r\n", b"X: \0\r\n", b"POST / HTTP/1.1\r\n"]),
)
BODY = st.one_of(st.just(QUERY), st.just(QUERY), CHUNKS, CHUNKS, st.binary(max_size=20), st.just(b""))
HEAD = st.tuples(FIRST, st.lists(LENGTH, max_size=2), st.lists(FIELD, max_size=2), st.booleans())
REQUEST = st.tuples(HEAD, BODY)
FLIPS = st.lists(st.tuples(st.integers(0, 600), st.binary(max_size=2)), max_size=2)
CUTS = st.lists(st.integers(0, 600), max_size=3)


def made(
    requests: Sequence[tuple[tuple[bytes, list[bytes], list[bytes], bool], bytes]], host: bytes, token: bytes
) -> bytes:
    sent = b""
    for (first, lengths, fields, is_known), body in requests:
        known = [b"Authorization: Bearer " + token] * is_known
        lines = [first, b"Host: HOST", b"Content-Type: application/json", *known, *lengths, *fields, b"", b""]
        sent += b"\r\n".join(lines).replace(b"HOST", host) + body
    return sent


def answers_to(daemon: Daemon, sent: bytes, cuts: Sequence[int]) -> list[int]:
    """Send, end sending, and return the statuses of all answers until the daemon closes."""
    received, ends = b"", [*sorted({cut % (len(sent) + 1) for cut in cuts}), len(sent)]
    with socket.create_connection(address(daemon.url), timeout=DEADLINE_SECONDS) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # It may have refused a request, and closed while the rest was being sent.
        with suppress(OSError):
            for start, end in zip([0, *ends[:-1]], ends, strict=True):
                connection.sendall(sent[start:end])
            connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            while piece := connection.recv(65536):
                received += piece
    statuses, rest = [], received.removeprefix(CONTINUE)
    while rest:
        # An answer has its length, or ends with the connection; h11 reads the daemon's answers strictly.
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method="POST", target="/", headers=[("Host", "x"), ("Content-Length", "0")]))
        parser.send(h11.EndOfMessage())
        parser.receive_data(rest)
        parser.receive_data(b"")
        while True:
            event = parser.next_event()
            if isinstance(event, h11.Response):
                statuses.append(event.status_code)
            if isinstance(event, h11.EndOfMessage):
                break
            assert not isinstance(event, h11.NEED_DATA | h11.ConnectionClosed), rest
        rest = parser.trailing_data[0].removeprefix(CONTINUE)
    return statuses


def requests_in(sent: bytes) -> list[bytes]:
    """Return the bodies of the whole requests that h11 reads before something that it refuses."""
    found: list[bytes] = []
    rest = sent
    while rest:
        parser = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
        parser.receive_data(rest)
        body, whole = b"", False
        try:
            while not whole:
                event = parser.next_event()
                if event is h11.NEED_DATA or event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                    return found
                if isinstance(event, h11.Data):
                    body += bytes(event.data)
                whole = isinstance(event, h11.EndOfMessage)
        except h11.RemoteProtocolError:
            return found
        found.append(body)
        rest = parser.trailing_data[0]
    return found


@pytest.fixture
def token(daemon: Daemon) -> bytes:
    return token_of(daemon).encode()


@fuzz(examples=40, requests=st.lists(REQUEST, min_size=1, max_size=3), flips=FLIPS, cuts=CUTS)
def test_the_daemon_answers_no_request_that_another_parser_does_not_see(
    daemon: Daemon, token: bytes, requests: list, flips: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    host = ":".join(map(str, address(daemon.url))).encode()
    sent = bytearray(made(requests, host, token))
    for at, change in flips:
        start = at % (len(sent) + 1)
        sent[start : start + len(change)] = change
    statuses = answers_to(daemon, bytes(sent), cuts)
    seen = len(requests_in(bytes(sent)))
    # The last answer may refuse something that is no request for either, and ends the connection.
    assert REFUSED_BY_H11.search(sent) or len(statuses) <= seen + (bool(statuses) and statuses[-1] >= 400), (
        statuses,
        bytes(sent),
    )
    assert answers_to(daemon, b"POST /handshake HTTP/1.1\r\nHost: " + host + b"\r\nContent-Length: 0\r\n\r\n", [])
    assert daemon.running


MEMBERS = st.dictionaries(
    st.sampled_from(["filter", "connections", "connection", "command", "path", "terminal", "job", "limit", "x"]),
    st.one_of(st.none(), st.booleans(), st.integers(-2, 1 << 40), st.text(max_size=8), st.lists(st.text(max_size=4))),
    max_size=4,
)
ENDPOINTS = """
    /category/query /category/info /connection/query /connection/info /connection/types /shell/exec /fs/list /fs/read
    /fs/archive /job/query /job/output /terminal/screen /token/query /audit/query /daemon/version /nothing
"""
CONTENT = st.one_of(
    MEMBERS.map(lambda members: json.dumps(members).encode()),
    MEMBERS.map(lambda members: json.dumps(members, ensure_ascii=False).encode("utf-8", "surrogatepass")),
    st.binary(max_size=30),
)


@fuzz(examples=25, path=st.sampled_from(ENDPOINTS.split()), body=CONTENT, sizes=st.lists(st.integers(1, 30)), cuts=CUTS)
def test_a_body_in_chunks_is_answered_as_the_same_body_whole(
    daemon: Daemon, token: bytes, path: str, body: bytes, sizes: list[int], cuts: list[int]
) -> None:
    host = ":".join(map(str, address(daemon.url))).encode()
    head = f"POST {path} HTTP/1.1\r\n".encode() + b"Host: " + host + b"\r\nAuthorization: Bearer " + token
    head += b"\r\nContent-Type: application/json\r\nConnection: close\r\n"
    chunks, rest = b"", body
    for size in [*sizes, len(body)]:
        piece, rest = rest[:size], rest[size:]
        chunks += b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""
    whole = content_of(daemon, head + b"Content-Length: %d\r\n\r\n" % len(body) + body, [])
    assert content_of(daemon, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n", cuts) == whole


def content_of(daemon: Daemon, sent: bytes, cuts: Sequence[int]) -> tuple[bytes, Any]:
    """Return the status and the JSON of the one answer, without what differs between any two requests."""
    ends = [*sorted({cut % (len(sent) + 1) for cut in cuts}), len(sent)]
    received = b""
    with socket.create_connection(address(daemon.url), timeout=DEADLINE_SECONDS) as connection:
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            connection.sendall(sent[start:end])
        while piece := connection.recv(65536):
            received += piece
    head, _, content = received.partition(b"\r\n\r\n")
    status = head.split(b" ")[1]
    if status == b"200":
        # Logs and lists of sessions grow with each request.
        return status, None
    return status, json.loads(content)


@fuzz(examples=150, body=st.one_of(CHUNKS, st.builds(bytes.__add__, CHUNKS, CHUNKS)), flips=FLIPS, cuts=CUTS)
def test_a_chunked_body_that_is_accepted_is_the_same_for_another_parser(
    body: bytes, flips: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    sent = bytearray(body)
    for at, change in flips:
        start = at % (len(sent) + 1)
        sent[start : start + len(change)] = change
    ends = [*sorted({cut % (len(sent) + 1) for cut in cuts}), len(sent)]
    read, used = ChunkedBody(OverflowableBuffer(1 << 20)), 0
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        if start == used:
            used += read.received(bytes(sent[start:end]))
    at_once = ChunkedBody(OverflowableBuffer(1 << 20))
    assert at_once.received(bytes(sent)) == used or at_once.error
    assert (at_once.completed, at_once.error is None) == (read.completed, read.error is None)
    if not read.completed or read.error:
        return
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    others = requests_in(head + bytes(sent[:used]))
    assert others == [read.getfile().read()] or (not others and REFUSED_BY_H11.search(sent))
