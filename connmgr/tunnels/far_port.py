"""Connections to a port of a far side, joined with connections on this side."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from functools import partial

from connmgr.plugin import ByteStream, Listener
from connmgr.streams.loop import Loop
from connmgr.tunnels.way import DIAL_SECONDS

ACCEPT_SECONDS = 1.0
"""Longest single wait for a connection, before waiting again."""

Take = Callable[[socket.socket | None, ByteStream, str], object]


class FarPort:
    """Accepts connections of ``listener`` in its own thread, until the listener is closed or its link lost.

    For each stream ``take`` is called in the thread of the loop: with a connection to ``to``, or with None and the
    error.
    """

    def __init__(self, loop: Loop, listener: Listener, to: tuple[str, int], take: Take) -> None:
        self._loop, self._listener, self._to, self._take = loop, listener, to, take
        threading.Thread(target=self._accept, name="tunnel port", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                stream = self._listener.accept(ACCEPT_SECONDS)
            except TimeoutError:
                continue
            except (OSError, EOFError):
                return
            self._loop.work(partial(self._dial, stream))

    def _dial(self, stream: ByteStream) -> None:
        """Open the connection on this side, in a thread that may wait."""
        connected, fault = None, ""
        try:
            connected = socket.create_connection(self._to, DIAL_SECONDS)
        except (OSError, UnicodeError) as error:
            fault = getattr(error, "strerror", None) or str(error)
        self._loop.call(partial(self._take, connected, stream, fault))
