"""A second chain, for channels that the first one refuses."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence

from connmgr.errors import ChannelRefused, ConnectTimeout, RequestError, ShellLost
from connmgr.links.chain import Chain
from connmgr.plugin import LEAST_SECONDS, ByteStream, Channel, Deadline, Listener, Pty, Transport

FREE_LINK_SECONDS = 5.0
"""Longest wait for a channel of the second chain."""

CHANNEL_END_SECONDS = 1.0
"""Time within which the far side should notice that a channel was closed."""

RETRY_SECONDS = 0.05


class SpareTransport(Transport):
    """A transport that opens its chain a second time when the far side refuses another channel.

    sshd refuses with ``MaxSessions 1``. Then ``give_up`` may close an idle channel, and returns whether there was one.
    If that is not enough, ``open_another`` opens the second chain within the given seconds. The second chain is kept
    until :meth:`close`, and replaced when it is lost. The first chain belongs to its owner.
    """

    def __init__(
        self, first: Transport, open_another: Callable[[float], Chain], give_up: Callable[[], bool] = lambda: False
    ) -> None:
        self.runs_locally = first.runs_locally
        self.forwards_agent = first.forwards_agent
        self._first = first
        self._open_another = open_another
        self._give_up = give_up
        # Held while the second chain is opened, so that it is opened only once.
        self._lock = threading.Lock()
        self._second: Chain | None = None
        self._closed = False

    @property
    def alive(self) -> bool:
        return self._first.alive

    @property
    def carries_streams(self) -> bool:
        return self._first.carries_streams

    def open_channel(self, argv: Sequence[str], *, pty: Pty | None = None, timeout: float) -> Channel:
        deadline = Deadline(timeout)
        try:
            return self._first.open_channel(argv, pty=pty, timeout=timeout)
        except ChannelRefused as refusal:
            if self._give_up():
                with contextlib.suppress(ChannelRefused):
                    return self._once_free(self._first.open_channel, argv, pty, CHANNEL_END_SECONDS, deadline)
            try:
                return self._once_free(self._on_second, argv, pty, FREE_LINK_SECONDS, deadline)
            except RequestError as error:
                # The client that started the session may be gone, and with it the access to the chain's secrets.
                raise refusal from error

    def open_tcp(self, host: str, port: int, *, timeout: float) -> ByteStream:
        return self._first.open_tcp(host, port, timeout=timeout)

    def listen_tcp(self, host: str, port: int, *, timeout: float) -> Listener:
        return self._first.listen_tcp(host, port, timeout=timeout)

    def close(self) -> None:
        self._closed = True
        self._close_second()

    def _close_second(self) -> None:
        # A thread that holds the lock checks afterwards whether the chain is still wanted.
        if self._lock.acquire(blocking=False):
            try:
                second, self._second = self._second, None
            finally:
                self._lock.release()
            if second is not None:
                second.close()

    def _once_free(
        self,
        open_channel: Callable[..., Channel],
        argv: Sequence[str],
        pty: Pty | None,
        timeout: float,
        deadline: Deadline,
    ) -> Channel:
        """Start ``argv`` on a chain whose last channel may take up to ``timeout`` seconds to end."""
        until = deadline.within(timeout)
        while True:
            try:
                return open_channel(argv, pty=pty, timeout=deadline.left(LEAST_SECONDS))
            except ChannelRefused:
                if until.passed:
                    raise
            # The channel that occupies the chain may be idle by now.
            self._give_up()
            time.sleep(RETRY_SECONDS)

    def _on_second(self, argv: Sequence[str], *, pty: Pty | None, timeout: float) -> Channel:
        deadline = Deadline(timeout)
        chain = self._opened(deadline)
        try:
            return chain.transport.open_channel(argv, pty=pty, timeout=deadline.left(LEAST_SECONDS))
        except ShellLost:
            chain = self._opened(deadline, instead_of=chain)
        return chain.transport.open_channel(argv, pty=pty, timeout=deadline.left(LEAST_SECONDS))

    def _opened(self, deadline: Deadline, *, instead_of: Chain | None = None) -> Chain:
        """Return the second chain. Open it if there is none, or if it is ``instead_of``, which is lost."""
        if not self._lock.acquire(timeout=deadline.left(LEAST_SECONDS)):
            raise ConnectTimeout("A second connection is still being opened.")
        try:
            if self._closed:
                raise ShellLost("The session was stopped.")
            if self._second is not None and self._second is instead_of:
                self._second = None
                instead_of.close()
            if self._second is None:
                self._second = self._open_another(deadline.left(LEAST_SECONDS))
            second = self._second
        finally:
            self._lock.release()
            if self._closed:
                self._close_second()
        if self._closed:
            raise ShellLost("The session was stopped.")
        return second
