"""What a token sees of the vault: connections and categories that its filters let through, and nothing else."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from connmgr.errors import IntegrityError, ScopeDenied, UnknownCategory, UnknownConnection
from connmgr.fields import Reference
from connmgr.plugin import AnyConnectionType, Forward, Tunnel, ValidationError, Wrapper
from connmgr.registry import Registry
from connmgr.rights.grant import Grant, Seen, joined
from connmgr.vault import Connection, Vault
from connmgr.vault.path import SEPARATOR, segment
from connmgr.vault.placing import Placing, placing
from connmgr.vault.wellknown import DEFAULT, LOCAL

KNOWN_SECONDS = 0.5
"""Time for which the name and category of a connection are not read again."""

MAX_KNOWN = 10_000


class Sight:
    """Looks at connections and categories for tokens. Safe to use from several threads."""

    def __init__(self, vault: Vault, registry: Registry) -> None:
        self._vault = vault
        self._registry = registry
        self._known: dict[str, tuple[float, Seen]] = {}

    def of(self, ids: Collection[str]) -> dict[str, Seen]:
        """Return those of the connections ``ids`` that exist, authentic, by their ids."""
        at = time.monotonic()
        known = {id: entry[1] for id in ids if (entry := self._known.get(id)) and at - entry[0] < KNOWN_SECONDS}
        if len(known) < len(ids):
            found = self._read([id for id in ids if id not in known])
            if len(self._known) > MAX_KNOWN:
                self._known = {}
            self._known.update({one.id: (at, one) for one in found})
            known |= {one.id: one for one in found}
        return known

    def _read(self, ids: Sequence[str]) -> list[Seen]:
        stored = [one for one in self._vault.connections.each(ids).values() if isinstance(one, Connection)]
        paths = self._category_paths(one.category for one in stored)
        return [
            Seen(one.id, joined(one.path), paths.get(one.category, ""), user if isinstance(user, str) else None)
            for one in stored
            for user in [one.data.get("user")]
        ]

    def _category_paths(self, ids: Iterable[str]) -> dict[str, str]:
        paths = {}
        for id in set(ids):
            try:
                [category] = self._vault.categories.infos([id])
            except (UnknownCategory, IntegrityError):
                # What no filter matches but `*`.
                continue
            paths[id] = joined(category.path)
        return paths

    def require(self, grant: Grant, ids: Collection[str]) -> list[Seen]:
        """Return the connections ``ids``.

        :raises UnknownConnection: one is not in sight, or does not exist; nobody can tell which.
        """
        found = self.of(ids)
        for id in ids:
            if id not in found or not grant.sees(found[id]):
                raise UnknownConnection(id)
        return [found[id] for id in ids]

    def visible(self, grant: Grant, ids: Iterable[str]) -> list[str]:
        """Return those of ``ids`` that are in sight, in their order."""
        wanted = list(ids)
        found = self.of(wanted)
        return [id for id in wanted if id in found and grant.sees(found[id])]

    def visible_categories(self, grant: Grant, ids: Iterable[str]) -> list[str]:
        """Return those of the categories ``ids`` that are in sight.

        For a token that sees certain connections alone, those are the categories that hold one, and those above them.
        """
        try:
            found = self._vault.categories.infos(list(dict.fromkeys(ids)))
        except UnknownCategory:
            return []
        seen = [one for one in found if grant.may_see_category(joined(one.path))]
        if not all(one.connections.is_everything for one in grant.lineage):
            held = self._holding(grant)
            seen = [one for one in seen if joined(one.path) in held]
        return [one.id for one in seen]

    def require_categories(self, grant: Grant, ids: Collection[str]) -> None:
        """Raise :class:`UnknownCategory` if one of ``ids`` is not in sight."""
        seen = {id for one in ids for id in self.visible_categories(grant, [one])}
        for id in ids:
            if id not in seen:
                raise UnknownCategory(id)

    def stored(self, id: str) -> Connection:
        """Return a connection as it is stored, whoever may see it."""
        [found] = self._vault.connections.infos([id])
        return found

    def data_of(self, id: str) -> dict[str, Any]:
        """Return the data of a connection as it is stored, with its type."""
        found = self.stored(id)
        return {"type": found.type, **found.data}

    def sees_dependents(self, grant: Grant, ids: Sequence[str]) -> bool:
        """Whether the connections ``ids``, and all that run over them, are in sight."""
        dependents = self._vault.connections.with_dependents(ids)
        return len(self.visible(grant, dependents)) == len(dependents)

    def require_place(self, grant: Grant, path: str, category: str | None) -> None:
        """Refuse to give a connection a ``path`` in the category of a uuid, None for the default one, out of sight.

        :raises ScopeDenied: it would be out of sight.
        """
        categories = self._category_paths([category or DEFAULT])
        if not grant.sees(Seen("", path, categories.get(category or DEFAULT, ""))):
            raise ScopeDenied("The token may have no connection of this name in this category.")

    def place(self, name: str, data: Mapping[str, Any], places: Mapping[str, str]) -> str:
        """Return the path that a connection has by its name and its data: that of a wrapper begins with another's.

        ``places`` has the paths of connections that are made with it, by their labels.
        """
        kind = self._kind(data)
        place = Placing() if kind is None else placing(kind, data)
        above = (self._path_of(place.parent, places), place.folder)
        return SEPARATOR.join((*(part for part in above if part is not None), segment(name)))

    def ways_of(self, data: Mapping[str, Any]) -> tuple[bool, bool]:
        """Return whether ``data`` are those of a wrapper, and whether they lead to another host than this machine."""
        kind = self._kind(data)
        if isinstance(kind, Tunnel):
            return False, not kind.listens_far
        return isinstance(kind, Wrapper), kind is not None and "host" in kind.schema().fields

    def is_tunnel(self, data: Mapping[str, Any]) -> bool:
        """Return whether ``data`` are those of a tunnel."""
        return isinstance(self._kind(data), Tunnel)

    def forward(self, data: Mapping[str, Any]) -> Forward | None:
        """Return what a tunnel with ``data`` listens on; None where they are not those of a tunnel, or not valid."""
        kind = self._kind(data)
        if not isinstance(kind, Tunnel):
            return None
        schema = kind.schema()
        # Which connection it goes through decides nothing here, and may be told by a label.
        over = {name: LOCAL for name in data if isinstance(schema.fields.get(name), Reference)}
        try:
            return kind.forward(schema.load({name: one for name, one in data.items() if name != "type"} | over))
        except ValidationError:
            return None

    def _kind(self, data: Mapping[str, Any]) -> AnyConnectionType | None:
        return next((one.type for one in self._registry if one.type.name == data.get("type")), None)

    def _path_of(self, named: Any, places: Mapping[str, str]) -> str | None:
        """Return the path of a connection that data name by its id or a label, or None."""
        if isinstance(named, Mapping) and named.get("label") in places:
            return places[named["label"]]
        id = named.get("storeId") if isinstance(named, Mapping) else named
        found = self.of([id.lower()]) if isinstance(id, str) else {}
        return next((one.path for one in found.values()), None)

    def _holding(self, grant: Grant) -> set[str]:
        """Return the paths of the categories that hold a connection in sight, and of those above them."""
        listed = self._vault.connections.listed()
        paths = self._category_paths(one.category for one in listed)
        held = set()
        for one in listed:
            path = paths.get(one.category, "")
            if path not in held and grant.sees(Seen(one.id, joined(one.path), path)):
                parts = path.split(SEPARATOR)
                held |= {SEPARATOR.join(parts[:depth]) for depth in range(1, len(parts) + 1)}
        return held


def is_loopback(address: str) -> bool:
    """Whether only programs of the same machine reach what listens on ``address``."""
    try:
        return address == "localhost" or ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
