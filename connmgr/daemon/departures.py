"""Notices clients that leave while their requests are being answered.

A client has left when its side of the connection has ended. HTTP has no other sign of it: whoever only ends its sending
half (``nc -N``) looks the same, and counts as gone.
"""

from __future__ import annotations

import select
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from connmgr.cancellation import Cancellation

_RDHUP = getattr(select, "POLLRDHUP", 0)
_LEFT = select.POLLHUP | select.POLLERR | select.POLLNVAL | _RDHUP


def has_left(connection: socket.socket | None) -> bool:
    """Whether the client of a connection has left; data that it sent before, such as a next request, stays unread."""
    descriptor = connection.fileno() if connection is not None else -1
    if connection is None or descriptor < 0:
        return True
    poll = select.poll()
    poll.register(descriptor, _RDHUP)
    if any(event & _LEFT for _, event in poll.poll(0)):
        return True
    if _RDHUP:
        return False
    # Where the system does not report it, as on macOS, unread data hides the end behind it.
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


if sys.platform == "linux":

    class _Poller:
        """Reports the ends of connections, and nothing else. Any thread may add and remove."""

        def __init__(self) -> None:
            self._epoll = select.epoll()
            self.close = self._epoll.close

        def add(self, descriptor: int) -> None:
            # Not EPOLLIN: a client's next request would be reported until somebody reads it. Errors and a whole hang-up
            # are reported unasked (epoll_ctl(2)).
            self._epoll.register(descriptor, select.EPOLLRDHUP)

        def remove(self, descriptor: int) -> None:
            # The system forgets a closed connection by itself.
            with suppress(OSError):
                self._epoll.unregister(descriptor)

        def wait(self) -> list[int]:
            return [descriptor for descriptor, _ in self._epoll.poll()]

else:

    class _Poller:
        """Reports the ends of connections, and nothing else. Any thread may add and remove."""

        def __init__(self) -> None:
            self._kqueue = select.kqueue()
            self.close = self._kqueue.close

        def add(self, descriptor: int) -> None:
            # Cleared after each report, because data that nobody reads yet is reported too.
            self._change(descriptor, select.KQ_EV_ADD | select.KQ_EV_CLEAR)

        def remove(self, descriptor: int) -> None:
            with suppress(OSError):
                self._change(descriptor, select.KQ_EV_DELETE)

        def wait(self) -> list[int]:
            return [event.ident for event in self._kqueue.control(None, 64) if event.flags & select.KQ_EV_EOF]

        def _change(self, descriptor: int, flags: int) -> None:
            self._kqueue.control([select.kevent(descriptor, select.KQ_FILTER_READ, flags)], 0)


class Departures:
    """One thread that waits for the ends of watched connections, started for the first; end it by :meth:`close`.

    Watching costs two system calls and wakes nobody, because other threads may change what epoll(7) and kqueue(2) wait
    for.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[int, tuple[ClientCancellation, int]] = {}
        self._poller: _Poller | None = None
        self._bell: socket.socket | None = None
        self._closed = False

    @contextmanager
    def watching(self, client: ClientCancellation) -> Iterator[None]:
        """Cancel ``client`` when it leaves during the ``with`` block; it is cancelled at once if it has left."""
        connection = client.connection()
        descriptor = connection.fileno() if connection is not None else -1
        if descriptor < 0:
            client.cancel()
            yield
            return
        self._add(descriptor, client)
        try:
            yield
        finally:
            self._remove(descriptor, client)

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            self._closed = True
            if self._bell is not None:
                self._bell.close()

    def _add(self, descriptor: int, client: ClientCancellation) -> None:
        with self._lock:
            if self._closed:
                return
            watched, count = self._watched.get(descriptor, (client, 0))
            # Under a reused number only a closed connection can be registered, which the system has forgotten itself.
            self._watched[descriptor] = client, count + 1 if watched is client else 1
            if count and watched is client:
                return
            poller = self._poller or self._start()
            poller.add(descriptor)

    def _remove(self, descriptor: int, client: ClientCancellation) -> None:
        with self._lock:
            watched, count = self._watched.get(descriptor, (None, 0))
            if watched is not client:
                return
            if count > 1:
                self._watched[descriptor] = client, count - 1
                return
            del self._watched[descriptor]
            if self._poller is not None and not self._closed:
                self._poller.remove(descriptor)

    def _start(self) -> _Poller:
        self._bell, ear = socket.socketpair()
        self._poller = poller = _Poller()
        poller.add(ear.fileno())
        threading.Thread(target=self._run, args=(poller, ear), name="departures", daemon=True).start()
        return poller

    def _run(self, poller: _Poller, ear: socket.socket) -> None:
        with ear:
            while True:
                for descriptor in poller.wait():
                    if descriptor == ear.fileno():
                        poller.close()
                        return
                    self._look(descriptor, poller)

    def _look(self, descriptor: int, poller: _Poller) -> None:
        with self._lock:
            client, _ = self._watched.get(descriptor, (None, 0))
        # The number may belong to another connection by now, so the report alone proves nothing.
        if client is None or not client.cancelled:
            return
        with self._lock:
            if self._watched.get(descriptor, (None, 0))[0] is client:
                # Otherwise the end would be reported again and again.
                poller.remove(descriptor)


class ClientCancellation(Cancellation):
    """Cancels what the client of ``connection()`` has asked for when it leaves, as far as anybody waits for that."""

    def __init__(self, departures: Departures, connection: Callable[[], socket.socket | None]) -> None:
        super().__init__()
        self._departures = departures
        self.connection = connection

    @property
    def cancelled(self) -> bool:
        """Whether the client has left; this asks the system."""
        if not self._cancelled and has_left(self.connection()):
            self.cancel()
        return self._cancelled

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        with super().waking(wake), self._departures.watching(self):
            yield
