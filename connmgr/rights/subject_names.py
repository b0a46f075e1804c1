"""The names of a request's subjects, for readers of the audit trail when the subjects are gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from connmgr.errors import ConnmgrError
from connmgr.vault import Vault
from connmgr.vault.elevated import elevation_of
from connmgr.vault.path import SEPARATOR, segment
from connmgr.vault.paths import paths_of

FRESH_SECONDS = 1.0
"""A name of this age is read again."""

MAX_NAMES = 20_000
MAX_CHARACTERS = 256
"""Longest name in an entry, because a request may be about a thousand connections."""

_ONE = {"connection": "connectionName", "category": "categoryName"}
_MANY = {"connection": ("connections", "connectionNames"), "category": ("categories", "categoryNames")}


class SubjectNames:
    """Names of connections and categories, at most a second old; safe to use from several threads.

    For a removed subject it knows the last name. The rows are not verified, because the uuid stands beside the name.
    """

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, str | None]] = {}

    def of(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Return the members with the names of what ``entry`` is about.

        ``connectionName`` for ``connection``, ``connectionNames`` for ``connections``, with None for unknown ones, and
        likewise for categories.
        """
        told: dict[str, Any] = {}
        for kind, member in _ONE.items():
            id = entry.get(kind)
            if id is not None and (name := self._name(kind, id)) is not None:
                told[member] = name
        for kind, (several, member) in _MANY.items():
            if several in entry:
                told[member] = self._names(kind, entry[several])
        return told

    def remember(self, names: Mapping[str, str | None]) -> None:
        """Store ``names``, current or last ones."""
        now = time.monotonic()
        with self._lock:
            if len(self._known) + len(names) > MAX_NAMES:
                self._known = {}
            self._known.update({id: (now, name) for id, name in names.items()})

    def _name(self, kind: str, id: str) -> str | None:
        known = self._known.get(id)
        if known is not None and time.monotonic() - known[0] <= FRESH_SECONDS:
            return known[1]
        return self._names(kind, [id])[0]

    def _names(self, kind: str, ids: list[str]) -> list[str | None]:
        now = time.monotonic()
        found = {id: self._known.get(id, (-FRESH_SECONDS, None)) for id in ids}
        stale = [id for id, (at, _) in found.items() if now - at > FRESH_SECONDS]
        if stale:
            stored = self._look_up(kind, stale)
            renewed = {id: stored.get(id, found[id][1]) for id in stale}
            self.remember(renewed)
            return [renewed[id] if id in renewed else found[id][1] for id in ids]
        return [found[id][1] for id in ids]

    def _look_up(self, kind: str, ids: list[str]) -> dict[str, str]:
        kept = self._vault.connections.temporary.those_of(ids) if kind == "connection" else {}
        # If the database is away or damaged, the entry has no names.
        with suppress(ConnmgrError):
            paths = paths_of(self._vault.database, kind, ids) | {
                id: SEPARATOR.join(one.path) for id, one in kept.items()
            }
            elevated = {id: one for id in ids if (one := elevation_of(id)) is not None}
            if elevated:
                below = self._look_up(kind, [one.base for one in elevated.values()])
                paths |= {
                    id: SEPARATOR.join((below[one.base], segment(one.user)))
                    for id, one in elevated.items()
                    if one.base in below
                }
            return {id: path[:MAX_CHARACTERS] for id, path in paths.items()}
        return {}
