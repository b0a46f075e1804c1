"""Services behind tunnels, their clients, and a daemon's tunnels, for the tests of tunnels."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS, eventually


class Service:
    """A TCP service on a free loopback port, which calls ``serve`` for each connection in its own thread."""

    def __init__(self, serve: Callable[[socket.socket], object]) -> None:
        self._serve = serve
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listening.getsockname()[1]
        self._connected: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connected, _ = self._listening.accept()
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._connected.add(connected)
                threading.Thread(target=self._run, args=(connected,), daemon=True).start()

    def _run(self, connected: socket.socket) -> None:
        with suppress(OSError), connected:
            self._serve(connected)
        self._connected.discard(connected)

    @property
    def clients(self) -> int:
        """How many connections are open."""
        return len(self._connected)

    def close(self) -> None:
        """Stop listening and close all connections."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.hang_up()

    def hang_up(self) -> None:
        """Close all connections."""
        for connected in list(self._connected):
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)


def echo(connected: socket.socket) -> None:
    """Send back all data and the end of the stream."""
    while data := connected.recv(1 << 16):
        connected.sendall(data)
    connected.shutdown(socket.SHUT_WR)


def last_word(connected: socket.socket) -> None:
    """Read to the end, then send the number of bytes."""
    size = 0
    while data := connected.recv(1 << 16):
        size += len(data)
    connected.sendall(b"%d bytes" % size)


def first_word(connected: socket.socket) -> None:
    """Send something and end the output; then read and drop the input."""
    connected.sendall(b"welcome")
    connected.shutdown(socket.SHUT_WR)
    while connected.recv(1 << 16):
        pass


def client(port: int, timeout: float = DEADLINE_SECONDS, host: str = "127.0.0.1") -> socket.socket:
    """Connect to the local ``port``."""
    connected = socket.create_connection((host, port), timeout)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


def exactly(connected: socket.socket, size: int) -> bytes:
    """Read ``size`` bytes, or fewer at the end."""
    data = bytearray()
    while len(data) < size and (piece := connected.recv(size - len(data))):
        data += piece
    return bytes(data)


def says(port: int, text: bytes = b"hello") -> bytes:
    """Send ``text`` to an echo service behind ``port``, and return its answer."""
    with client(port) as connected:
        connected.sendall(text)
        return exactly(connected, len(text))


class Tunnels:
    """A daemon's tunnels, by the ids of their connections."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon

    def add(self, type: str, host: str, name: str = "a tunnel", **data: Any) -> str:
        """Store a tunnel; return its id."""
        id: str = self.daemon.client.post("/connection/add", name=name, data={"type": type, "host": host, **data})[
            "connection"
        ]
        return id

    def toggle(self, id: str, state: bool = True) -> dict[str, Any]:
        """Toggle a tunnel and return its state."""
        self.daemon.client.post("/connection/toggle", connection=id, state=state)
        return self.state(id)

    def open(self, type: str, host: str, name: str = "a tunnel", **data: Any) -> tuple[str, int]:
        """Store and open a tunnel; return its id and the port where it listens."""
        id = self.add(type, host, name, **data)
        told = self.toggle(id)
        assert told["state"] == "open", told
        return id, self.port(id)

    def state(self, id: str) -> dict[str, Any]:
        """Return a tunnel's state."""
        (told,) = self.daemon.client.post("/tunnel/query", connections=[id])["tunnels"]
        assert isinstance(told, dict)
        return told

    def port(self, id: str) -> int:
        """Return the port where a tunnel listens."""
        return int(self.state(id)["address"].rpartition(":")[2])

    def until(self, id: str, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Wait until ``holds`` accepts a tunnel's state, and return it."""
        return eventually(lambda: self.state(id), "the tunnel does not get there", holds=holds)

    def remove(self, *ids: str) -> None:
        """Remove connections, with their tunnels."""
        self.daemon.client.post("/connection/remove", connections=list(ids))
