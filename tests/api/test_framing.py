"""The boundary between requests: ambiguous requests are refused, and nothing after them is answered."""

from __future__ import annotations

import json

import pytest

from tests.api.wire import address, send, talk, token_of
from tests.daemon import Daemon

QUERY = b'{"filter":"*"}'
SMUGGLED = b"POST /nothing HTTP/1.1\r\nHost: HERE\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
"""Sent after each request, and must not be answered if that is refused."""


def responses(daemon: Daemon, first_line: bytes, *lines: bytes, body: bytes = b"") -> list[bytes]:
    """Send a request with a valid token and then :data:`SMUGGLED`; return all responses until the daemon closes."""
    token = f"Authorization: Bearer {token_of(daemon)}".encode()
    head = b"\r\n".join([first_line, b"Host: HERE", b"Content-Type: application/json", token, *lines, b"", b""])
    host = ":".join(map(str, address(daemon.url))).encode()
    received = talk(daemon.url, head.replace(b"HERE", host) + body + SMUGGLED.replace(b"HERE", host))
    return received.split(b"HTTP/1.1 ")[1:] if b"HTTP/1.1 " in received else received.split(b"HTTP/1.0 ")[1:]


def refused(daemon: Daemon, first_line: bytes, *lines: bytes, body: bytes = b"") -> None:
    found = responses(daemon, first_line, *lines, body=body)
    assert len(found) == 1, "what follows a request of doubtful length is taken for another request"
    assert found[0].startswith(b"400 "), found[0]
    assert b"connection: close" in found[0].lower()
    assert json.loads(found[0].partition(b"\r\n\r\n")[2])["code"] == "invalid_request"


POST = b"POST /category/query HTTP/1.1"
CHUNKED = b"Transfer-Encoding: chunked"
LENGTH = b"Content-Length: 14"
WHOLE = b"e\r\n" + QUERY + b"\r\n0\r\n\r\n"

LENGTHS = {
    "a length and chunks": [LENGTH, CHUNKED],
    "chunks and a length": [CHUNKED, LENGTH],
    "two lengths": [LENGTH, b"Content-Length: 15"],
    "one length twice": [LENGTH, LENGTH],
    "a list": [b"Content-Length: 14, 14"],
    "a sign": [b"Content-Length: +14"],
    "hexadecimal": [b"Content-Length: 0xe"],
    "an underscore": [b"Content-Length: 1_4"],
    "no number": [b"Content-Length:"],
    "a fraction": [b"Content-Length: 14.0"],
    "a space before the colon": [b"Content-Length : 14"],
    "a tab before the colon": [b"Transfer-Encoding\t: chunked"],
    "a space before the name": [LENGTH, b" Transfer-Encoding: chunked"],
    "a folded length": [b"Content-Length:\r\n 14"],
    "a folded coding": [b"Transfer-Encoding:\r\n\tchunked"],
    "a folded other": [LENGTH, b"X-Other: a\r\n b"],
    "a bare LF": [LENGTH, b"X-Other: a\nTransfer-Encoding: chunked"],
    "a bare CR": [LENGTH, b"X-Other: a\rTransfer-Encoding: chunked"],
    "NUL in a value": [LENGTH, b"X-Other: a\0b"],
    "NUL in a name": [LENGTH, b"X-\0Other: a"],
    "NUL before a length": [b"Content-Length: \x0014"],
    "a vertical tab": [b"Transfer-Encoding: \x0bchunked"],
    "gzip": [b"Transfer-Encoding: gzip"],
    "gzip, then chunked": [b"Transfer-Encoding: gzip, chunked"],
    "chunked, then identity": [b"Transfer-Encoding: chunked, identity"],
    "chunked twice": [b"Transfer-Encoding: chunked, chunked"],
    "two codings": [CHUNKED, CHUNKED],
    "no coding": [b"Transfer-Encoding:"],
    "an odd coding": [b"Transfer-Encoding: xchunked"],
    "a quoted coding": [b'Transfer-Encoding: "chunked"'],
}


