"""One thread that reads the small messages of all links.

To wake a link's own thread costs more than such a message: where hundreds of hosts answer at a time, their threads wait
for the interpreter, and for each other. So the threads of links on which little comes sleep, and this one goes from
link to link. It never waits for a peer: bulk data, and what has to be answered, are left to the link's own thread.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from typing import Protocol

MOST_AT_ONCE = 256
"""Links that one system call tells of."""


class SharedLink(Protocol):
    """A link, as the thread needs it."""

    def fileno(self) -> int:
        """Return the descriptor of its socket, which stays open while the link is lent."""

    def read_at_once(self) -> bool:
        """Handle what has come, without waiting or raising; return False if the link's own thread is to go on."""


class SharedReader:
    """The links that are read together. Its thread begins with the first link that joins, and ends with the last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._members = set[SharedLink]()
        self._lent: dict[int, tuple[SharedLink, threading.Lock]] = {}
        self._poll: select.epoll | None = None
        self._over = -1
        """An eventfd that is readable when the last link has left."""

    def join(self, link: SharedLink) -> bool:
        """Let ``link`` be lent from now on, until it leaves; return whether it may be.

        The system must have epoll, and give two descriptors and a thread.
        """
        with self._lock:
            if not self._members:
                try:
                    self._begin()
                except (AttributeError, OSError, RuntimeError):
                    return False
            self._members.add(link)
            return True

    def leave(self, link: SharedLink) -> None:
        """Expect ``link`` no more. Calling it again does nothing."""
        with self._lock:
            if link in self._members:
                self._members.remove(link)
                if not self._members:
                    os.eventfd_write(self._over, 1)

    def lend(self, link: SharedLink) -> bool:
        """Let the shared thread read ``link``; return True when the link's own thread, the caller, is to go on.

        Return False at once if it has left, or the system watches no more descriptors (epoll_ctl(2), ENOSPC).
        """
        number, handed_back = link.fileno(), threading.Lock()
        handed_back.acquire()
        with self._lock:
            if self._poll is None or link not in self._members:
                return False
            self._lent[number] = link, handed_back
            try:
                self._poll.register(number, select.EPOLLIN)
            except OSError:
                del self._lent[number]
                return False
        handed_back.acquire()
        return True

    def _begin(self) -> None:
        with contextlib.ExitStack() as undoing:
            poll = undoing.enter_context(select.epoll())
            over = os.eventfd(0)
            undoing.callback(os.close, over)
            poll.register(over, select.EPOLLIN)
            threading.Thread(target=self._run, args=(poll, over), name="ssh reader", daemon=True).start()
            undoing.pop_all()
        self._poll, self._over = poll, over

    def _run(self, poll: select.epoll, over: int) -> None:
        came: list[tuple[int, int]] = []
        while (over, select.EPOLLIN) not in came:
            came = poll.poll(maxevents=MOST_AT_ONCE)
            for number, _ in came:
                if number != over and not self._lent[number][0].read_at_once():
                    self._hand_back(number, poll)
        os.close(over)
        poll.close()

    def _hand_back(self, number: int, poll: select.epoll) -> None:
        with self._lock:
            poll.unregister(number)
            _, handed_back = self._lent.pop(number)
        handed_back.release()
