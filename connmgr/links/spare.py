"""A second link for the channels that the first one does not take."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence

from connmgr.errors import ChannelRefused, ConnectTimeout, RequestError, ShellLost
from connmgr.links.chain import Chain
from connmgr.plugin import LEAST_SECONDS, ByteStream, Channel, Deadline, Transport

PATIENCE = 5.0
"""Seconds to wait for a link to be free."""

GIVEN_UP = 1.0
"""Seconds within which the far side should have noticed that a channel was closed."""

RETRY = 0.05


class SpareTransport(Transport):
    """A session's transport, which opens its link once more when the far side allows it no further channel.

    sshd does so with MaxSessions 1. ``open_another`` opens the second link within so many seconds; it is kept until
    :meth:`close`, and replaced when it is lost. The first one is left to its owner. Before that ``give_up`` may close a
    channel that can be spared, and return whether there was one.
    """

    def __init__(
        self, first: Transport, open_another: Callable[[float], Chain], give_up: Callable[[], bool] = lambda: False
    ) -> None:
        self.runs_locally = first.runs_locally
        self._first = first
        self._open_another = open_another
        self._give_up = give_up
        # Guards the second link, so that it is opened only once; held while it is.
        self._lock = threading.Lock()
        self._second: Chain | None = None
        self._closed = False

    def open_channel(self, argv: Sequence[str], *, pty: bool = False, timeout: float) -> Channel:
        deadline = Deadline(timeout)
        try:
            return self._first.open_channel(argv, pty=pty, timeout=timeout)
        except ChannelRefused as refusal:
            if self._give_up():
                with contextlib.suppress(ChannelRefused):
                    return self._once_free(self._first.open_channel, argv, pty, GIVEN_UP, deadline)
            try:
                return self._once_free(self._on_second, argv, pty, PATIENCE, deadline)
            except RequestError as error:
                # Whoever started the session may have left, and with it the secrets that open the link.
                raise refusal from error

    def open_tcp(self, host: str, port: int, *, timeout: float) -> ByteStream:
        return self._first.open_tcp(host, port, timeout=timeout)

    def close(self) -> None:
        self._closed = True
        self._close_second()

    def _close_second(self) -> None:
        # Whoever holds the lock looks afterwards whether the link is wanted yet.
        if self._lock.acquire(blocking=False):
            try:
                second, self._second = self._second, None
            finally:
                self._lock.release()
            if second is not None:
                second.close()

    def _once_free(
        self, open_channel: Callable[..., Channel], argv: Sequence[str], pty: bool, patience: float, deadline: Deadline
    ) -> Channel:
        """Start ``argv`` on a link on which the last channel may not have ended until ``patience`` seconds from now."""
        until = deadline.within(patience)
        while True:
            try:
                return open_channel(argv, pty=pty, timeout=deadline.left(LEAST_SECONDS))
            except ChannelRefused:
                if until.passed:
                    raise
            # The one that was in the way may have become one that can be spared.
            self._give_up()
            time.sleep(RETRY)

    def _on_second(self, argv: Sequence[str], *, pty: bool, timeout: float) -> Channel:
        deadline = Deadline(timeout)
        chain = self._opened(deadline)
        try:
            return chain.transport.open_channel(argv, pty=pty, timeout=deadline.left(LEAST_SECONDS))
        except ShellLost:
            chain = self._opened(deadline, instead_of=chain)
        return chain.transport.open_channel(argv, pty=pty, timeout=deadline.left(LEAST_SECONDS))

    def _opened(self, deadline: Deadline, *, instead_of: Chain | None = None) -> Chain:
        """Return the second link, opened where it is not, or is the lost one ``instead_of``."""
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
