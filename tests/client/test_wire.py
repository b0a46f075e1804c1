"""HTTP/1.1 in the client: its requests, and the answers that it accepts and refuses."""

from __future__ import annotations

import io
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from connmgr.client.wire import BLOCK_BYTES, LINE_BYTES, Connection, Response, WireError
from tests.deadlines import DEADLINE_SECONDS


@contextmanager
def wire() -> Iterator[tuple[Connection, socket.socket]]:
    """A connection and its other end."""
    ours, theirs = socket.socketpair()
    connection = Connection("127.0.0.1", 7, DEADLINE_SECONDS)
    connection.sock = ours
    for end in (ours, theirs):
        end.settimeout(DEADLINE_SECONDS)
    with theirs:
        try:
            yield connection, theirs
        finally:
            connection.close()


@contextmanager
def answered(answer: bytes, *, end: bool = True) -> Iterator[Response]:
    """Send an answer from the other side, close there unless ``end`` is false, and yield the response."""
    with wire() as (connection, theirs):
        theirs.sendall(answer)
        if end:
            theirs.close()
        yield connection.response()


def sent(body: bytes | io.BytesIO | list[bytes], length: int | None = None, **headers: str) -> bytes:
    with wire() as (connection, theirs):
        connection.post("/x", body, headers, length)
        connection.close()
        return b"".join(iter(lambda: theirs.recv(65536), b""))


def test_a_body_of_bytes_goes_with_its_length() -> None:
    assert (
        sent(b"{}", Accept="a/b")
        == b"POST /x HTTP/1.1\r\nHost: 127.0.0.1:7\r\nAccept: a/b\r\nContent-Length: 2\r\n\r\n{}"
    )


def test_a_body_in_pieces_goes_in_chunks_and_an_empty_piece_does_not_end_it() -> None:
    head, _, body = sent([b"one", b"", b"x" * 17]).partition(b"\r\n\r\n")
    assert b"\r\nTransfer-Encoding: chunked" in head
    assert body == b"3\r\none\r\n11\r\n" + b"x" * 17 + b"\r\n0\r\n\r\n"
    assert sent([]).endswith(b"\r\n\r\n0\r\n\r\n")


def test_a_body_of_known_length_goes_as_it_is() -> None:
    assert sent(io.BytesIO(b"abcdef"), 6).endswith(b"\r\nContent-Length: 6\r\n\r\nabcdef")
    assert sent([b"abc", b"def"], 6).endswith(b"\r\nContent-Length: 6\r\n\r\nabcdef")


@pytest.mark.parametrize(
    ("path", "value"), [("/a b", ""), ("/a\r\nX: y", ""), ("/", "a\r\nX: y"), ("/", "a\0"), ("/", "€")]
)
def test_header_values_cannot_contain_line_ends(path: str, value: str) -> None:
    with wire() as (connection, theirs):
        with pytest.raises(ValueError):  # noqa: PT011 - of either kind
            connection.post(path, b"", {"Authorization": value})
        connection.close()
        assert theirs.recv(100) == b""


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (OK + b"Content-Length: 3\r\n\r\nabc", b"abc"),
        (OK + b"content-length:3\r\n\r\nabcdef", b"abc"),
        (OK + b"Content-Length: 0\r\n\r\n", b""),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: x\r\n\r\n", b"abcde"),
        (OK + b"Transfer-Encoding: Chunked\r\n\r\nA\r\n0123456789\r\n0\r\n\r\n", b"0123456789"),
        (OK + b"\r\nuntil the end", b"until the end"),
        (b"HTTP/1.0 200\nContent-Length: 1\n\nx", b"x"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\nx", b"x"),
    ],
)
def test_bodies_of_every_framing_are_read_to_their_end(answer: bytes, body: bytes) -> None:
    with answered(answer) as response:
        assert (response.status, response.read(), response.ended) == (200, body, True)
        assert response.read() == b""


def test_the_beginning_of_an_answer_is_read_before_the_rest_arrives() -> None:
    head = OK + b"Content-Type: A/b; charset=x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with answered(head + b"5\r\nfirst\r\n", end=False) as response:
        assert response.headers.content_type == "a/b"
        assert response.read1(BLOCK_BYTES) == b"first"
        assert not response.ended


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 099 x\r\n\r\n",
        OK,
        OK + b"no header\r\n\r\n",
        OK + b"Two words: x\r\n\r\n",
        OK + b"Content-Length: -1\r\n\r\n",
        OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        OK + b"Content-Length: \xb2\r\n\r\nxx",
        OK + b"Transfer-Encoding: gzip\r\n\r\n",
        OK + b"X: " + b"x" * LINE_BYTES + b"\r\n\r\n",
        OK + b"X: y\r\n" * 101 + b"\r\n",
    ],
)
def test_malformed_answers_are_rejected(answer: bytes) -> None:
    with pytest.raises(WireError), answered(answer):
        pass


@pytest.mark.parametrize(
    "rest",
    [
        b"Content-Length: 4\r\n\r\nabc",
        b"Transfer-Encoding: chunked\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n4\r\nabc",
        b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc",
        b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 16 + b"\r\n",
    ],
)
def test_a_body_that_breaks_off_is_never_taken_for_a_whole_one(rest: bytes) -> None:
    with answered(OK + rest) as response, pytest.raises(WireError):
        response.read()


def test_the_connection_stays_after_an_answer_that_was_read_and_no_other() -> None:
    length = OK + b"Content-Length: 1\r\n\r\nx"
    with wire() as (connection, theirs):
        for _ in range(2):
            connection.post("/", b"", {})
            theirs.sendall(length)
            assert connection.response().read() == b"x"
        theirs.sendall(length)
        left = connection.response()
        with pytest.raises(WireError, match="was not read"):
            connection.post("/", b"", {})
        left.close()
        assert connection.sock is None
        with pytest.raises(WireError, match="closed"):
            left.read()


@pytest.mark.parametrize("head", [OK + b"Connection: close\r\n", b"HTTP/1.0 200 OK\r\n"])
def test_the_connection_ends_where_the_other_side_says_so(head: bytes) -> None:
    with wire() as (connection, theirs):
        theirs.sendall(head + b"Content-Length: 1\r\n\r\nx")
        response = connection.response()
        assert connection.sock is None, "the connection is not free while the answer is read"
        assert response.read() == b"x"
        assert theirs.recv(1) == b""


def test_to_leave_the_last_answer_ends_its_connection() -> None:
    with wire() as (connection, theirs):
        theirs.sendall(OK + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n1\r\nx\r\n")
        response = connection.response()
        assert response.read1(BLOCK_BYTES) == b"x"
        response.close()
        assert theirs.recv(1) == b""


def test_to_leave_an_answer_ends_no_connection_but_its_own() -> None:
    with wire() as (connection, theirs):
        theirs.sendall(OK + b"Content-Length: 2\r\n\r\nx")
        left = connection.response()
        connection.close()
        connection.sock, other = socket.socketpair()
        with other:
            other.sendall(OK + b"Content-Length: 1\r\n\r\ny")
            later = connection.response()
            left.close()
            assert later.read() == b"y"
            assert connection.sock is not None
