"""Publishes changes of connections and categories, with the facts that tell who may hear of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from connmgr.api.listeners import Move
from connmgr.api.services import services
from connmgr.contract.event import CATEGORY, CONNECTION
from connmgr.errors import ConnmgrError
from connmgr.rights.grant import ConnectionFacts
from connmgr.vault.connections import Removed
from connmgr.vault.names import SEPARATOR

Facts = Mapping[str, ConnectionFacts]
"""What rights know of connections, by their ids."""


def facts_of(ids: Iterable[str]) -> Facts:
    """Return what rights know of connections and of those over them, before a change."""
    connections = services().vault.connections
    return services().authorisation.visibility.current(connections.with_dependents(ids))


def facts_of_all() -> Facts:
    """Return what rights know of all stored connections, before a change of categories."""
    return services().authorisation.visibility.current([one.id for one in services().vault.connections.listed()])


def publish_changes(before: Facts, changed: Collection[str]) -> None:
    """Publish which connections were added, changed or removed, since there were those ``before``.

    ``changed`` are those that were added or changed; others, below them or in a category, may have moved.
    """
    publish = services().events.publish
    try:
        after = services().authorisation.visibility.current({*before, *changed})
    except ConnmgrError:
        # The change is made, and its answer must not say otherwise: what is known is told.
        for id in changed:
            publish(CONNECTION, "changed", id)
        return
    for id in dict.fromkeys([*before, *changed]):
        was, now = before.get(id), after.get(id)
        if now is None:
            if was is not None:
                publish(CONNECTION, "removed", id, facts=Move(was), name=was.path)
        elif was is None:
            publish(CONNECTION, "added", id, name=now.path)
        elif id in changed or was != now:
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
    kept = {id: facts for id, facts in before.items() if id not in set(removed.connections)}
    publish_changes(kept, ())


def publish_categories(made: Mapping[tuple[str, ...], str]) -> None:
    """Publish new categories, by their paths without the root."""
    for path, id in made.items():
        services().events.publish(CATEGORY, "added", id=id, name=SEPARATOR.join(path))
