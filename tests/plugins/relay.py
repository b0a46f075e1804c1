"""A TCP relay whose connections a test can break."""

from __future__ import annotations

import select
import socket
import struct
import threading
from contextlib import suppress


class Relay:
    """A TCP port of 127.0.0.1 that relays to another one until :meth:`reset`."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    pair = client, socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    # The server is down.
                    client.close()
                    continue
                with self._lock:
                    self._pairs.add(pair)
                self._threads.append(threading.Thread(target=self._serve, args=[pair]))
                self._threads[-1].start()

    def _serve(self, pair: tuple[socket.socket, socket.socket]) -> None:
        with suppress(OSError, ValueError):
            _pass_on(*pair)
        with self._lock:
            self._pairs.discard(pair)
        for side in pair:
            side.close()

    def reset(self) -> None:
        """Close every connection with RST (SO_LINGER of 0 seconds, socket(7))."""
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            for side in pair:
                with suppress(OSError):
                    side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                side.close()

    def close(self) -> None:
        """Reset every connection, and accept no more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(10)
        self.reset()
        for thread in self._threads:
            thread.join(10)


def _pass_on(client: socket.socket, server: socket.socket) -> None:
    other = {client: server, server: client}
    while True:
        for ready in select.select([client, server], [], [], 0.2)[0]:
            data = ready.recv(65536)
            if not data:
                return
            other[ready].sendall(data)
