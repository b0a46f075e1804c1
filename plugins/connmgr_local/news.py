"""One descriptor that tells of a process's output and of its end."""

from __future__ import annotations

import os
import selectors
from collections.abc import Iterable
from contextlib import suppress


class News:
    """Is readable while one of ``streams`` is, or once the child process ``pid``, not waited for yet, has ended.

    Where the system has no descriptors of processes (pidfd_open(2)), the end of the streams alone tells.
    """

    def __init__(self, pid: int, streams: Iterable[int]) -> None:
        self._selector = selectors.DefaultSelector()
        for descriptor in streams:
            self._selector.register(descriptor, selectors.EVENT_READ)
        self._process = -1
        if hasattr(os, "pidfd_open"):
            # It may have been waited for.
            with suppress(ProcessLookupError):
                self._process = os.pidfd_open(pid)
                self._selector.register(self._process, selectors.EVENT_READ)

    def fileno(self) -> int:
        """Return the descriptor (epoll(7), kqueue(2))."""
        return self._selector.fileno()

    def forget(self, stream: int) -> None:
        """Tell no more of a stream that is at its end."""
        self._selector.unregister(stream)

    def has_ended(self) -> None:
        """Tell no more of the process."""
        if self._process >= 0:
            self._selector.unregister(self._process)
            os.close(self._process)
            self._process = -1

    def close(self) -> None:
        """Free all descriptors but the streams' own."""
        self.has_ended()
        self._selector.close()
