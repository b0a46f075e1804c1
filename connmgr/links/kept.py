"""Keeps links open for a while after their use, for the next user."""

from __future__ import annotations

import threading
import time

from connmgr.errors import ShellLost
from connmgr.links.link import Lease


class KeptLinks:
    """Keeps a lease of each connection's last used link until :meth:`let_go`. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[Lease, float]] = {}

    def keep(self, connection: str, lease: Lease) -> None:
        """Keep the link of ``lease``, which has just been used, in place of an earlier link of the connection."""
        with self._lock:
            before = self._kept.get(connection)
            same = before is not None and before[0].link is lease.link
            try:
                kept = before[0] if before is not None and same else lease.link.lease()
            except ShellLost:
                # The link was lost or changed meanwhile; its other lessees notice this themselves.
                return
            self._kept[connection] = kept, time.monotonic()
        if before is not None and not same:
            before[0].release()

    def let_go(self, idle_seconds: float) -> None:
        """Release the links that are unusable, or were not used for ``idle_seconds``."""
        with self._lock:
            at = time.monotonic() - idle_seconds
            idle = {
                connection: lease
                for connection, (lease, used) in self._kept.items()
                if used <= at or not lease.link.usable
            }
            for connection in idle:
                del self._kept[connection]
        for lease in idle.values():
            lease.release()