@pytest.mark.parametrize("lines", LENGTHS.values(), ids=LENGTHS)
def test_a_length_that_could_be_read_in_two_ways_is_refused(daemon: Daemon, lines: list[bytes]) -> None:
    refused(daemon, POST, *lines, body=WHOLE if b"chunked" in b"".join(lines) else QUERY)


TARGETS = {
    "an encoded slash": b"/category%2Fquery",
    "an encoded slash in lower case": b"/category%2fquery",
    "an encoded slash at the beginning": b"/%2Fcategory/query",
    "a second slash": b"//category/query",
    "a third slash": b"///category/query",
    "a second slash in a URL": b"http://HERE//category/query",
    "an encoded slash in a URL": b"http://HERE/category%2Fquery",
    "no slash": b"category/query",
    "only encoded slashes": b"%2Fcategory%2Fquery",
    "a fragment": b"/category/query#x",
    "a fragment behind a query": b"/category/query?x#y",
    "another scheme": b"https://HERE/category/query",
    "a scheme without a port": b"ftp://HERE/category/query",
    "no authority": b"http:///category/query",
    "an asterisk": b"*",
}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_a_target_that_could_be_read_as_two_paths_is_refused_and_logged_as_it_was_asked_for(
    own_daemon: Daemon, target: bytes
) -> None:
    before = len(own_daemon.stderr())
    refused(own_daemon, b"POST " + target + b" HTTP/1.1", LENGTH, body=QUERY)
    refusals = [line for line in own_daemon.stderr(before).splitlines() if " 400 " in line]
    asked = target.replace(b"HERE", ":".join(map(str, address(own_daemon.url))).encode()).partition(b"?")[0].decode()
    assert len(refusals) == 1
    assert f"POST {asked} 400 " in refusals[0].replace('"', "")


@pytest.mark.parametrize("target", [b"/category/query?%2F=//", b"/category/%71uery", b"HTTP://HERE/category/query?x"])
def test_a_target_with_one_meaning_is_accepted(daemon: Daemon, target: bytes) -> None:
    assert responses(daemon, b"POST " + target + b" HTTP/1.1", LENGTH, body=QUERY)[0].startswith(b"200 ")


OTHER_PATHS = [b"/category/./query", b"/category//query", b"/x/../category/query", b"/%2e%2e/category/query"]
SUFFIXES = [b";x", b"%3Bx", b"/", b"/.", b"%00", b"%0A", b"%5C", b"%", b"%zz", b"%20", b"%3Fx", b"%23x"]


@pytest.mark.parametrize(
    "target", [*OTHER_PATHS, b"/category;x/query", *[b"/category/query" + suffix for suffix in SUFFIXES]]
)
def test_no_other_path_stands_for_that_of_an_endpoint(daemon: Daemon, target: bytes) -> None:
    assert responses(daemon, b"POST " + target + b" HTTP/1.1", LENGTH, body=QUERY)[0].startswith(b"404 ")


FIRST_LINES = {
    "version 1.2": b"POST /category/query HTTP/1.2",
    "version 2.0": b"POST /category/query HTTP/2.0",
    "no version": b"POST /category/query",
    "NUL in the path": b"POST /category/\0query HTTP/1.1",
    "a tab in the path": b"POST /category/\tquery HTTP/1.1",
    "a blank before it": b" POST /category/query HTTP/1.1",
    "an empty line and a tab before it": b"\r\n\tPOST /category/query HTTP/1.1",
    "two spaces": b"POST  /category/query HTTP/1.1",
}


@pytest.mark.parametrize("first_line", FIRST_LINES.values(), ids=FIRST_LINES)
def test_a_malformed_request_line_is_refused(daemon: Daemon, first_line: bytes) -> None:
    refused(daemon, first_line, LENGTH, body=QUERY)


def test_chunks_of_http_1_0_are_refused(daemon: Daemon) -> None:
    refused(daemon, b"POST /category/query HTTP/1.0", b"Connection: keep-alive", CHUNKED, body=WHOLE)


