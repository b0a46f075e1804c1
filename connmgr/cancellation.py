"""Whether work is still wanted; if not, the threads that wait on its behalf are woken."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from connmgr.errors import CommandCancelled


class Cancellation:
    """Says whether a client still wants a piece of work. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = False
        self._reason = "The client disconnected"
        self._callbacks: dict[object, Callable[[], None]] = {}

    @property
    def cancelled(self) -> bool:
        """Whether nobody wants the work any more."""
        return self._cancelled

    @property
    def reason(self) -> str:
        """Why nobody wants the work any more, as the beginning of a sentence."""
        return self._reason

    def require(self) -> None:
        """Return if the work is still wanted; called just before a step that cannot be undone.

        :raises CommandCancelled: it is not.
        """
        if self.cancelled:
            raise CommandCancelled(f"{self.reason} before the request was carried out; nothing was done.")

    def cancel(self, reason: str | None = None) -> None:
        """Note that nobody wants the work, and wake the threads that wait for it. Calling it again does nothing.

        ``reason`` is the beginning of a sentence; without it the client has left.
        """
        with self._lock:
            if self._cancelled:
                return
            self._reason = reason or self._reason
            self._cancelled = True
            callbacks = list(self._callbacks.values())
        for callback in callbacks:
            callback()

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """Call ``wake`` once if the work is cancelled during the ``with`` block, or was before.

        It may be called by any thread, even just after the block, and must not wait.
        """
        key = object()
        # Looked at under the lock of cancel(): either its copy of the callbacks has this one, or it has already set the
        # flag that this reads.
        with self._lock:
            is_over = self._cancelled
            if not is_over:
                self._callbacks[key] = wake
        if is_over:
            wake()
            yield
            return
        try:
            yield
        finally:
            with self._lock:
                self._callbacks.pop(key, None)


class _Never(Cancellation):
    """Work that is always wanted; shared by all, so it keeps nothing."""

    def cancel(self, reason: str | None = None) -> None:
        raise NotImplementedError("others share this object")

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        yield


NEVER: Cancellation = _Never()
"""For work that nobody cancels."""
