"""A client session with the requests for files."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

from tests.api.wire import LOCAL, Answer, address, send, token_of
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS


class Caller:
    """A client of a daemon with its own session token."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.headers = {"Authorization": f"Bearer {token_of(daemon)}"}

    def post(self, endpoint: str, /, **fields: Any) -> Answer:
        """Send a JSON request."""
        return send(self.daemon.url, endpoint, fields, self.headers)

    def start(self) -> None:
        """Start the shell of the local machine."""
        assert self.post("/shell/start", connection=LOCAL).status == 200

    def upload(self, content: bytes, **headers: str) -> Answer:
        """Store a blob, by default without a Content-Type."""
        return send(self.daemon.url, "/fs/blob", content, {**self.headers, "Content-Type": "", **headers})

    def blob(self, content: bytes) -> str:
        """Store a blob and return its uuid."""
        answer = self.upload(content)
        assert answer.status == 200, answer.body
        return str(answer.json["blob"])

    def write(self, path: object, content: bytes, **fields: Any) -> Answer:
        """Write a file of the local machine."""
        return self.post("/fs/write", connection=LOCAL, blob=self.blob(content), path=str(path), **fields)

    def read(self, path: object) -> Answer:
        """Read a file of the local machine."""
        return self.post("/fs/read", connection=LOCAL, path=str(path))

    def put(self, endpoint: str, path: object, content: bytes, **fields: str) -> Answer:
        """Upload a body to a path of the local machine."""
        return send(self.daemon.url, _target(endpoint, path, fields), content, {**self.headers, "Content-Type": ""})

    @contextmanager
    def sending(self, endpoint: str, path: object, *headers: str, version: str = "HTTP/1.1") -> Iterator[socket.socket]:
        """Begin an upload; the caller sends its body on the socket."""
        host, port = address(self.daemon.url)
        lines = [f"POST {_target(endpoint, path, {})} {version}", f"Host: {host}:{port}"]
        lines += [*map(": ".join, self.headers.items()), *headers]
        with socket.create_connection((host, port), timeout=DEADLINE_SECONDS) as connection:
            connection.sendall("\r\n".join([*lines, "", ""]).encode())
            yield connection

    @contextmanager
    def reading(self, path: object, endpoint: str = "/fs/read", of: str = LOCAL) -> Iterator[http.client.HTTPResponse]:
        """Begin to read a file or directory, by default of the local machine.

        The connection is closed at the end, however much was read.
        """
        connection = http.client.HTTPConnection(*address(self.daemon.url), timeout=DEADLINE_SECONDS)
        try:
            body = json.dumps({"connection": of, "path": str(path)})
            connection.request("POST", endpoint, body, {"Content-Type": "application/json", **self.headers})
            yield connection.getresponse()
        finally:
            connection.close()


def received(connection: socket.socket) -> bytes:
    """Read until the other side closes the connection."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def _target(endpoint: str, path: object, fields: dict[str, str]) -> str:
    return f"{endpoint}?{urlencode({'connection': LOCAL, 'path': str(path), **fields})}"
