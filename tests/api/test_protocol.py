"""HTTP on the wire: limits, odd and broken requests, pipelining."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from werkzeug.routing import Map

from connmgr.api.app import MatchedRule
from connmgr.daemon.channel import IDLE_SECONDS
from connmgr.daemon.server import MAX_CONNECTIONS
from tests.api.wire import address, bearer, send, talk, token_of
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS

LIMIT = 256 * 1024


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> object:
    """A daemon that accepts bodies of up to :data:`LIMIT` bytes."""
    daemon = Daemon(tmp_path_factory.mktemp("small"), "--max-body", str(LIMIT))
    yield daemon
    daemon.stop()


def head(daemon: Daemon, path: str, *lines: str, token: bool = True, method: str = "POST") -> bytes:
    authorization = [f"Authorization: Bearer {token_of(daemon)}"] if token else []
    host = ":".join(map(str, address(daemon.url)))
    content = ["Content-Type: application/json"]
    return "\r\n".join(
        [f"{method} {path} HTTP/1.1", f"Host: {host}", *content, *authorization, *lines, "", ""]
    ).encode()


def only(received: bytes) -> tuple[int, dict[str, str], bytes]:
    """Parse a single response."""
    top, _, body = received.partition(b"\r\n\r\n")
    lines = top.decode().split("\r\n")
    return int(lines[0].split()[1]), dict(line.split(": ", 1) for line in lines[1:]), body


def query(size: int) -> bytes:
    """Return a request body of ``size`` bytes with a filter that matches nothing."""
    return json.dumps({"filter": "x" * (size - len('{"filter": ""}'))}).encode()


def test_the_start_compiles_no_builders_of_urls() -> None:
    rules = Map([MatchedRule("/daemon/<path:rest>", endpoint="view")]).bind("localhost")
    assert rules.match("/daemon/version") == ("view", {"rest": "version"})
    with pytest.raises(NotImplementedError):
        rules.build("view", {"rest": "version"})


def test_a_body_up_to_the_limit_is_taken_and_one_beyond_it_is_413(small: Daemon) -> None:
    headers = bearer(small)
    assert send(small.url, "/secret/decrypt", query(LIMIT), headers).code == "invalid_request"
    over = send(small.url, "/secret/decrypt", query(LIMIT + 1), headers)
    assert (over.status, over.code, over.headers["Content-Type"]) == (413, "body_too_large", "application/json")


def test_a_client_that_sends_far_too_much_still_reads_its_413(small: Daemon) -> None:
    answer = send(small.url, "/category/query", b" " * (24 * 1024 * 1024), bearer(small))
    assert (answer.status, answer.code) == (413, "body_too_large")


def test_a_body_in_chunks_is_taken_up_to_the_limit_and_413_beyond(small: Daemon) -> None:
    def chunked(body: bytes) -> tuple[int, dict[str, str], bytes]:
        chunks = b"".join(
            b"%x\r\n%b\r\n" % (len(chunk), chunk)
            for chunk in (body[at : at + 10_000] for at in range(0, len(body), 10_000))
        )
        lines = ("Transfer-Encoding: chunked", "Connection: close")
        return only(talk(small.url, head(small, "/category/query", *lines) + chunks + b"0\r\n\r\n"))

    status, _, body = chunked(b'{"filter":"*"}')
    assert (status, len(json.loads(body)["found"])) == (200, 2)
    status, headers, body = chunked(query(2 * LIMIT))
    assert (status, headers["Content-Type"], json.loads(body)["code"]) == (413, "application/json", "body_too_large")


def test_without_a_valid_token_only_a_small_body_is_taken(small: Daemon) -> None:
    for authorization in ({}, {"Authorization": "Bearer wrong"}):
        answer = send(small.url, "/handshake", b" " * 70_000, authorization)
        assert (answer.status, answer.code) == (413, "body_too_large")
        assert send(small.url, "/handshake", b" " * 60_000, authorization).code == "invalid_request"


STRANGERS = {
    "another host": ("/shell/exec", {"Host": "evil.example"}, 421, "misdirected_request"),
    "a page": ("/shell/exec", {"Origin": "http://evil.example"}, 403, "forbidden_origin"),
    "no such path": ("/nothing", {}, 404, "not_found"),
    "no such method": ("/openapi.json", {}, 405, "method_not_allowed"),
    "no token": ("/shell/exec", {}, 401, "not_authenticated"),
    "a stale token": ("/shell/exec", {"Authorization": "Bearer stale"}, 403, "invalid_token"),
    "a stale token for a file": ("/fs/blob", {"Authorization": "Bearer stale"}, 403, "invalid_token"),
}


@pytest.mark.parametrize("size", [10, 200_000], ids=["small", "large"])
@pytest.mark.parametrize(("path", "headers", "status", "code"), STRANGERS.values(), ids=STRANGERS)
def test_a_refusal_does_not_depend_on_the_size_of_the_body(
    small: Daemon, path: str, headers: dict[str, str], status: int, code: str, size: int
) -> None:
    refused = send(small.url, path, b" " * size, headers)
    assert (refused.status, refused.code, refused.headers["Content-Type"]) == (status, code, "application/json")
    assert refused.headers.get("Www-Authenticate") == ("Bearer" if status == 401 else None)
    assert ("Allow" in refused.headers) == (status == 405)


@pytest.mark.parametrize("framing", ["Content-Length: 200000", "Transfer-Encoding: chunked"])
def test_a_stranger_who_waits_for_100_is_refused_as_any_other(small: Daemon, framing: str) -> None:
    with socket.create_connection(address(small.url), timeout=DEADLINE_SECONDS) as connection:
        connection.sendall(
            head(small, "/shell/exec", framing, "Expect: 100-continue", "Authorization: Bearer stale", token=False)
        )
        received = connection.recv(1000)
        if "chunked" in framing:
            assert received == b"HTTP/1.1 100 Continue\r\n\r\n", "nothing says yet how much comes"
            connection.sendall(b"%x\r\n" % 200_000 + b" " * 200_000)
            received = connection.recv(1000)
        assert received.startswith(b"HTTP/1.1 403 ")


def test_a_header_beyond_the_limit_is_431(daemon: Daemon) -> None:
    answer = send(daemon.url, "/daemon/version", {}, {"X-Long": "x" * 40_000})
    assert (answer.status, answer.code, answer.headers["Content-Type"]) == (
        431,
        "headers_too_large",
        "application/json",
    )


MALFORMED = [
    b"nonsense\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    b"post /handshake HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /handshake HTTP/1.1\r\nBad Header\r\n\r\n",
    b"POST /handshake HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"POST /handshake HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    b"POST /handshake HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1, 1\r\n\r\n",
    b"POST /handshake HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
    b"POST /handshake HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /handshake HTTP/1.1\r\nHost: localhost\r\nX: a\nY: b\r\n\r\n",
    b"POST /handshake HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
    b"POST http://[evil/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST http://a]b[/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
]


@pytest.mark.parametrize("sent", MALFORMED)
def test_what_is_not_http_is_400_in_json(daemon: Daemon, sent: bytes) -> None:
    host = ":".join(map(str, address(daemon.url))).encode()
    status, headers, body = only(talk(daemon.url, sent.replace(b"localhost", host)))
    assert (status, headers["Content-Type"], headers["Connection"]) == (400, "application/json", "close")
    assert json.loads(body)["code"] == "invalid_request"
    assert "Server" not in headers


@pytest.mark.parametrize("sent", MALFORMED)
def test_what_is_not_http_is_400_to_a_client_that_was_just_answered(daemon: Daemon, sent: bytes) -> None:
    host = ":".join(map(str, address(daemon.url))).encode()
    logged = len(daemon.stderr().encode())
    with socket.create_connection(address(daemon.url), timeout=DEADLINE_SECONDS) as connection:
        connection.sendall(head(daemon, "/nothing", "Content-Length: 0", token=False))
        assert connection.recv(65536).startswith(b"HTTP/1.1 404 ")
        # At once, while the answering thread waits for the next request.
        connection.sendall(sent.replace(b"localhost", host))
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    assert only(received)[0] == 400
    assert " ERROR " not in daemon.stderr(logged)


def test_requests_in_a_row_are_answered_in_a_row(daemon: Daemon) -> None:
    first = head(daemon, "/category/query", "Content-Length: 14") + b'{"filter":"*"}'
    second = head(daemon, "/daemon/version", "Content-Length: 2") + b"{}"
    last = head(daemon, "/nothing", "Content-Length: 0", "Connection: close")
    received = talk(daemon.url, first + second + last)
    assert [received.index(word) for word in (b'"found"', b'"pro"', b'"not_found"')] == sorted(
        received.index(word) for word in (b'"found"', b'"pro"', b'"not_found"')
    )
    assert received.count(b"HTTP/1.1 ") == 3


def test_a_client_that_waits_for_100_is_told_to_continue_or_refused(small: Daemon) -> None:
    with socket.create_connection(address(small.url), timeout=DEADLINE_SECONDS) as connection:
        connection.sendall(head(small, "/category/query", "Content-Length: 14", "Expect: 100-continue"))
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b'{"filter":"*"}')
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 OK")
    for length in (0, LIMIT + 1):
        with socket.create_connection(address(small.url), timeout=DEADLINE_SECONDS) as connection:
            connection.sendall(
                head(small, "/category/query", f"Content-Length: {length}", "Expect: 100-continue", "Connection: close")
            )
            assert connection.recv(1000).split(b" ")[1] == (b"413" if length else b"400")


def test_http_1_0_is_answered_and_closed(daemon: Daemon) -> None:
    host = ":".join(map(str, address(daemon.url)))
    received = talk(daemon.url, f"GET /openapi.json HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
    status, headers, body = only(received)
    assert (status, len(body)) == (200, int(headers["Content-Length"]))


def test_forwarding_headers_change_nothing(daemon: Daemon) -> None:
    forged = {"X-Forwarded-Host": "evil.example", "X-Forwarded-For": "192.0.2.1", "Forwarded": "host=evil.example"}
    assert send(daemon.url, "/daemon/version", {}, {**bearer(daemon), **forged}).status == 200


@pytest.fixture
def strangers(own_daemon: Daemon) -> Iterator[list[socket.socket]]:
    """More connections than the daemon allows, by clients without a token."""
    with ExitStack() as stack:
        taken = []
        for number in range(MAX_CONNECTIONS + 50):
            connection = stack.enter_context(
                socket.create_connection(address(own_daemon.url), timeout=DEADLINE_SECONDS)
            )
            if number % 2:
                connection.sendall(b"POST /handshake HTTP/1.1\r\nHost: ")
            taken.append(connection)
        yield taken


def test_strangers_that_take_all_connections_keep_nobody_out(
    own_daemon: Daemon, strangers: list[socket.socket]
) -> None:
    began = time.monotonic()
    assert token_of(own_daemon)
    assert time.monotonic() - began < IDLE_SECONDS / 4, "it has waited until the strangers were idle for too long"
    assert strangers[0].recv(1) == b"", "the one that was silent for longest is still there"


def test_a_client_with_a_token_keeps_its_connection_whatever_strangers_do(
    own_daemon: Daemon, request: pytest.FixtureRequest
) -> None:
    version = head(own_daemon, "/daemon/version", "Content-Length: 2") + b"{}"
    with socket.create_connection(address(own_daemon.url), timeout=DEADLINE_SECONDS) as known:
        known.sendall(version)
        assert known.recv(65536).startswith(b"HTTP/1.1 200 ")
        request.getfixturevalue("strangers")
        assert token_of(own_daemon)
        known.sendall(version)
        assert known.recv(65536).startswith(b"HTTP/1.1 200 ")
