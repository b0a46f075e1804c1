"""What the daemons of a vault on PostgreSQL tell each other: that there is something new, look now.

An announcement belongs to the transaction of a change, and is heard when that is committed (``NOTIFY`` of PostgreSQL).
One may be lost, with a link or behind a pooler that shares sessions: whoever listens looks now and then anyway, and
only later.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing

from connmgr.errors import VaultUnavailable
from connmgr.vault.database import Database, Listening

logger = logging.getLogger("connmgr.vault")

RETRY_SECONDS = 2.0
"""Time until the next attempt to listen after the database did not answer."""

ALIVE_SECONDS = 60.0
"""Silence after which the link to the database is asked whether it lives."""


class Announcements:
    """Calls the subscribers of a topic, in a separate thread. Safe to use from several threads.

    On SQLite, whose vault belongs to one process, nothing is announced and there is no thread.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._callbacks: defaultdict[str, list[Callable[[], object]]] = defaultdict(list)
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._awake: socket.socket | None = None

    def on(self, topic: str, callback: Callable[[], object]) -> None:
        """Have ``callback``, which must not wait, called when a daemon announces ``topic``; before :meth:`begin`."""
        self._callbacks[topic].append(callback)

    def begin(self) -> None:
        """Listen from now on."""
        if self._database.is_shared and self._thread is None:
            waking, self._awake = socket.socketpair()
            self._thread = threading.Thread(target=self._run, args=(waking,), name="announcements", daemon=True)
            self._thread.start()

    def close(self, timeout: float) -> None:
        """Listen no more."""
        self._closing.set()
        if self._thread is not None and self._awake is not None:
            self._awake.close()
            self._thread.join(timeout)

    def _run(self, waking: socket.socket) -> None:
        with waking:
            while not self._closing.is_set():
                try:
                    with closing(self._database.listen()) as listening:
                        # What was announced while nobody listened is not known.
                        self._call(set(self._callbacks))
                        self._hear(listening, waking)
                except VaultUnavailable as error:
                    logger.info("Other daemons are not heard for now: %s", error.message)
                except Exception:
                    logger.exception("Other daemons are not heard for now.")
                self._closing.wait(RETRY_SECONDS)

    def _hear(self, listening: Listening, waking: socket.socket) -> None:
        """Call the callbacks of what is announced, until :meth:`close`."""
        with selectors.DefaultSelector() as selector:
            selector.register(listening, selectors.EVENT_READ)
            selector.register(waking, selectors.EVENT_READ)
            while not self._closing.is_set():
                if not selector.select(ALIVE_SECONDS):
                    listening.check()
                self._call(listening.take())

    def _call(self, topics: set[str]) -> None:
        for topic in topics:
            for callback in self._callbacks[topic]:
                callback()
