"""Updates the connections below a host of containers to match its containers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from connmgr.api.connection_data import ADD, ConnectionData, in_categories
from connmgr.api.context import caller, part
from connmgr.api.services import services
from connmgr.contract.connection import ConnectionAddRequest, ConnectionRefreshResponse
from connmgr.errors import InvalidRequest, OperationError
from connmgr.links.channels import children_of, holds_others
from connmgr.plugin import Child
from connmgr.vault import Connection
from connmgr.vault.batch import Addition, Batch
from connmgr.vault.names import check_name, segment

NOTHING_INSIDE = ConnectionRefreshResponse(added=[], gone=[], skipped=[])


def look_inside(id: str) -> ConnectionRefreshResponse:
    """Store a connection for each system inside ``id``, and mark the connections whose system has disappeared.

    :raises connmgr.errors.ConnmgrError: they could not be listed, or the caller may not add one.
    """
    daemon = services()
    record = daemon.vault.connections.get(id)
    if not holds_others(daemon.registry, record.type) or daemon.vault.connections.temporary.get(id) is not None:
        return NOTHING_INSIDE
    timeout = daemon.settings.start_timeout
    try:
        children = children_of(daemon.vault, daemon.registry, daemon.links, record, caller().access, timeout)
    except OperationError as error:
        daemon.vault.connections.set_states({id: {**record.state, "error": error.code}})
        raise
    below = _below(record)
    (_, categories) = in_categories(lambda: [record])
    running, strangers = _match_children(record, below.values(), children)
    additions, skipped = _additions(record, strangers, categories[record.category])
    running |= _store(additions)
    new = [id for id in running if id not in below]
    # Only what an earlier listing has found has a state `running`; a connection added by hand is not gone.
    gone = [
        connection for connection in below.values() if "running" in connection.state and connection.id not in running
    ]
    states = {id: {**_state_before(below.get(id)), "running": is_running} for id, is_running in running.items()}
    states |= {connection.id: {**connection.state, "running": False, "gone": True} for connection in gone}
    daemon.vault.connections.set_states(states)
    visible = set(daemon.authorisation.visible(caller(), [*new, *(connection.id for connection in gone)]))
    newly = [connection.id for connection in gone if not connection.state.get("gone")]
    return ConnectionRefreshResponse(
        added=[id for id in new if id in visible], gone=[id for id in newly if id in visible], skipped=skipped
    )


def _below(record: Connection) -> dict[str, Connection]:
    """Return the connections directly over ``record``, by their ids."""
    connections = services().vault.connections
    above = connections.each(
        [dependent for dependent in connections.with_dependents([record.id]) if dependent != record.id]
    )
    depth = len(record.path) + 1
    return {
        id: connection
        for id, connection in above.items()
        if isinstance(connection, Connection)
        and len(connection.path) == depth
        and record.id in connection.data.values()
    }


def _match_children(
    record: Connection, below: Iterable[Connection], children: Sequence[Child]
) -> tuple[dict[str, bool], list[Child]]:
    """Return whether the systems of connections ``below`` run, and which ``children`` have no connection.

    A connection that was changed, for example to another user, still belongs to its child.
    """
    kind = services().registry.get(record.type)
    chosen = set(kind.schema().fields) - {kind.via}
    places: dict[frozenset[tuple[str, Any]], list[str]] = {}
    shapes = {(child.type, frozenset(child.data) | chosen) for child in children}
    for connection in below:
        for type, names in shapes:
            if connection.type == type:
                places.setdefault(_place(type, names, connection.data), []).append(connection.id)
    running: dict[str, bool] = {}
    strangers: list[Child] = []
    for child in children:
        met = places.get(_place(child.type, frozenset(child.data) | chosen, child.data))
        if met is None:
            strangers.append(child)
        else:
            running |= dict.fromkeys(met, child.running)
    return running, strangers


def _place(type: str, names: Iterable[str], data: Mapping[str, Any]) -> frozenset[tuple[str, Any]]:
    return frozenset({("type", type), *((name, str(data[name])) for name in names if data.get(name))})


def _state_before(connection: Connection | None) -> Mapping[str, Any]:
    """Return the ``state`` of a connection without the members that a look inside sets."""
    return {
        name: value for name, value in (connection.state if connection else {}).items() if name not in ("gone", "error")
    }


def _additions(
    record: Connection, children: Iterable[Child], category: tuple[str, ...]
) -> tuple[list[tuple[Addition, bool]], list[str]]:
    """Return the additions for ``children``, whether each child runs, and why some cannot be stored."""
    additions: list[tuple[Addition, bool]] = []
    skipped: list[str] = []
    for child in children:
        try:
            additions.append((_addition(record, child, category), child.running))
        except InvalidRequest as error:
            skipped.append(f"{child.name!r} was found, and cannot be stored: {error.message}")
    return additions, skipped


def _addition(record: Connection, child: Child, category: tuple[str, ...]) -> Addition:
    kind = services().registry.get(child.type)
    fields = {"type": child.type, **({kind.via: record.id} if kind.via else {}), **child.data}
    data = ConnectionData.load(fields, caller().access)
    # These raise if the name is invalid.
    segment(child.name)
    check_name(child.name)
    request = ConnectionAddRequest(name=child.name, data=fields, category=record.category)
    services().authorisation.check(caller(), ADD, request)
    return Addition(child.name, child.type, data, category)


def _store(additions: Sequence[tuple[Addition, bool]]) -> dict[str, bool]:
    """Store connections for new children; return whether each child runs, by connection id."""
    vault = services().vault
    permit = partial(vault.principals.permit, access=caller().access)
    batch = Batch(additions=[addition for addition, _ in additions])
    added = vault.batches.apply(batch, permit, token=caller().token).added if additions else []
    for (addition, _), (id, is_new) in zip(additions, added, strict=True):
        if is_new:
            part({"connection": id}, added=True, name=addition.name)
    return {id: is_running for (id, _), (_, is_running) in zip(added, additions, strict=True)}
