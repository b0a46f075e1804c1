"""``connmgr mcp --http`` as a process, agents that use it, and requests by hand."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.api.wire import Answer
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS
from tests.mcp.agent import server_spawner
from tests.rights.wire import Holder
from tests.spawner import Child

READY = "connmgr mcp listening on "
STOP_SECONDS = 20.0
SESSION = "mcp-session-id"


class HttpBridge:
    """A running ``connmgr mcp --http`` beside a daemon; a context that stops it, and fails unless it ends cleanly.

    ``program`` is the command that has ``mcp``, without which the bridge is forked.
    """

    def __init__(self, daemon: Daemon, *options: str, program: Sequence[str] = ()) -> None:
        # A file, since nobody would read a pipe meanwhile.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the process has ended
        words = ["--url", daemon.url, "mcp", "--http", "--port", "0", *options]
        self.process = self._started(daemon, words, program)
        self.url = self._ready_line().removeprefix(READY)

    def _started(self, daemon: Daemon, words: list[str], program: Sequence[str]) -> subprocess.Popen[bytes] | Child:
        with Path(os.devnull).open("rb") as stdin:
            if not program:
                streams = stdin.fileno(), self._errors.fileno()
                return server_spawner().start(words, daemon.environment, daemon.home, *streams)
            return subprocess.Popen(
                [*program, *words], env=daemon.environment, stdin=stdin, stdout=subprocess.PIPE, stderr=self._errors
            )

    def __enter__(self) -> HttpBridge:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._errors.closed:
            self.process.terminate()
            self.ended()

    def ended(self) -> str:
        """Wait for its end, which must be clean, and return its standard error."""
        try:
            self.process.wait(STOP_SECONDS)
        finally:
            errors = self._killed()
        assert self.process.returncode == 0, errors
        return errors

    def _killed(self) -> str:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        with self._errors as file:
            file.seek(0)
            return file.read().decode()

    def _ready_line(self) -> str:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            ready = selector.select(DEADLINE_SECONDS)
        line = os.read(self.process.stdout.fileno(), 4096).decode() if ready else ""
        if not line.startswith(READY):
            raise AssertionError(f"no ready line but {line!r}: {self._killed()}")
        return line.rstrip("\n")

    @asynccontextmanager
    async def agent(self, holder: Holder, **client: Any) -> AsyncIterator[Client]:
        """Yield a client with a holder's token; further arguments are the client's."""
        with anyio.fail_after(DEADLINE_SECONDS):
            async with (
                # No certificate is looked at, and loading those of the system takes long.
                httpx2.AsyncClient(headers=bearer(holder), timeout=DEADLINE_SECONDS, verify=False) as http,
                Client(streamable_http_client(self.url, http_client=http), **client) as connected,
            ):
                yield connected

    def ask(self, method: str, headers: Mapping[str, str], message: Any = None, path: str | None = None) -> Answer:
        """Send one request, and read its answer to the end."""
        with self.asking(method, headers, message, path) as answer:
            return Answer(answer.status, dict(answer.getheaders()), answer.read())

    @contextmanager
    def asking(
        self, method: str, headers: Mapping[str, str], message: Any = None, path: str | None = None
    ) -> Iterator[HTTPResponse]:
        """Send one request, and yield its answer, whose status and headers have been read.

        A ``message`` that is no bytes is sent as JSON.
        """
        parts = urlsplit(self.url)
        own = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json", **headers}
        connection = HTTPConnection(parts.hostname or "", parts.port, timeout=DEADLINE_SECONDS)
        with closing(connection):
            body = message if message is None or isinstance(message, bytes) else json.dumps(message)
            connection.request(method, path or parts.path, body, own)
            with connection.getresponse() as answer:
                yield answer

    def initialize(self, holder: Holder) -> str:
        """Open a session by plain requests, and return its id."""
        answer = self.ask("POST", bearer(holder), INITIALIZE)
        assert answer.status == 200, answer.body
        return answer.headers[SESSION]


def bearer(holder: Holder, session: str | None = None) -> dict[str, str]:
    """Return the headers with a token and a session id."""
    shown = {"Authorization": f"Bearer {holder.secret}"}
    return shown if session is None else {**shown, SESSION: session}


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "by hand", "version": "1"},
    },
}
LIST_TOOLS = {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}}
