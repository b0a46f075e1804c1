"""Requests of web pages are refused before anything else is checked."""

from __future__ import annotations

import pytest

from connmgr.api.app import Addresses
from tests.api.wire import address, bearer, send, talk
from tests.conftest import StartDaemon
from tests.daemon import Daemon


@pytest.mark.parametrize("host", ["localhost:{}", "LOCALHOST:{}", "127.0.0.1:{}", "127.1.2.3:{}", "[::1]:{}"])
def test_names_of_loopback_are_ours(daemon: Daemon, host: str) -> None:
    _, port = address(daemon.url)
    assert send(daemon.url, "/daemon/version", {}, {**bearer(daemon), "Host": host.format(port)}).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:{}",
        "localhost.evil.example:{}",
        "localhost",
        "localhost:1",
        "127.0.0.1",
        "128.0.0.1:{}",
        "0.0.0.0:{}",
        "[::]:{}",
        "localhost:{}@evil.example",
        "evil.example/localhost:{}",
        "localhost:{}x",
        " ",
    ],
)
def test_another_host_is_misdirected_whatever_it_asks_for(daemon: Daemon, host: str) -> None:
    _, port = address(daemon.url)
    for path in ("/daemon/version", "/nothing", "/"):
        answer = send(daemon.url, path, {}, {**bearer(daemon), "Host": host.format(port)})
        expected = (400, "invalid_request") if host == " " else (421, "misdirected_request")
        assert (answer.status, answer.code) == expected


@pytest.mark.parametrize(
    "head",
    [
        b"POST /daemon/version HTTP/1.1\r\n",
        b"POST /daemon/version HTTP/1.0\r\n",
        b"POST /daemon/version HTTP/1.1\r\nHost: localhost:PORT\r\nHost: evil.example\r\n",
    ],
)
def test_there_must_be_one_host(daemon: Daemon, head: bytes) -> None:
    port = str(address(daemon.url)[1]).encode()
    # Another program sees no request there, so nothing that follows may be answered.
    follows = b"POST /handshake HTTP/1.1\r\nHost: localhost:PORT\r\nConnection: close\r\n\r\n"
    received = talk(daemon.url, (head + b"\r\n" + follows).replace(b"PORT", port))
    assert received.split(b" ")[1] == b"400"
    assert b"exactly one Host" in received
    assert received.count(b"HTTP/1.") == 1


def test_a_target_with_another_host_is_misdirected(daemon: Daemon) -> None:
    port = address(daemon.url)[1]
    head = f"Host: localhost:{port}\r\nConnection: close\r\n\r\n"
    foreign = talk(daemon.url, f"POST http://evil.example/handshake HTTP/1.1\r\n{head}".encode())
    assert foreign.split(b" ")[1] == b"421"
    own = talk(daemon.url, f"POST http://localhost:{port}/daemon/version HTTP/1.1\r\n{head}".encode())
    assert own.split(b" ")[1] == b"401"


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "", "https://localhost:{}", "http://localhost", "x"])
def test_a_page_of_another_origin_is_refused(daemon: Daemon, origin: str) -> None:
    _, port = address(daemon.url)
    received = talk(
        daemon.url,
        f"POST /handshake HTTP/1.1\r\nHost: localhost:{port}\r\nOrigin: {origin.format(port)}\r\n"
        "Connection: close\r\n\r\n".encode(),
    )
    assert received.split(b" ")[1] == b"403"
    assert b"forbidden_origin" in received
    assert b"Access-Control" not in received


def test_our_own_origin_is_accepted(daemon: Daemon) -> None:
    assert send(daemon.url, "/daemon/version", {}, {**bearer(daemon), "Origin": daemon.url}).status == 200


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)]
)
def test_only_our_own_pages_and_the_address_bar_pass(daemon: Daemon, site: str, status: int) -> None:
    for path in ("/", "/openapi.json"):
        assert send(daemon.url, path, headers={"Sec-Fetch-Site": site}, method="GET").status == status


def test_a_preflight_request_gets_no_permission(daemon: Daemon) -> None:
    answer = send(
        daemon.url,
        "/handshake",
        headers={"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"},
        method="OPTIONS",
    )
    assert answer.status == 403
    assert not [name for name in answer.headers if name.startswith("Access-Control")]


def test_a_name_that_is_allowed_is_ours(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--allowed-hosts", "box.example, proxy.example:8080")
    _, port = address(daemon.url)
    for host in (f"box.example:{port}", "proxy.example:8080", f"localhost:{port}"):
        assert send(daemon.url, "/daemon/version", {}, {**bearer(daemon), "Host": host}).status == 200
    for host in ("box.example", f"proxy.example:{port}"):
        assert send(daemon.url, "/daemon/version", {}, {"Host": host}).status == 421


def test_the_address_that_is_listened_on_is_ours_and_a_wildcard_names_nobody() -> None:
    addresses = Addresses(80, "192.0.2.7", ())
    assert addresses.includes("192.0.2.7")
    assert addresses.includes("192.0.2.7:80")
    assert addresses.includes("localhost")
    assert not addresses.includes("192.0.2.8")
    assert not Addresses(80, "0.0.0.0", ()).includes("0.0.0.0")
    assert Addresses(8080, "fe80::1", ()).includes("[FE80::1]:8080")
