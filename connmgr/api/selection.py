"""The connections that a request is about, which names them or chooses them by filters and a condition."""

from __future__ import annotations

from connmgr import errors
from connmgr.api.context import caller
from connmgr.api.services import services
from connmgr.contract.common import Selecting
from connmgr.vault import Connection


def selected(request: Selecting, *, most: int, what: str) -> list[str]:
    """Return the ids of the connections that ``request`` is about, each once, and of those that the caller sees.

    Named ones are not looked up. ``what`` names the request in the error for more than ``most``.
    :raises connmgr.errors.InvalidRequest: they are more.
    :raises connmgr.errors.IntegrityError: a compared category or fact was changed outside of connmgr.
    """
    if request.connections is not None:
        ids = list(dict.fromkeys(request.connections))
    else:
        category, path, type = (
            filter or "*" for filter in (request.category_filter, request.connection_filter, request.type_filter)
        )
        found = services().vault.connections.query(category, path, type, where=request.where)
        ids = services().authorisation.visible(caller(), found)
    if len(ids) > most:
        raise errors.InvalidRequest(f"{len(ids):,} connections; {what} takes {most:,} at most.")
    return ids


def with_shells(stored: dict[str, Connection | errors.IntegrityError]) -> set[str]:
    """Return the ids of those connections whose types have shells, or whose type cannot be read."""
    kinds = {entry.type.name for entry in services().registry if entry.type.usage_category == "shell"}
    return {id for id, one in stored.items() if not isinstance(one, Connection) or one.type in kinds}
