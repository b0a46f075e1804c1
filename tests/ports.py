"""TCP ports of this machine that nobody else is given."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


class ReservedPort:
    """A port of 127.0.0.1 on which nothing listens, until a server is told its number; nobody gets it by chance.

    It is bound and not listened on. So the kernel gives it to nobody who asks for any port, nor to a connection that
    goes out, and a server binds it by number if it sets SO_REUSEADDR (socket(7)), as often as it starts.
    """

    def __init__(self) -> None:
        self._bound = socket.socket()
        self._bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._bound.bind(("127.0.0.1", 0))
        self.number: int = self._bound.getsockname()[1]

    def close(self) -> None:
        """Give it back; calling it again does nothing."""
        self._bound.close()


@contextmanager
def reserved_port() -> Iterator[int]:
    """Have the number of a :class:`ReservedPort` for a while."""
    port = ReservedPort()
    try:
        yield port.number
    finally:
        port.close()
