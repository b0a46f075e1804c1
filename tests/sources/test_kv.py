"""The secret source vault, with a server that replays the answers that HashiCorp documents for its KV engines.

The server itself cannot be had from a package index; the paths, headers and bodies are those of its API's reference.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from connmgr.errors import SecretUnavailable
from connmgr.fields import ValidationError
from connmgr.plugin import Deadline
from connmgr.plugin.outside import Unanswered, ask_server
from connmgr_sources.kv import VaultSource
from tests.deadlines import DEADLINE_SECONDS

TOKEN = "hvs.a-token-of-the-tests"

VERSION_1 = {
    "auth": None,
    "data": {"password": "hunter1", "ttl": "1h"},
    "lease_duration": 3600,
    "lease_id": "",
    "renewable": False,
}
VERSION_2 = {
    "data": {
        "data": {"password": "hunter2", "number": 7},
        "metadata": {"created_time": "2018-03-22T02:24:06.945319214Z", "deletion_time": "", "version": 2},
    }
}
DELETED = {"data": {"data": None, "metadata": {"deletion_time": "2018-03-22T02:36:43.986212308Z", "version": 1}}}


class Replay(BaseHTTPRequestHandler):
    seen: list[tuple[str, dict[str, str]]]

    def do_GET(self) -> None:
        Replay.seen.append((self.path, dict(self.headers)))
        if self.headers["X-Vault-Token"] != TOKEN:
            return self._answer(403, {"errors": ["permission denied", TOKEN]})
        kept: dict[str, tuple[int, Any]] = {
            "/v1/kv/servers/web1": (200, VERSION_1),
            "/v1/secret/data/servers/web1": (200, VERSION_2),
            "/v1/secret/data/with%20blank/%C3%BC": (200, VERSION_2),
            "/v1/secret/data/deleted": (404, DELETED),
            "/v1/secret/data/sealed": (503, {"errors": ["Vault is sealed"]}),
            "/v1/secret/data/list": (200, ["hunter2"]),
            "/v1/secret/data/empty": (200, {"data": None}),
            "/prefix/v1/secret/data/servers/web1": (200, VERSION_2),
        }
        if self.path == "/v1/secret/data/moved":
            self.send_response(307)
            self.send_header(
                "Location", f"http://localhost:{self.server.server_address[1]}/v1/secret/data/servers/web1"
            )
            self.end_headers()
            return None
        if self.path == "/v1/secret/data/big":
            return self._answer(200, {"data": {"data": {"password": "x" * 2_000_000}}})
        return self._answer(*kept.get(self.path, (404, {"errors": []})))

    def _answer(self, status: int, body: Any) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        # A client that reads no further than it must hangs up.
        try:
            self.wfile.write(content)
        except ConnectionError:
            return

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def url() -> Iterator[str]:
    Replay.seen = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Replay)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join(DEADLINE_SECONDS)


def fetched(url: str, seconds: float = DEADLINE_SECONDS, **members: Any) -> str:
    source = VaultSource()
    data = source.schema().load({"url": url, "token": TOKEN, **members})
    return source.fetch(data, Deadline(seconds))


def test_both_versions_are_read_by_their_documented_paths(url: str) -> None:
    assert fetched(url, path="servers/web1") == "hunter2"
    assert fetched(url, path="servers/web1", kv=1, mount="kv") == "hunter1"
    assert fetched(url, path="servers/web1", kv=1, mount="kv", field="ttl") == "1h"
    assert fetched(url, path="with blank/ü") == "hunter2"
    assert fetched(f"{url}/prefix/", path="servers/web1", namespace="team/a") == "hunter2"
    _, headers = Replay.seen[-1]
    assert (headers["X-Vault-Token"], headers["X-Vault-Namespace"], headers["X-Vault-Request"]) == (
        TOKEN,
        "team/a",
        "true",
    )


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"path": "nowhere"}, "there is nothing at this path"),
        ({"path": "deleted"}, "there is nothing at this path"),
        ({"path": "sealed"}, "it is sealed"),
        ({"path": "servers/web1", "token": "hvs.another"}, "it refuses the token"),
        ({"path": "servers/web1", "field": "nonesuch"}, "the field nonesuch is not in the secret"),
        ({"path": "servers/web1", "field": "number"}, "the field number is not a text"),
        ({"path": "servers/web1", "kv": 1}, "there is nothing at this path"),
        ({"path": "list"}, "not a JSON object"),
        ({"path": "empty"}, "has no data"),
        ({"path": "moved"}, "it redirects to another server"),
        ({"path": "big"}, "more than 1024 KiB"),
    ],
)
def test_what_fails_is_said_without_token_and_secret(url: str, members: dict[str, Any], why: str) -> None:
    with pytest.raises(SecretUnavailable, match=why) as failure:
        fetched(url, **members)
    for text in (failure.value.message, str(failure.value.__cause__)):
        assert not any(secret in text for secret in (TOKEN, "hvs.another", "hunter"))
    assert failure.value.for_tokens == "The secret source vault failed."


def test_a_redirection_takes_the_token_nowhere(url: str) -> None:
    with pytest.raises(SecretUnavailable):
        fetched(url, path="moved")
    assert [path for path, _ in Replay.seen] == ["/v1/secret/data/moved"]


def test_a_server_that_is_down_or_silent_fails_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        silent = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(SecretUnavailable, match="did not answer in time"):
            fetched(silent, seconds=0.3, path="servers/web1")
    with pytest.raises(SecretUnavailable, match="Connection refused"):
        fetched(silent, path="servers/web1")


def test_a_server_that_answers_letter_by_letter_fails_in_time() -> None:
    done = threading.Event()

    def drip(listening: socket.socket) -> None:
        client, _ = listening.accept()
        with client:
            client.sendall(b"HTTP/1.1 200 OK\r\nX-")
            # Each letter restarts the timeout of a socket.
            while not done.wait(0.02):
                try:
                    client.sendall(b"a")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=drip, args=[listening])
        thread.start()
        with pytest.raises(SecretUnavailable, match="did not answer in time"):
            fetched(f"http://127.0.0.1:{listening.getsockname()[1]}", seconds=0.5, path="servers/web1")
        done.set()
        thread.join(DEADLINE_SECONDS)


@pytest.mark.parametrize(
    "members",
    [
        {"url": "http://vault.example:8200", "path": "a"},
        {"url": "ftp://127.0.0.1", "path": "a"},
        {"url": "https://user:hunter2@vault.example", "path": "a"},
        {"url": "https://vault.example:x", "path": "a"},
        {"url": "https://vault.example", "path": "../sys/seal"},
        {"url": "https://vault.example", "path": "/a"},
        {"url": "https://vault.example", "path": "a", "mount": "secret/../sys"},
        {"url": "https://vault.example", "path": "a", "kv": 3},
    ],
)
def test_what_could_lead_elsewhere_is_refused(members: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refusal:
        VaultSource().schema().load({"token": TOKEN, **members})
    assert "hunter2" not in str(refusal.value)


def test_a_server_at_an_ipv6_address_needs_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def resolve(*what: Any, **_: Any) -> list[Any]:
        asked.append(what)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(Unanswered):
        ask_server("https://[2001:db8::5]", "/v1/secret", Deadline(DEADLINE_SECONDS), headers={}, limit=1024)
    assert asked == [("2001:db8::5", 443)]
