"""``/connection/toggle``, and the endpoints by which clients of a desktop program ask for pages."""

from __future__ import annotations

from typing import Any

from connmgr import errors
from connmgr.api.account import caller
from connmgr.api.connection import group
from connmgr.api.connection_schemas import (
    ConnectionBrowseRequest,
    ConnectionTerminalRequest,
    ConnectionToggleRequest,
    ShownResponse,
)
from connmgr.api.running import EXAMPLE, OPENING
from connmgr.api.services import services
from connmgr.errors import InvalidRequest
from connmgr.links.toggle import toggle as toggle_far
from connmgr.plugin import Toggled, Tunnel
from connmgr.rights.action import Action
from connmgr.rights.limits import toggles

TUNNEL = "5c1f1a86-1d8e-4d1c-93a4-3a1f6d0c2b77"


@group.endpoint(
    "/toggle",
    ConnectionToggleRequest,
    action=Action("connection.toggle", limits=[toggles]),
    about=("connection", "state"),
    raises=[
        *OPENING,
        errors.NotToggleable,
        errors.PortInUse,
        errors.PermissionDenied,
        errors.ConnectionCycle,
        errors.StreamLimit,
    ],
    waits=True,
    example={"connection": TUNNEL, "state": True},
)
def toggle(request: dict[str, Any]) -> None:
    """Open or close a tunnel, or start or stop the system that a connection leads to.

    The answer comes after the first attempt to open a tunnel. A machine that cannot be reached now is not an error: the
    tunnel is tried again until it is toggled off, and `/tunnel/query` shows its state. `sessionEnabled` in the
    connection's `cache` stores the wanted state, which the daemon restores when it starts again. A tunnel that a token
    has toggled on ends with the token.
    """
    found, id, state = services(), request["connection"], request["state"]
    record = found.vault.connections.get(id)
    if isinstance(found.registry.get(record.type), Toggled):
        timeout = found.settings.start_timeout
        toggle_far(found.vault, found.registry, found.links, record, state, caller().access, timeout)
        found.vault.connections.set_cache(id, {**record.cache, "sessionEnabled": state})
        found.vault.connections.set_states({id: {**record.state, "running": state}})
    elif state:
        asking = caller()
        found.tunnels.start(id, asking.access, token=asking.token, has_ended=lambda: asking.ended)
    else:
        found.tunnels.stop(id)


@group.endpoint(
    "/browse",
    ConnectionBrowseRequest,
    ShownResponse,
    action="connection.browse",
    reads=True,
    about=("connection",),
    raises=[errors.UnknownConnection, errors.UnknownType, errors.IntegrityError],
    example={"connection": EXAMPLE, "directory": "/etc"},
    answer={},
)
def browse(request: dict[str, Any]) -> dict[str, Any]:
    """Ask for a page with a connection's files. There is none in this version, and the answer is empty."""
    _require_shell(request["connection"], "file system")
    return {}


@group.endpoint(
    "/terminal",
    ConnectionTerminalRequest,
    ShownResponse,
    action="connection.terminal",
    reads=True,
    about=("connection",),
    raises=[errors.UnknownConnection, errors.UnknownType, errors.IntegrityError],
    example={"connection": EXAMPLE},
    answer={},
)
def terminal(request: dict[str, Any]) -> dict[str, Any]:
    """Ask for a page with a terminal on a connection. There is none in this version, and the answer is empty.

    `/terminal/open` opens a terminal for programs.
    """
    _require_shell(request["connection"], "shell")
    return {}


def _require_shell(connection: str, what: str) -> None:
    found = services()
    kind = found.registry.get(found.vault.connections.get(connection).type)
    if isinstance(kind, Tunnel) or kind.usage_category == "group":
        raise InvalidRequest(f"connection: Type {kind.name} is not a {what} connection.")
