"""``/connection/apply``: many changes of categories and connections, all of them or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from connmgr import errors
from connmgr.api.body import LISTED_VALUES
from connmgr.api.category import ADD as ADD_CATEGORY
from connmgr.api.connection import REMOVE, SSH
from connmgr.api.connection_data import (
    ADD,
    UPDATE,
    ConnectionData,
    changed_fields,
    end_what_runs,
    facts_of,
    publish_categories,
    publish_changes,
    publish_removed,
    see_off,
)
from connmgr.api.context import caller, detail, part
from connmgr.api.endpoint import Group
from connmgr.api.services import services
from connmgr.contract.category import CategoryAddRequest
from connmgr.contract.connection import (
    AddOutcome,
    ApplyRequest,
    ApplyResponse,
    ConnectionAddRequest,
    ConnectionRemoveRequest,
    ConnectionUpdateRequest,
    EntryToChange,
)
from connmgr.errors import InvalidRequest
from connmgr.rights.visibility import PlannedConnection
from connmgr.vault import Connection
from connmgr.vault.batch import Addition, Applied, Batch, Change, as_fields

group = Group("apply", "Many connections and categories at once.", prefix="/connection")

LABELLED = {"label": "bastion"}


@group.endpoint(
    "/apply",
    has_content=True,
    most_values=LISTED_VALUES,
    raises=[
        errors.UnknownType,
        errors.UnknownConnection,
        errors.SecretLocked,
        errors.ConnectionCycle,
        errors.ConnectionChanged,
        errors.ProtectedEntry,
        errors.IntegrityError,
        errors.ShellBusy,
    ],
    waits=True,
    example={
        "categories": [["customers"]],
        "add": [
            {"label": "bastion", "name": "bastion", "data": {"type": "ssh", "host": "bastion.example.org"}},
            {"name": "build", "data": {**SSH, "gateway": LABELLED}, "category": ["customers", "acme"]},
        ],
    },
    answer={
        "added": [
            {"connection": "3b0e7a52-6a0e-4f3c-9f0a-0f6f1d0c9a11", "added": True},
            {"connection": "9f2b1e74-51c3-4f0b-8a46-2f1d6c0c7f10", "added": True},
        ],
        "removed": [],
    },
)
def apply(request: ApplyRequest) -> ApplyResponse:
    """Add, change and remove many connections at once, and create the categories that they need.

    Either all changes are stored, in one step, or none. Connections are added, changed and removed as by
    `/connection/add`, `/connection/update` and `/connection/remove`, but none is opened first. New data stops the
    shells of a connection and of all connections over it. Authorising plugins and the audit log see each change as an
    action of its own: `connection.add`, `connection.update`, `connection.remove`, `category.add`.
    """
    daemon = services()
    if daemon.authorisation.concerns(caller()):
        _authorise(request)
    stored = {info.id: info for info in daemon.vault.connections.infos(_distinct(request.change))}
    batch = _batch(request, stored)
    permits = partial(daemon.vault.principals.permit, access=caller().access)
    before = facts_of([*stored, *request.remove])
    # A connection that a token has set stays marked where only a list of hosts gave it data: what the token chose of
    # it, such as its gateway, is still there, and no owner has looked.
    sets: str | Literal[False] | None = False if caller().is_inventory else caller().token
    # The answer must not tell that there is an equivalent connection out of sight.
    applied = daemon.vault.batches.apply(
        batch, permits, lambda id: bool(daemon.authorisation.visible(caller(), [id])), sets
    )
    _record(batch, applied, stored)
    publish_categories(applied.made)
    fresh = [id for id, is_new in applied.added if is_new]
    gone = set(applied.removed.connections)
    publish_changes({id: facts for id, facts in before.items() if id not in gone}, [*fresh, *stored])
    publish_removed(applied.removed, {id: facts for id, facts in before.items() if id in gone})
    end_what_runs(applied.stale)
    see_off(applied.removed)
    return ApplyResponse(
        added=[AddOutcome(connection=id, added=new) for id, new in applied.added],
        removed=list(applied.removed.connections),
    )


def _distinct(changes: Sequence[EntryToChange]) -> list[str]:
    ids = [entry.connection for entry in changes]
    if len(set(ids)) < len(ids):
        raise InvalidRequest("change: Two entries are about the same connection.")
    return ids


def _batch(request: ApplyRequest, stored: Mapping[str, Connection]) -> Batch:
    load = partial(ConnectionData.load, access=caller().access)
    labels: dict[str, str] = {}
    additions = []
    for number, entry in enumerate(request.add):
        data = load(entry.data, at=f"add.{number}.data", labels=labels)
        category = None if entry.category is None else tuple(entry.category)
        addition = Addition(entry.name, data.kind.name, data, category, entry.labels)
        additions.append(addition)
        if entry.label is not None:
            labels[entry.label] = addition.id
    changes = []
    for number, change in enumerate(request.change):
        kind, new = stored[change.connection].type, change.data
        content = None if new is None else load(new, kind=kind, at=f"change.{number}.data", labels=labels)
        category = None if change.category is None else tuple(change.category)
        known = change.last_modified
        changes.append(Change(change.connection, change.name, content, category, change.labels, known))
    return Batch([tuple(path) for path in request.categories], additions, changes, list(request.remove))


def _record(batch: Batch, applied: Applied, stored: Mapping[str, Connection]) -> None:
    """Give the audit log an entry for each connection and category that ``see_off`` does not record."""
    for path, id in applied.made.items():
        part({"category": id}, added=True, name="/".join(path))
    for addition, (id, new) in zip(batch.additions, applied.added, strict=True):
        part({"connection": id}, added=new, name=addition.name)
    for change in batch.changes:
        fields: dict[str, Any] = {} if change.name is None else {"name": change.name}
        fields |= {} if change.labels is None else {"labels": change.labels}
        fields |= {} if change.category is None else {"category": applied.categories[change.category]}
        fields |= {} if change.content is None else as_fields(change.content)
        moved = applied.moved[change.id]
        part(
            {"connection": change.id},
            changed=changed_fields(stored[change.id], fields),
            **({"moved": list(moved)} if moved else {}),
        )
    fresh = [id for id, added in applied.added if added]
    detail(added=len(fresh), changed=len(batch.changes), removed=len(applied.removed.connections))


def _authorise(request: ApplyRequest) -> None:
    """Ask for each part of a request as for the request of its own endpoint; raise as authorisation does.

    A category that is missing, or out of sight, counts as the nearest one above it that is neither.
    """
    authorisation, sender = services().authorisation, caller()
    named = [*(entry.category for entry in request.add), *(entry.category for entry in request.change)]
    paths = [tuple(path) for path in (*request.categories, *named) if path is not None]
    every = dict.fromkeys(path[:depth] for path in paths for depth in range(len(path) + 1))
    existing = services().vault.categories.by_path(every)
    seen = set(authorisation.visible_categories(sender, existing.values()))
    # The answer must not tell a category out of sight from one that does not exist.
    ids = {path: id for path, id in existing.items() if id in seen or not path}
    for path in paths:
        for above in () if path in ids else (path[:depth] for depth in range(1, len(path) + 1)):
            if above not in ids:
                ids[above] = ids[above[:-1]]
                authorisation.check(sender, ADD_CATEGORY, CategoryAddRequest(name=above[-1], parent=ids[above]))
    planned: dict[str, PlannedConnection] = {}
    for entry in request.add:
        category = None if entry.category is None else ids[tuple(entry.category)]
        addition = ConnectionAddRequest(name=entry.name, data=entry.data, category=category, labels=entry.labels)
        authorisation.check(sender, ADD, addition, planned)
        if entry.label is not None:
            visibility = authorisation.visibility.with_planned(planned)
            position = visibility.position(entry.name, entry.data)
            position = position._replace(category=category or position.category)
            over = authorisation.subjects(addition, visibility).connections
            # Later entries may run over this one, which the vault does not know yet.
            planned[entry.label] = PlannedConnection(position, over)
    for change in request.change:
        category = None if change.category is None else ids[tuple(change.category)]
        update = ConnectionUpdateRequest(
            connection=change.connection,
            name=change.name,
            data=change.data,
            category=category,
            labels=change.labels,
        )
        authorisation.check(sender, UPDATE, update, planned)
    if request.remove:
        authorisation.check(sender, REMOVE, ConnectionRemoveRequest(connections=list(request.remove)))
