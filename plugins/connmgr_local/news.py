"""One descriptor that is readable when a process has output or has ended."""

from __future__ import annotations

import os
import selectors
from collections.abc import Iterable
from contextlib import suppress


class News:
    """Readable while one of ``streams`` is, or when the child process ``pid`` has ended and was not waited for yet.

    Where the system lacks pidfd_open(2), only the streams count.
    """

    def __init__(self, pid: int, streams: Iterable[int]) -> None:
        self._selector = selectors.DefaultSelector()
        for descriptor in streams:
            self._selector.register(descriptor, selectors.EVENT_READ)
        self._process = -1
        if hasattr(os, "pidfd_open"):
            # The process may have been waited for already.
            with suppress(ProcessLookupError):
                self._process = os.pidfd_open(pid)
                self._selector.register(self._process, selectors.EVENT_READ)

    def fileno(self) -> int:
        """Return the descriptor (epoll(7), kqueue(2))."""
        return self._selector.fileno()

    def forget(self, stream: int) -> None:
        """Stop watching a stream that is at its end."""
        self._selector.unregister(stream)

    def has_ended(self) -> None:
        """Stop watching the process."""
        if self._process >= 0:
            self._selector.unregister(self._process)
            os.close(self._process)
            self._process = -1

    def close(self) -> None:
        """Free all descriptors but the streams' own."""
        self.has_ended()
        self._selector.close()
