"""Connections in requests and answers: their data, validated by its type and with secrets sealed; their descriptions;
what their change or removal ends, and which events tell of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from marshmallow import ValidationError

from connmgr import errors
from connmgr.api.body import describe
from connmgr.api.context import caller, detail, part
from connmgr.api.listeners import Move
from connmgr.api.services import services
from connmgr.computing import in_pieces
from connmgr.contract.connection import (
    ConnectionAddRequest,
    ConnectionInfo,
    ConnectionUpdateRequest,
    DialledHost,
    DialledHosts,
    LogCommand,
)
from connmgr.contract.event import CATEGORY, CONNECTION
from connmgr.contract.message import message_of
from connmgr.errors import IntegrityError, InvalidRequest, SecretLocked
from connmgr.fields import Schema, map_references, map_secrets, references
from connmgr.links.chain import locked_connections, route_hosts
from connmgr.plugin import AnyConnectionType, Logged
from connmgr.rights.actions import (
    Action,
    changes_what_others_need,
    chooses_certificates,
    chooses_data,
    chooses_list,
    draws_fetched_secrets,
    draws_secrets,
    escapes_rules,
    moves_out_of_sight,
    puts_out_of_sight,
)
from connmgr.rights.grant import ConnectionFacts
from connmgr.secrets.principals import Access
from connmgr.vault import Connection, connection_rows
from connmgr.vault.connection_rows import placing, sealed_secrets
from connmgr.vault.connections import Removed
from connmgr.vault.names import SEPARATOR, base_of, elevation_of
from connmgr.vault.search import Listed

ADD: Action[ConnectionAddRequest] = Action(
    "connection.add",
    limits=[escapes_rules, chooses_data, chooses_certificates, chooses_list, puts_out_of_sight, draws_secrets],
)
UPDATE: Action[ConnectionUpdateRequest] = Action(
    "connection.update",
    limits=[
        escapes_rules,
        chooses_data,
        chooses_certificates,
        chooses_list,
        changes_what_others_need,
        moves_out_of_sight,
        draws_fetched_secrets,
        draws_secrets,
    ],
)

Placed = TypeVar("Placed", Connection, Listed)

_BLANK = "secret"
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, repr=False)
class ConnectionData:
    """The ``data`` of a request, loaded by its type's schema. Only ``_plain`` has secrets in plain text."""

    kind: AnyConnectionType
    sealed: dict[str, Any]
    references: list[str]
    """The connections that it runs over."""
    parent: str | None
    """The connection that a wrapper or tunnel belongs to: its path begins with that connection's path."""
    folder: str | None
    """The folder between that path and its own name."""
    fingerprint: bytes
    _plain: dict[str, Any]
    _access: Access

    @classmethod
    def load(
        cls,
        data: Mapping[str, Any],
        access: Access,
        *,
        kind: str | None = None,
        at: str = "data",
        labels: Mapping[str, str] | None = None,
    ) -> ConnectionData:
        """Validate ``data`` completely, seal its plain secrets and open its sealed ones for comparison.

        ``kind`` is the required type, if any; ``at`` is the place in the request, for messages. ``labels`` maps
        ``{"label": …}`` in place of a connection to an id.
        :raises InvalidRequest: a field that the type refuses, named by its path.
        :raises UnknownType: no plugin offers its type.
        :raises SecretLocked: ``access`` may not open a sealed secret.
        :raises IntegrityError: a secret was changed after it was sealed.
        """
        type = _type(data, kind, at)
        schema = type.schema()
        fields = {key: value for key, value in data.items() if key != "type"}
        if labels is not None:
            fields = map_references(schema, fields, lambda value: _labelled(value, labels, at))
        try:
            loaded = services().registry.sources.loaded(schema, fields)
        except ValidationError as error:
            messages: Any = error.messages
            raise InvalidRequest(describe(messages, at)) from None
        principals = services().vault.principals
        return cls(
            kind=type,
            **_derived(type, schema, loaded),
            _plain=map_secrets(
                schema,
                loaded,
                services().registry.sources.inside(lambda s: s if isinstance(s, str) else principals.unseal(s, access)),
            ),
            sealed=map_secrets(
                schema,
                loaded,
                services().registry.sources.inside(lambda s: principals.seal(s, access) if isinstance(s, str) else s),
            ),
            _access=access,
        )

    def moved(self, ids: Mapping[str, str]) -> ConnectionData:
        """Return a copy that refers to ``ids[id]`` wherever this one refers to ``id``."""
        schema = self.kind.schema()
        sealed, plain = (
            map_references(schema, data, lambda id: ids.get(id, id)) for data in (self.sealed, self._plain)
        )
        return replace(self, **_derived(self.kind, schema, sealed), sealed=sealed, _plain=plain)

    def equals(self, stored: Mapping[str, Any]) -> bool:
        """Whether the ``stored`` data of a connection of this type, with the same fingerprint, has the same secrets.

        False if the caller may not open them: otherwise adding connections would reveal other users' secrets.
        """
        principals, grant = services().vault.principals, caller().grant
        if grant is not None and "secret.decrypt" not in grant.scopes and next(sealed_secrets(stored), None):
            return False
        try:
            plain = map_secrets(
                self.kind.schema(),
                stored,
                services().registry.sources.inside(lambda secret: principals.unseal(secret, self._access)),
            )
        except (SecretLocked, IntegrityError):
            return False
        return bool(connection_rows.without_nulls(plain) == connection_rows.without_nulls(self._plain))


