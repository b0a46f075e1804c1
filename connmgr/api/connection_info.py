"""Stored connections as the API shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, TypeVar

from connmgr import errors
from connmgr.api.account import caller
from connmgr.api.schemas import UtcTime
from connmgr.api.services import services
from connmgr.links.chain import locked
from connmgr.links.route import dialled
from connmgr.plugin import Logged
from connmgr.vault import Connection
from connmgr.vault.elevated import elevation_of
from connmgr.vault.query import Listed

Placed = TypeVar("Placed", Connection, Listed)


def in_categories(read: Callable[[], list[Placed]]) -> tuple[list[Placed], dict[str, list[str]]]:
    """Return the connections that ``read`` returns, and the paths of their categories without the root."""
    for last in (False, True):
        connections = read()
        try:
            categories = services().vault.categories.infos(list({connection.category for connection in connections}))
        except errors.UnknownCategory:
            # The category was removed meanwhile, and its connections have moved.
            if last:
                raise
        else:
            break
    return connections, {category.id: list(category.path[1:]) for category in categories}


def dialled_hosts(connection: Connection) -> dict[str, Any]:
    """Return the hosts that would be dialled for a connection, or the error that prevents an answer."""
    try:
        hosts = dialled(services().vault, services().registry, connection)
    except errors.ConnmgrError as error:
        return {"error": {"code": error.code, "message": error.message}}
    # A token must not learn which files are on the daemon's machine.
    shows_files = caller().grant is None
    return {"hosts": [{**asdict(host), "identities": list(host.identities) if shows_files else []} for host in hosts]}


def locked_ones(connections: Iterable[str]) -> set[str]:
    """Return those of ``connections`` that the caller cannot open: it is not shown what others run there."""
    distinct = set(connections)
    return locked(services().vault, services().registry, distinct, caller().access) if distinct else distinct


def log_command(connection: Connection, *, follow: bool, lines: int | None) -> dict[str, Any] | None:
    """Return the command that prints the log of the connection's system, None if there is none."""
    try:
        kind: Any = services().registry.get(connection.type)
    except errors.UnknownType:
        return None
    argv = kind.log(connection.data, follow=follow, lines=lines) if isinstance(kind, Logged) else None
    return None if argv is None else {"connection": connection.data[kind.via], "argv": list(argv)}


def usage_categories() -> dict[str, str]:
    """Return the usage category of each installed type."""
    return {entry.type.name: entry.type.usage_category for entry in services().registry}


def described(connection: Connection, category: list[str], usage: str | None) -> dict[str, Any]:
    """Return a connection as `/connection/info` shows it, ready for JSON."""
    data = connection.data
    if elevation_of(connection.id) is not None:
        # The password is that of another entry, and nobody gets it by way of this one, not even sealed.
        data = {name: value for name, value in data.items() if name != "password"}
    return {
        "connection": connection.id,
        "category": category,
        "name": list(connection.path),
        "type": connection.type,
        "rawData": {"type": connection.type, **data},
        "usageCategory": usage,
        "lastUsed": UtcTime.text(connection.last_used),
        "lastModified": UtcTime.text(connection.last_modified),
        "state": connection.state,
        "cache": connection.cache,
    }
