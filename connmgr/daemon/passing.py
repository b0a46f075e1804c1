"""Descriptors that clients pass with their requests at the daemon's Unix socket (unix(7), SCM_RIGHTS)."""

from __future__ import annotations

import array
import os
import socket
import threading
from typing import Any

_DESCRIPTOR_BYTES = array.array("i").itemsize

# Two, so that a client that passes more than one is seen; the kernel closes further ones.
_ROOM = socket.CMSG_SPACE(2 * _DESCRIPTOR_BYTES)

# macOS does not have it.
_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class PassingSocket(socket.socket):
    """A client's connection that keeps one descriptor: what came with the request that is being answered, or received.

    Further descriptors are closed at once, and this one by :meth:`drop`, or with the connection. One thread receives at
    a time; the other methods are safe in any thread.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # Guards the descriptor: the thread that answers borrows it while the main thread may close the connection.
        self._lock = threading.Lock()
        self._passed: int | None = None

    def recv(self, size: int, flags: int = 0) -> bytes:
        if flags & socket.MSG_PEEK:
            # The kernel would install the descriptor each time.
            return super().recv(size, flags)
        data, ancillary, _, _ = self.recvmsg(size, _ROOM, flags | _CLOEXEC)
        if ancillary:
            self._take(ancillary)
        return data

    def borrow(self) -> int | None:
        """Return a duplicate of the descriptor, which the caller closes; None if the client has passed none."""
        with self._lock:
            return None if self._passed is None else os.dup(self._passed)

    def drop(self) -> None:
        """Close the descriptor; calling it again does nothing."""
        with self._lock:
            passed, self._passed = self._passed, None
        if passed is not None:
            os.close(passed)

    def close(self) -> None:
        super().close()
        self.drop()

    def _take(self, ancillary: list[tuple[int, int, bytes]]) -> None:
        came = array.array("i")
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                came.frombytes(content[: len(content) - len(content) % _DESCRIPTOR_BYTES])
        with self._lock:
            if came and self._passed is None:
                self._passed = came.pop(0)
        for descriptor in came:
            os.close(descriptor)