def require_ids(connections: Iterable[str]) -> None:
    """Raise :class:`connmgr.errors.UnknownConnection` for a text that no connection has as its id, stored or not."""
    for id in connections:
        if not _UUID.fullmatch(base_of(id)):
            raise errors.UnknownConnection(id)


def changed_fields(stored: Connection, changes: Mapping[str, Any]) -> list[str]:
    """Return the names of the fields that ``changes`` change; a newly given secret counts as changed."""
    own = [
        name for name in ("name", "category", "labels") if name in changes and changes[name] != getattr(stored, name)
    ]
    data = changes.get("data", stored.data)
    fields = sorted(name for name in {*stored.data, *data} if stored.data.get(name) != data.get(name))
    return [*own, *(f"data.{name}" for name in fields)]


def _derived(type: AnyConnectionType, schema: Schema, loaded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values derived from loaded data, whether its secrets are sealed or not."""
    place = placing(type, loaded)
    return {
        "references": references(schema, loaded),
        "parent": place.parent,
        "folder": place.folder,
        "fingerprint": connection_rows.fingerprint(map_secrets(schema, loaded, lambda _: _BLANK)),
    }


def _labelled(value: Any, labels: Mapping[str, str], at: str) -> Any:
    if not isinstance(value, Mapping) or set(value) != {"label"} or not isinstance(value["label"], str):
        return value
    if value["label"] not in labels:
        raise InvalidRequest(f"{at}: No entry before this one has the label {value['label']!r}.")
    return labels[value["label"]]


def _type(data: Mapping[str, Any], settled: str | None, at: str) -> AnyConnectionType:
    name = data.get("type")
    if name is None:
        raise InvalidRequest(f"{at}.type: Missing data for required field.")
    if not isinstance(name, str):
        raise InvalidRequest(f"{at}.type: Not a valid string.")
    if settled is not None and name != settled:
        raise InvalidRequest(f"{at}.type: The type of a connection cannot be changed: {settled}.")
    return services().registry.get(name)


def in_categories(read: Callable[[], list[Placed]]) -> tuple[list[Placed], dict[str, tuple[str, ...]]]:
    """Return the connections that ``read`` returns, and the paths of their categories without the root."""
    for last in (False, True):
        connections = read()
        try:
            categories = services().vault.categories.infos(
                list({connection.category for connection in in_pieces(connections)})
            )
        except errors.UnknownCategory:
            # The category was removed meanwhile, and its connections have moved.
            if last:
                raise
        else:
            break
    return connections, {category.id: category.path[1:] for category in categories}


def dialled_hosts(connection: Connection) -> DialledHosts:
    """Return the hosts that would be dialled for a connection, or the error that prevents an answer."""
    try:
        hosts = route_hosts(services().vault, services().registry, connection)
    except errors.ConnmgrError as error:
        return DialledHosts(error={"code": error.code, "message": error.message})
    # A token must not learn which files are on the daemon's machine.
    shows_files = caller().grant is None
    return DialledHosts(
        hosts=[message_of(DialledHost, host, identities=host.identities if shows_files else ()) for host in hosts]
    )


def locked_ones(connections: Iterable[str]) -> set[str]:
    """Return those of ``connections`` that the caller cannot open: it is not shown what others run there."""
    distinct = set(connections)
    return (
        locked_connections(services().vault, services().registry, distinct, caller().access) if distinct else distinct
    )


def log_command(connection: Connection, *, follow: bool, lines: int | None) -> LogCommand | None:
    """Return the command that prints the log of the connection's system, None if there is none."""
    try:
        kind: Any = services().registry.get(connection.type)
    except errors.UnknownType:
        return None
    argv = kind.log(connection.data, follow=follow, lines=lines) if isinstance(kind, Logged) else None
    return None if argv is None else LogCommand(connection=connection.data[kind.via], argv=list(argv))


def usage_categories() -> dict[str, str]:
    """Return the usage category of each installed type."""
    return {entry.type.name: entry.type.usage_category for entry in services().registry}


def described(connection: Connection, category: tuple[str, ...], usage: str | None, **more: Any) -> ConnectionInfo:
    """Return a connection as `/connection/info` shows it, with ``more`` of its fields."""
    data = connection.data
    if elevation_of(connection.id) is not None:
        # The password is that of another entry, and nobody gets it by way of this one, not even sealed.
        data = {name: value for name, value in data.items() if name != "password"}
    # Field by field: thousands of connections may be described at once.
    return ConnectionInfo(
        id=connection.id,
        category=category,
        name=connection.path,
        type=connection.type,
        raw_data={"type": connection.type, **data},
        usage=usage,
        last_used=connection.last_used,
        last_modified=connection.last_modified,
        state=connection.state,
        cache=connection.cache,
        labels=connection.labels,
        **more,
    )


def see_off(removed: Removed, named: Collection[str] = ()) -> None:
    """Record all removed connections besides ``named``, remove their jobs from the remote hosts, and end their shells.

    :raises connmgr.errors.ShellBusy: a shell is still being started or stopped, and ends after that.
    """
    # The audit log names its subjects, and the vault does not know these any more.
    services().subject_names.remember(removed.paths)
    for connection in removed.connections:
        if connection not in named:
            part({"connection": connection}, removed=True)
    for category in removed.categories:
        part({"category": category}, removed=True)
    if removed.jobs:
        # Before the shells, because the links end with them.
        detail(jobs=sum(map(len, removed.jobs.values())), jobsLeft=services().orphans.clear(removed.jobs))
    services().sockets.forget(removed.connections)
    end_what_runs(removed.connections)


def end_what_runs(connections: Iterable[str]) -> None:
    """End the terminals, pipes, tunnels and shells of connections that were removed or changed.

    :raises connmgr.errors.ShellBusy: a shell is still being started or stopped, and ends after that.
    """
    ended = list(connections)
    # Nobody names the elevated ones over them.
    ended += services().vault.connections.sudo_passwords.over(set(ended))
    services().terminals.forget(ended)
    services().streams.forget(ended)
    services().tunnels.forget(ended, caller().token)
    services().shells.forget(ended)


Facts = Mapping[str, ConnectionFacts]
"""What rights know of connections, by their ids."""


def facts_of(ids: Iterable[str]) -> Facts:
    """Return what rights know of connections and of those over them, before a change."""
    connections = services().vault.connections
    return services().authorisation.visibility.current(connections.with_dependents(ids))


def facts_of_all() -> Facts:
    """Return what rights know of all stored connections, before a change of categories."""
    return services().authorisation.visibility.current(
        [connection.id for connection in services().vault.connections.listed()]
    )


def publish_changes(before: Facts, changed: Collection[str]) -> None:
    """Publish which connections were added, changed or removed, since there were those ``before``.

    ``changed`` are those that were added or changed; others, below them or in a category, may have moved.
    """
    publish = services().events.publish
    try:
        after = services().authorisation.visibility.current({*before, *changed})
    except errors.ConnmgrError:
        # The change is made, and its answer must not say otherwise: what is known is told.
        for id in changed:
            publish(CONNECTION, "changed", id)
        return
    changed_ids = set(changed)
    for id in in_pieces(dict.fromkeys([*before, *changed])):
        was, now = before.get(id), after.get(id)
        if now is None:
            if was is not None:
                publish(CONNECTION, "removed", id, facts=Move(was), name=was.path)
        elif was is None:
            publish(CONNECTION, "added", id, name=now.path)
        elif id in changed_ids or was != now:
            publish(CONNECTION, "changed", id, facts=Move(was), name=now.path)


def publish_removed(removed: Removed, before: Facts) -> None:
    """Publish the removal of connections and categories that there were ``before``."""
    publish = services().events.publish
    for id in removed.connections:
        was = before.get(id)
        named = {} if was is None else {"name": was.path}
        publish(CONNECTION, "removed", id, facts=None if was is None else Move(was), **named)
    for id in removed.categories:
        path = removed.paths.get(id)
        named = {} if path is None else {"name": path.partition(SEPARATOR)[2]}
        publish(CATEGORY, "removed", id=id, facts=path or "", **named)
    remaining = {id: facts for id, facts in before.items() if id not in set(removed.connections)}
    publish_changes(remaining, ())


def publish_categories(made: Mapping[tuple[str, ...], str]) -> None:
    """Publish new categories, by their paths without the root."""
    for path, id in made.items():
        services().events.publish(CATEGORY, "added", id=id, name=SEPARATOR.join(path))
