"""A client session of a test's own, with the requests that files need."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.api.wire import LOCAL, TIMEOUT, Answer, address, send, token_of
from tests.daemon import Daemon


class Caller:
    """Speaks to a daemon with a token of its own."""

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

    @contextmanager
    def reading(self, path: object, endpoint: str = "/fs/read", of: str = LOCAL) -> Iterator[http.client.HTTPResponse]:
        """Begin to read a file or directory, by default of the local machine.

        The connection is closed at the end, however much was read.
        """
        connection = http.client.HTTPConnection(*address(self.daemon.url), timeout=TIMEOUT)
        try:
            body = json.dumps({"connection": of, "path": str(path)})
            connection.request("POST", endpoint, body, {"Content-Type": "application/json", **self.headers})
            yield connection.getresponse()
        finally:
            connection.close()
