"""A second link for the channels that the first one does not take."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence

from connmgr.errors import ChannelRefused, RequestError, ShellLost
from connmgr.plugin import Channel, Transport
from connmgr.shell.transports import Chain

PATIENCE = 5.0
"""Seconds to wait for the second link to be free."""

RETRY = 0.05


class SpareTransport(Transport):
    """A session's transport, which opens its link once more when the far side allows it no further channel.

    sshd does so with MaxSessions 1. ``open_another`` opens the second link; it is kept until :meth:`close`, and
    replaced when it is lost. The first one is left to its owner.
    """

    def __init__(self, first: Transport, open_another: Callable[[], Chain]) -> None:
        self._first = first
        self._open_another = open_another
        # Guards the second link, so that it is opened only once.
        self._lock = threading.Lock()
        self._second: Chain | None = None

    def open_channel(self, argv: Sequence[str], *, pty: bool = False, timeout: float) -> Channel:
        try:
            return self._first.open_channel(argv, pty=pty, timeout=timeout)
        except ChannelRefused as refusal:
            try:
                return self._once_free(argv, pty, time.monotonic() + timeout)
            except RequestError as error:
                # Whoever started the session may have left, and with it the secrets that open the link.
                raise refusal from error

    def open_tcp(self, host: str, port: int, *, timeout: float) -> socket.socket:
        return self._first.open_tcp(host, port, timeout=timeout)

    def close(self) -> None:
        with self._lock:
            second, self._second = self._second, None
        if second is not None:
            second.close()

    def _once_free(self, argv: Sequence[str], pty: bool, deadline: float) -> Channel:
        """Start ``argv`` on the second link, on which the last channel may not have ended yet."""
        patience = min(deadline, time.monotonic() + PATIENCE)
        while True:
            try:
                return self._on_second(argv, pty, max(0.1, deadline - time.monotonic()))
            except ChannelRefused:
                if time.monotonic() >= patience:
                    raise
            time.sleep(RETRY)

    def _on_second(self, argv: Sequence[str], pty: bool, timeout: float) -> Channel:
        with contextlib.suppress(ShellLost):
            return self._opened().transport.open_channel(argv, pty=pty, timeout=timeout)
        self.close()
        return self._opened().transport.open_channel(argv, pty=pty, timeout=timeout)

    def _opened(self) -> Chain:
        with self._lock:
            if self._second is None:
                self._second = self._open_another()
            return self._second
