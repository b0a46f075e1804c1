"""The part of the vault that a token sees: connections and categories that its filters match."""

from __future__ import annotations

import copy
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from connmgr.computing import in_pieces
from connmgr.errors import ScopeDenied, UnknownCategory, UnknownConnection
from connmgr.fields import Reference, secret_references
from connmgr.plugin import AnyConnectionType, ConnectionType, Forward, Tunnel, ValidationError, Wrapper
from connmgr.registry import Registry
from connmgr.rights.grant import ConnectionFacts, Grant
from connmgr.vault import Connection, Vault
from connmgr.vault.connection_rows import Placing, placing, sealed_secrets
from connmgr.vault.dependencies import complete_digest
from connmgr.vault.names import DEFAULT, LOCAL, SEPARATOR, elevation_of, segment

KNOWN_SECONDS = 0.5
"""Time for which the name and category of a connection are cached."""

MAX_KNOWN = 10_000

_ELEVATE = frozenset({"elevate"})


class Position(NamedTuple):
    """The path of a connection, and the id of the category that it is in unless another one is named."""

    path: str
    category: str


class PlannedConnection(NamedTuple):
    """A connection that the same request adds, to which later entries refer by a label."""

    position: Position
    over: frozenset[str]
    """The stored connections that it will run over."""


