"""A proxy that adds a bearer token for clients that cannot; apart from token and port, requests pass unchanged."""

from __future__ import annotations

import re
import socket
import threading
from contextlib import suppress
from socketserver import BaseRequestHandler, ThreadingTCPServer
from urllib.parse import urlsplit

from tests.deadlines import DEADLINE_SECONDS

HOST = "127.0.0.1"
END_OF_HEAD = b"\r\n\r\n"
BLOCK_BYTES = 1 << 16


class BearingProxy(ThreadingTCPServer):
    """Listens on a free port for the server at ``url``, and adds ``token``; a context.

    Its end waits for its clients to disconnect.
    """

    request_queue_size = 64

    def __init__(self, url: str, token: str) -> None:
        super().__init__((HOST, 0), _Connection)
        self._parts = urlsplit(url)
        self._token = token
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), name="bearing proxy")
        self.port = self.socket.getsockname()[1]
        self.url = f"http://localhost:{self.port}{self._parts.path}"

    def __enter__(self) -> BearingProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def connect(self) -> socket.socket:
        """Return a connection to the server."""
        return socket.create_connection((self._parts.hostname, self._parts.port or 0), DEADLINE_SECONDS)

    def shown(self, head: bytes) -> bytes:
        """Return the head of a request as the server receives it; its connection has no other request."""
        own, theirs = str(self.port).encode(), str(self._parts.port).encode()
        lines = head.split(b"\r\n")
        kept = [line for line in lines[1:-2] if not line.lower().startswith(b"connection:")]
        named = [re.sub(rb"(?i)^((?:host|origin):.*):%s$" % own, rb"\1:" + theirs, line) for line in kept]
        added = [b"Connection: close", b"Authorization: Bearer " + self._token.encode()]
        return b"\r\n".join([lines[0], *named, *added]) + END_OF_HEAD


class _Connection(BaseRequestHandler):
    server: BearingProxy
    request: socket.socket

    def handle(self) -> None:
        self.request.settimeout(DEADLINE_SECONDS)
        with suppress(OSError):
            head, rest = self._head()
            if not head:
                return
            with self.server.connect() as server:
                server.sendall(self.server.shown(head) + rest)
                asking = threading.Thread(target=_pass_on, args=(self.request, server))
                asking.start()
                # The client disconnects when it has read the answer: the fetch of Node.js aborts its process if the
                # other side does, while part of the answer waits to be read.
                _pass_on(server, self.request, disconnects=False)
                asking.join()

    def _head(self) -> tuple[bytes, bytes]:
        """Read the head of a request and the begin of its body; nothing if the client has disconnected."""
        received = b""
        while END_OF_HEAD not in received:
            block = self.request.recv(BLOCK_BYTES)
            if not block:
                return b"", b""
            received += block
        head, _, rest = received.partition(END_OF_HEAD)
        return head + END_OF_HEAD, rest


def _pass_on(source: socket.socket, target: socket.socket, *, disconnects: bool = True) -> None:
    """Relay data until either side disconnects, and then disconnect the other, unless that is left to it."""
    with suppress(OSError):
        while block := source.recv(BLOCK_BYTES):
            target.sendall(block)
    for one in (source, target) if disconnects else (source,):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
