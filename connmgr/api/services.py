"""What the endpoints work with: collaborators that the daemon wires, and the slots of requests that wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import flask

from connmgr.errors import Busy

if TYPE_CHECKING:
    from connmgr.api.audit import AuditTrail
    from connmgr.api.auth import Caller, Credentials, Tokens
    from connmgr.api.metrics import Metrics
    from connmgr.fs.blobs import Blobs
    from connmgr.registry import Registry
    from connmgr.settings import Settings
    from connmgr.shell.shells import Shells
    from connmgr.vault import Vault

EXTENSION = "connmgr"


STOPS = 16
"""Slots beside those of the setting: requests that end a shell, and so free others, find one when all are taken."""


class Slots:
    """Bounds how many requests may wait for something slow, so that others always find a free thread."""

    def __init__(self, count: int) -> None:
        self._free = threading.BoundedSemaphore(count)
        self._stops = threading.BoundedSemaphore(STOPS)
        self._lock = threading.Lock()
        self.count = count
        self.in_use = 0

    @contextmanager
    def taken(self, *, stops: bool = False) -> Iterator[None]:
        """Hold one slot, if need be one of the :data:`STOPS` where the request ``stops`` something.

        :raises Busy: all are taken; nothing is waited for.
        """
        if not self._free.acquire(blocking=False):
            if not stops or not self._stops.acquire(blocking=False):
                raise Busy(f"All {self.count} slots for requests that wait are taken; try again later.")
            try:
                yield
            finally:
                self._stops.release()
            return
        self._add(1)
        try:
            yield
        finally:
            self._add(-1)
            self._free.release()

    def _add(self, number: int) -> None:
        with self._lock:
            self.in_use += number


@dataclass(frozen=True)
class Services:
    """The collaborators of the endpoints."""

    settings: Settings
    vault: Vault
    registry: Registry
    shells: Shells
    credentials: Credentials
    tokens: Tokens
    anonymous: Caller
    slots: Slots
    blobs: Blobs
    audit: AuditTrail
    metrics: Metrics
    stopping: Callable[[], bool]
    stop: Callable[[], None]


def services() -> Services:
    """Return the collaborators of the application that answers this request."""
    found: Services = flask.current_app.extensions[EXTENSION]
    return found


def caller() -> Caller:
    """Return the client session that sent this request."""
    found: Caller = flask.g.account.caller
    return found