class Visibility:
    """Applies the filters of tokens to connections and categories. Safe to use from several threads."""

    def __init__(self, vault: Vault, registry: Registry) -> None:
        self._vault = vault
        self._registry = registry
        self._known: dict[str, tuple[float, ConnectionFacts]] = {}
        self.planned: Mapping[str, PlannedConnection] = {}
        """The connections that the request in question adds, by labels; see :meth:`with_planned`."""

    def with_planned(self, planned: Mapping[str, PlannedConnection]) -> Visibility:
        """Return this visibility for data that may refer to ``planned`` connections by their labels."""
        aware = copy.copy(self)
        aware.planned = planned
        return aware

    def of(self, ids: Collection[str]) -> dict[str, ConnectionFacts]:
        """Return the existing, authentic ones of the connections ``ids``, by their ids."""
        at = time.monotonic()
        known = self._known
        facts = {id: entry[1] for id in in_pieces(ids) if (entry := known.get(id)) and at - entry[0] < KNOWN_SECONDS}
        if len(facts) < len(ids):
            fresh = self._read([id for id in ids if id not in facts])
            if len(self._known) > MAX_KNOWN:
                self._known = {}
            self._known.update({connection.id: (at, connection) for connection in fresh})
            facts |= {connection.id: connection for connection in fresh}
        return facts

    def current(self, ids: Collection[str]) -> dict[str, ConnectionFacts]:
        """Like :meth:`of`, and as they are now, after a change."""
        for id in ids:
            self._known.pop(id, None)
        return self.of(ids)

    def _read(self, ids: Sequence[str]) -> list[ConnectionFacts]:
        connections = [
            connection
            for connection in self._vault.connections.each(ids).values()
            if isinstance(connection, Connection)
        ]
        paths = self._category_paths(connection.category for connection in connections)
        facts = []
        for connection in in_pieces(connections):
            user = connection.data.get("user")
            user = user if isinstance(user, str) else None
            facts.append(
                ConnectionFacts(
                    connection.id, SEPARATOR.join(connection.path), paths.get(connection.category, ""), user
                )
            )
        return facts

    def _category_paths(self, ids: Iterable[str]) -> dict[str, str]:
        # Only `*` matches the path of one that does not exist or is not authentic.
        return {id: SEPARATOR.join(category.path) for id, category in self._vault.categories.each(set(ids)).items()}

    def require(self, grant: Grant, ids: Collection[str]) -> list[ConnectionFacts]:
        """Return the connections ``ids``.

        :raises UnknownConnection: one is not in sight, or does not exist; the error does not tell which.
        """
        facts = self.of(ids)
        for id in ids:
            if elevation_of(id) is not None:
                # Without it, a rule for a connection would grow into one for its root.
                grant.require_one(_ELEVATE)
            if id not in facts or not _sees(grant, facts[id]):
                raise UnknownConnection(id)
        return [facts[id] for id in ids]

    def digests(self, ids: Collection[str]) -> dict[str, str]:
        """Return the digests of connections and of all that they run over, as they are now."""
        return {
            connection.id: complete_digest(connection.type, connection.data, connection.dependency_digest)
            for connection in self._vault.connections.each(ids).values()
            if isinstance(connection, Connection)
        }

    def visible(self, grant: Grant, ids: Iterable[str]) -> list[str]:
        """Return the connections among ``ids`` that are in sight, in their order."""
        all_ids = list(ids)
        facts = self.of(all_ids)
        return [id for id in in_pieces(all_ids) if id in facts and _sees(grant, facts[id])]

    def visible_categories(self, grant: Grant, ids: Iterable[str]) -> list[str]:
        """Return the categories among ``ids`` that are in sight.

        If a token sees only certain connections, these are the categories that contain one, and those above them.
        """
        try:
            categories = self._vault.categories.infos(list(dict.fromkeys(ids)))
        except UnknownCategory:
            return []
        visible = [category for category in categories if grant.may_see_category(SEPARATOR.join(category.path))]
        if not all(ancestor.connections.is_everything for ancestor in grant.lineage):
            holding = self._holding(grant)
            visible = [category for category in visible if SEPARATOR.join(category.path) in holding]
        return [category.id for category in visible]

    def require_categories(self, grant: Grant, ids: Collection[str]) -> None:
        """Raise :class:`UnknownCategory` if one of ``ids`` is not in sight."""
        visible = {id for category in ids for id in self.visible_categories(grant, [category])}
        for id in ids:
            if id not in visible:
                raise UnknownCategory(id)

    def stored(self, id: str) -> Connection:
        """Return a stored connection, without a check of the sight."""
        [connection] = self._vault.connections.infos([id])
        return connection

    def has_sudo_password(self, connection: str | None, category: str) -> bool:
        """Whether a password for sudo is stored for a connection, or for its category or one above that."""
        return self._vault.connections.sudo_passwords.stored(connection, category) is not None

    def with_source_over(self, id: str) -> str | None:
        """Return the path of a connection whose secret from elsewhere goes over the connection ``id``, or None."""
        connections = self._vault.connections
        for connection in connections.each(connections.with_dependents([id])).values():
            if (
                isinstance(connection, Connection)
                and connection.id != id
                and next(secret_references(connection.data), None) is not None
            ):
                return SEPARATOR.join(connection.path)
        return None

    def with_secret_over(self, id: str) -> str | None:
        """Return the path of a connection whose secret or password for sudo goes over the connection ``id``, or None.

        A password for sudo of ``id`` itself counts, but no secret in its data, which whoever changes them replaces.
        """
        connections = self._vault.connections
        over = connections.each(connections.with_dependents([id])).values()
        # A connection that was changed outside of connmgr sends no secret.
        sound = [connection for connection in over if isinstance(connection, Connection)]
        passwords = connections.sudo_passwords.over_each({connection.id: connection.category for connection in sound})
        for connection in sound:
            if connection.id in passwords or (
                connection.id != id and next(sealed_secrets(connection.data), None) is not None
            ):
                return SEPARATOR.join(connection.path)
        return None

    def data_of(self, id: str) -> dict[str, Any]:
        """Return the stored data of a connection, with its type."""
        connection = self.stored(id)
        return {"type": connection.type, **connection.data}

    def sees_dependents(self, grant: Grant, ids: Sequence[str]) -> bool:
        """Whether the connections ``ids``, and all that run over them, are in sight."""
        dependents = self._vault.connections.with_dependents(ids)
        return len(self.visible(grant, dependents)) == len(dependents)

    def below(self, connection: Connection) -> list[Connection]:
        """Return the connections below ``connection`` that share its category, and so move with it to another one."""
        over = [id for id in self._vault.connections.with_dependents([connection.id]) if id != connection.id]
        return [
            other
            for other in self._vault.connections.infos(over)
            if other.category == connection.category and other.path[: len(connection.path)] == connection.path
        ]

    def require_place(self, grant: Grant, path: str, category: str) -> None:
        """Raise ScopeDenied if a connection ``path`` in the category with the id ``category`` would be out of sight."""
        if not grant.sees(ConnectionFacts("", path, self._category_paths([category]).get(category, ""))):
            raise ScopeDenied("The token would not see a connection of this name in this category.")

    def planned_by(self, reference: object) -> PlannedConnection | None:
        """Return the planned connection to which a value in data refers by ``{"label": …}``, or None."""
        label = reference.get("label") if isinstance(reference, Mapping) else None
        return self.planned.get(label) if isinstance(label, str) else None

    def position(self, name: str, data: Mapping[str, Any]) -> Position:
        """Return where a new connection would be by its name and data: below another one, if it is a wrapper."""
        kind = self._kind(data)
        place = Placing() if kind is None else placing(kind, data)
        parent = self._position_of(place.parent)
        above = (None if parent is None else parent.path, place.folder)
        path = SEPARATOR.join((*(part for part in above if part is not None), segment(name)))
        return Position(path, DEFAULT if parent is None else parent.category)

    def is_wrapper(self, data: Mapping[str, Any]) -> bool:
        """Return whether ``data`` belong to a wrapper: it runs a program, on the machine of the connection below."""
        return isinstance(self._kind(data), Wrapper)

    def leads_away(self, data: Mapping[str, Any]) -> bool:
        """Return whether ``data`` that belong to no wrapper lead to another host than the daemon's machine."""
        kind = self._kind(data)
        if isinstance(kind, Tunnel):
            # A tunnel that listens on the remote host leads from there to this machine.
            return not kind.listens_far
        return kind is not None and "host" in kind.schema().fields

    def signer_of(self, data: Mapping[str, Any]) -> str | None:
        """Return the signer whose certificates ``data`` log in by, if any."""
        kind = self._kind(data)
        return kind.signer(data) if isinstance(kind, ConnectionType) else None

    def is_tunnel(self, data: Mapping[str, Any]) -> bool:
        """Return whether ``data`` belong to a tunnel."""
        return isinstance(self._kind(data), Tunnel)

    def forward(self, data: Mapping[str, Any]) -> Forward | None:
        """Return where a tunnel with ``data`` listens; None if they are invalid or belong to no tunnel."""
        kind = self._kind(data)
        if not isinstance(kind, Tunnel):
            return None
        schema = kind.schema()
        # The connection that it goes through is irrelevant here, and may be given by a label.
        over = {name: LOCAL for name in data if isinstance(schema.fields.get(name), Reference)}
        try:
            return kind.forward(schema.load({name: value for name, value in data.items() if name != "type"} | over))
        except ValidationError:
            return None

    def _kind(self, data: Mapping[str, Any]) -> AnyConnectionType | None:
        return next((offered.type for offered in self._registry if offered.type.name == data.get("type")), None)

    def _position_of(self, reference: Any) -> Position | None:
        """Return the position of a connection that data name by its id or a label, or None."""
        if planned := self.planned_by(reference):
            return planned.position
        id = reference.get("storeId") if isinstance(reference, Mapping) else reference
        connections = self._vault.connections.each([id.lower()]) if isinstance(id, str) else {}
        return next(
            (
                Position(SEPARATOR.join(connection.path), connection.category)
                for connection in connections.values()
                if isinstance(connection, Connection)
            ),
            None,
        )

    def _holding(self, grant: Grant) -> set[str]:
        """Return the paths of the categories that contain a connection in sight, and the paths of their ancestors."""
        listed = self._vault.connections.listed()
        paths = self._category_paths(connection.category for connection in listed)
        holding = set()
        for connection in listed:
            path = paths.get(connection.category, "")
            if path not in holding and grant.sees(
                ConnectionFacts(connection.id, SEPARATOR.join(connection.path), path)
            ):
                parts = path.split(SEPARATOR)
                holding |= {SEPARATOR.join(parts[:depth]) for depth in range(1, len(parts) + 1)}
        return holding


def _sees(grant: Grant, facts: ConnectionFacts) -> bool:
    """Whether a connection is in sight of a token; of elevated ones only its own are, with the scope for it."""
    elevation = elevation_of(facts.id)
    if elevation is not None and (elevation.holder != grant.id or _ELEVATE.isdisjoint(grant.scopes)):
        return False
    return grant.sees(facts)
