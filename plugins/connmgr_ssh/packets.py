"""paramiko's packet layer, made to watch the peer instead of a clock."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import cast

from paramiko.message import Message
from paramiko.packet import Packetizer

from connmgr_ssh.wire import Wire


class Packets(Packetizer):
    """paramiko's packet layer without a timer thread, and with a way to send only if nobody else is sending."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(cast(socket.socket, wire))
        # A writer may be stuck in a full socket; whoever watches the peer must be able to pass by.
        self._sending = threading.RLock()
        self.when_silent: Callable[[], None] = lambda: None

    def send_message(self, data: Message) -> None:
        with self._sending:
            super().send_message(data)

    def try_send(self, data: Message) -> None:
        """Send ``data`` unless another thread is sending."""
        if self._sending.acquire(blocking=False):
            try:
                super().send_message(data)
            finally:
                self._sending.release()

    def start_handshake(self, timeout: float) -> None:
        """Start no timer: whoever opens the link has a deadline, and closes it then."""

    def _check_keepalive(self) -> None:
        self.when_silent()
