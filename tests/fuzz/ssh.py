"""What the fuzzers of SSH share: a port of a hostile host, and numbers of its messages."""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod

from hypothesis import strategies as st

NUMBER = st.sampled_from([0, 1, 2, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1])


class Port(ABC):
    """Listens on the port ``number`` of the loopback interface, and serves one client after the other."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.number: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve_all, daemon=True).start()

    def _serve_all(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return
            self.serve(connected)

    @abstractmethod
    def serve(self, connected: socket.socket) -> None:
        """Serve one client, and close its connection."""

    def close(self) -> None:
        """Serve no further client."""
        self._listener.close()
