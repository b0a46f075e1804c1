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
"""Seconds to wait for a link to be free."""

GIVEN_UP = 1.0
"""Seconds within which the far side should have noticed that a channel was closed."""

RETRY = 0.05


class SpareTransport(Transport):
    """A session's transport, which opens its link once more when the far side allows it no further channel.

    sshd does so with MaxSessions 1. ``open_another`` opens the second link; it is kept until :meth:`close`, and
    replaced when it is lost. The first one is left to its owner. Before that ``give_up`` may close a channel that can
    be spared, and return whether there was one.
    """

    def __init__(
        self, first: Transport, open_another: Callable[[], Chain], give_up: Callable[[], bool] = lambda: False
    ) -> None:
        self.runs_locally = first.runs_locally
        self._first = first
        self._open_another = open_another
        self._give_up = give_up
        # Guards the second link, so that it is opened only once.
        self._lock = threading.Lock()
        self._second: Chain | None = None

    def open_channel(self, argv: Sequence[str], *, pty: bool = False, timeout: float) -> Channel:
        try:
            return self._first.open_channel(argv, pty=pty, timeout=timeout)
        except ChannelRefused as refusal:
            deadline = time.monotonic() + timeout
            if self._give_up():
                with contextlib.suppress(ChannelRefused):
                    return _once_free(self._first.open_channel, argv, pty, min(deadline, time.monotonic() + GIVEN_UP))
            try:
                return _once_free(self._on_second, argv, pty, deadline)
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

    def _on_second(self, argv: Sequence[str], *, pty: bool, timeout: float) -> Channel:
        with contextlib.suppress(ShellLost):
            return self._opened().transport.open_channel(argv, pty=pty, timeout=timeout)
        self.close()
        return self._opened().transport.open_channel(argv, pty=pty, timeout=timeout)

    def _opened(self) -> Chain:
        with self._lock:
            if self._second is None:
                self._second = self._open_another()
            return self._second


def _once_free(open_channel: Callable[..., Channel], argv: Sequence[str], pty: bool, deadline: float) -> Channel:
    """Start ``argv`` on a link on which the last channel may not have ended yet."""
    patience = min(deadline, time.monotonic() + PATIENCE)
    while True:
        try:
            return open_channel(argv, pty=pty, timeout=max(0.1, deadline - time.monotonic()))
        except ChannelRefused:
            if time.monotonic() >= patience:
                raise
        time.sleep(RETRY)
