"""TCP ports of this machine that no other program is given."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


class ReservedPort:
    """A port of 127.0.0.1 that stays free for a server that the test starts on it.

    It is bound without listening, so the kernel assigns it to no server with port 0 and to no outgoing connection. A
    server that sets SO_REUSEADDR (socket(7)) can bind it by number, as often as it starts.
    """

    def __init__(self) -> None:
        self._bound = socket.socket()
        self._bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._bound.bind(("127.0.0.1", 0))
        self.number: int = self._bound.getsockname()[1]

    def close(self) -> None:
        """Release the port; calling it again does nothing."""
        self._bound.close()


@contextmanager
def reserved_port() -> Iterator[int]:
    """Reserve a port for the block, and yield its number."""
    port = ReservedPort()
    try:
        yield port.number
    finally:
        port.close()
