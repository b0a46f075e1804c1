"""The requests that wait for a decision about an approval, which any daemon of the vault may receive."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection

from connmgr.errors import ConnmgrError

logger = logging.getLogger("connmgr.rights")

LOOK_SECONDS = 0.5
"""Interval of checks for decisions that another daemon of the vault received."""

Subscribe = Callable[[Callable[[], None]], Callable[[], None]]


class ApprovalWaiters:
    """Notifies the waiting requests. Safe to use from several threads.

    ``is_decided`` returns whether the approval with an id is decided or gone.
    """

    def __init__(self, is_decided: Callable[[str], bool]) -> None:
        self._is_decided = is_decided
        self._lock = threading.Lock()
        self._callbacks: dict[str, list[Callable[[], None]]] = {}
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def subscribe(self, id: str, told: Callable[[], None]) -> Callable[[], None]:
        """Call ``told`` once when an approval is decided, by any daemon; return a function that cancels this."""
        with self._lock:
            self._callbacks.setdefault(id, []).append(told)
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(target=self._watch, name="approvals", daemon=True)
                self._thread.start()

        def cancel() -> None:
            with self._lock:
                waiting = self._callbacks.get(id, [])
                if told in waiting:
                    waiting.remove(told)
                if not waiting:
                    self._callbacks.pop(id, None)

        if self._is_decided(id):
            self.tell([id])
        return cancel

    def close(self) -> None:
        """Notify all who wait, and end the thread."""
        self._closing.set()
        with self._lock:
            thread, waiting = self._thread, list(self._callbacks)
        self.tell(waiting)
        if thread is not None:
            thread.join()

    def tell(self, ids: Collection[str]) -> None:
        """Notify those who wait for the approvals ``ids``: each is decided or gone."""
        with self._lock:
            callbacks = [told for id in ids for told in self._callbacks.pop(id, [])]
        for told in callbacks:
            told()

    def _watch(self) -> None:
        while not self._closing.wait(LOOK_SECONDS):
            with self._lock:
                waited = list(self._callbacks)
                if not waited:
                    self._thread = None
                    return
            try:
                self.tell([id for id in waited if self._is_decided(id)])
            except ConnmgrError as error:
                # The vault is out of reach; waiting requests have deadlines.
                logger.warning("Approvals cannot be read: %s", error.message)
