"""Plain HTTP for tests: raw requests and answers."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest

from connmgr.client import Client, ClientError
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS

LOCAL = "f0ec68aa-63f5-405c-b178-9a4454556d6b"
ROOT_CATEGORY = "bfb0b51a-e7a3-4ce4-8878-8d4cb5828d6c"
DEFAULT_CATEGORY = "97458c07-75c0-4f9d-a06e-92d8cdf67c40"
NOBODY = "00000000-0000-4000-8000-000000000000"


@dataclass(frozen=True)
class Answer:
    """An HTTP response, read to its end."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The error's code, from the shape that the status requires."""
        return str(self.json["error"]["code"] if self.status == 500 else self.json["code"])

    @property
    def message(self) -> str:
        return str(self.json["error"]["message"] if self.status == 500 else self.json["message"])


def address(url: str) -> tuple[str, int]:
    """Return host and port of a daemon's URL."""
    parts = urlsplit(url)
    assert parts.hostname
    assert parts.port
    return parts.hostname, parts.port


def send(
    url: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, method: str = "POST"
) -> Answer:
    """Send one request on a new connection; a ``body`` that is not bytes is sent as JSON."""
    sent = {"Content-Type": "application/json", **(headers or {})}
    content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection = http.client.HTTPConnection(*address(url), timeout=DEADLINE_SECONDS)
    try:
        connection.request(method, path, content, {name: value for name, value in sent.items() if value})
        response = connection.getresponse()
        return Answer(response.status, dict(response.getheaders()), response.read())
    finally:
        connection.close()


def token_of(daemon: Daemon) -> str:
    """Return a fresh token of ``daemon``."""
    auth = {"type": "local", "authFileContent": daemon.auth_file.read_text()}
    answer = send(daemon.url, "/handshake", {"auth": auth, "client": {"type": "api", "name": "test"}})
    return str(answer.json["sessionToken"])


def bearer(daemon: Daemon) -> dict[str, str]:
    """Return the header that authenticates a request."""
    return {"Authorization": f"Bearer {token_of(daemon)}"}


def client_of(daemon: Daemon) -> Client:
    """Return a new client, for a thread or a separate session."""
    return Client(daemon.url, auth_file=daemon.auth_file)


def add(client: Client, name: str, /, category: str | None = None, **data: Any) -> str:
    """Store a connection without trying it, and return its uuid."""
    members = {} if category is None else {"category": category}
    return str(client.post("/connection/add", name=name, data=data, validate=False, **members)["connection"])


def refused(client: Client, path: str, /, **fields: Any) -> ClientError:
    """Send a request that must not succeed, and return the error."""
    with pytest.raises(ClientError) as caught:
        client.post(path, **fields)
    return caught.value


def talk(url: str, sent: bytes) -> bytes:
    """Send raw bytes, and read until the daemon closes the connection."""
    with socket.create_connection(address(url), timeout=DEADLINE_SECONDS) as connection:
        connection.sendall(sent)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    return received
