"""A TCP stream from the far side in the form of a channel."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

from connmgr.plugin import ByteStream, Channel

RECEIVE_BYTES = 128 * 1024
LOOK_SECONDS = 1.0
"""Interval at which a waiting write checks its deadline."""


class TcpChannel(Channel):
    """A channel whose output is the data received by ``stream``; its exit status is 0 at the stream's end."""

    def __init__(self, stream: ByteStream) -> None:
        stream.settimeout(LOOK_SECONDS)
        self._stream = stream
        self._ended = threading.Event()

    def recv(self, timeout: float) -> tuple[bytes, bytes]:
        if self._ended.is_set():
            raise EOFError
        try:
            data = self._stream.recv(RECEIVE_BYTES)
        except TimeoutError:
            return b"", b""
        except OSError:
            data = b""
        if not data:
            self._ended.set()
            raise EOFError
        return data, b""

    def sendall(self, data: bytes, timeout: float) -> None:
        until = time.monotonic() + timeout
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._stream.send(rest) :]
            except TimeoutError:
                if time.monotonic() >= until:
                    raise

    def shutdown_write(self) -> None:
        self._stream.shutdown(socket.SHUT_WR)

    def exit_status(self, timeout: float) -> int:
        if not self._ended.wait(max(0.0, timeout)):
            raise TimeoutError("The stream is open.")
        return 0

    def close(self) -> None:
        # Wakes a reading thread; some streams cannot end only their input.
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        self._stream.close()
        self._ended.set()