CHUNKS = {
    "no number": b"zz\r\n",
    "a sign": b"+e\r\n" + QUERY + b"\r\n0\r\n\r\n",
    "0x": b"0xe\r\n" + QUERY + b"\r\n0\r\n\r\n",
    "an underscore": b"0_e\r\n" + QUERY + b"\r\n0\r\n\r\n",
    "a space before it": b" e\r\n" + QUERY + b"\r\n0\r\n\r\n",
    "a space after it": b"e \r\n" + QUERY + b"\r\n0\r\n\r\n",
    "a bare LF after it": b"e\n\r\n" + QUERY + b"\r\n0\r\n\r\n",
    "a bare LF in its place": b"e\n" + QUERY + b"\r\n0\r\n\r\n",
    "NUL in an extension": b"e;a\0\r\n" + QUERY + b"\r\n0\r\n\r\n",
    "a bare LF in an extension": b"e;a\n\r\n" + QUERY + b"\r\n0\r\n\r\n",
    "an extension with an open quote": b'e;a="\r\n' + QUERY + b"\r\n0\r\n\r\n",
    "an extension without a name": b"e;\r\n" + QUERY + b"\r\n0\r\n\r\n",
    "an empty line before it": b"\r\n" + WHOLE,
    "more digits than a size has": b"0" * 17 + WHOLE,
    "more than it says": b"d\r\n" + QUERY + b"\r\n0\r\n\r\n",
    "less than it says": b"f\r\n" + QUERY + b"\r\n0\r\n\r\n",
    "a bare LF behind a chunk": b"e\r\n" + QUERY + b"\n0\r\n\r\n",
    "a line without end": b"e;" + b"x" * 5000,
    "a request for a trailer": b"e\r\n" + QUERY + b"\r\n0\r\n" + SMUGGLED,
    "a trailer with NUL": b"e\r\n" + QUERY + b"\r\n0\r\nX: \0\r\n\r\n",
    "trailers without end": b"e\r\n" + QUERY + b"\r\n0\r\n" + b"X: y\r\n" * 5000,
}


@pytest.mark.parametrize("body", CHUNKS.values(), ids=CHUNKS)
def test_chunks_with_junk_are_refused(daemon: Daemon, body: bytes) -> None:
    refused(daemon, POST, CHUNKED, body=body)


SERVED = {
    "a length": ([LENGTH], QUERY),
    "a length with zeros": ([b"Content-Length:\t0014 "], QUERY),
    "chunks": ([CHUNKED], WHOLE),
    "chunks in capitals": ([b"TRANSFER-ENCODING: CHUNKED "], WHOLE.replace(b"e\r\n", b"E\r\n", 1)),
    "two chunks": ([CHUNKED], b"1\r\n{\r\n0d\r\n" + QUERY[1:] + b"\r\n000\r\n\r\n"),
    "an extension and a trailer": ([CHUNKED], b'e ; a="b;c"\r\n' + QUERY + b"\r\n0;x\r\nX-Sum: 1\r\n\r\n"),
}


@pytest.mark.parametrize(("lines", "body"), SERVED.values(), ids=SERVED)
def test_requests_that_the_rfc_allows_are_served_and_the_connection_kept(
    daemon: Daemon, lines: list[bytes], body: bytes
) -> None:
    first, second = responses(daemon, POST, *lines, body=body)
    assert first.startswith(b"200 ")
    assert b'"found"' in first
    assert second.startswith(b"404 ")


def test_chunks_that_come_byte_by_byte_are_the_same(daemon: Daemon) -> None:
    from waitress.buffers import OverflowableBuffer

    from connmgr.daemon.parser import ChunkedBody

    body = ChunkedBody(OverflowableBuffer(1 << 20))
    sent = b'1;x\r\n{\r\nD\r\n"filter":"*"}\r\n0\r\nX: y\r\n\r\n'
    taken = sum(body.received(bytes([byte])) for byte in sent + b"POST")
    assert (body.completed, body.error, taken) == (True, None, len(sent))
    assert body.getfile().read() == QUERY


def test_lines_that_end_without_cr_are_refused_at_once(daemon: Daemon) -> None:
    received = talk(daemon.url, b"POST /handshake HTTP/1.1\nHost: localhost\nContent-Length: 0\n\n")
    assert received.startswith((b"HTTP/1.0 400 ", b"HTTP/1.1 400 ")), "the daemon waits for an end that does not come"
    assert send(daemon.url, "/daemon/version", {}).status == 401
