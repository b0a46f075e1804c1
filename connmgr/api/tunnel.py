"""``/tunnel``: the states of tunnels."""

from __future__ import annotations

from connmgr import errors
from connmgr.api.connection import TUNNEL
from connmgr.api.context import caller, request_context
from connmgr.api.endpoint import Group
from connmgr.api.services import services
from connmgr.contract.message import message_of
from connmgr.contract.tunnel import TunnelFault, TunnelInfo, TunnelQueryRequest, TunnelQueryResponse
from connmgr.plugin import Tunnel
from connmgr.tunnels.table import WANTED
from connmgr.tunnels.tunnel import TunnelStatus
from connmgr.vault import Connection

group = Group("tunnel", "The states of tunnels, which `/connection/toggle` opens and keeps open.")


@group.endpoint(
    "/query",
    has_content=True,
    reads=True,
    about=("connections",),
    audited=False,
    raises=[errors.UnknownConnection, errors.NotToggleable, errors.IntegrityError],
    example={"connections": [TUNNEL]},
    answer={
        "tunnels": [
            {
                "connection": TUNNEL,
                "state": "open",
                "wanted": True,
                "address": "127.0.0.1:15432",
                "since": "2025-01-31T08:15:00.000000Z",
                "retries": 0,
                "nextRetry": None,
                "lastError": None,
                "relay": None,
                "streams": 2,
                "waiting": 0,
                "bytesIn": 48211,
                "bytesOut": 1803,
            }
        ]
    },
)
def query(request: TunnelQueryRequest) -> TunnelQueryResponse:
    """Describe tunnels: their state, where they listen, and what they have carried since they were toggled."""
    connections = services().vault.connections
    ids = request.connections
    if ids is None:
        ids = [connection.id for connection in connections.listed() if _is_tunnel(connection.type)]
        ids = services().authorisation.visible(caller(), ids)
    # Before the vault is read: a tunnel that ends with its token is first noted there as not wanted, and then closed.
    states = {id: services().tunnels.status(id) for id in ids}
    tunnels = connections.infos(ids)
    for tunnel in tunnels:
        if not _is_tunnel(tunnel.type):
            raise errors.NotToggleable(f"A connection of type {tunnel.type} is not a tunnel.")
    return TunnelQueryResponse(tunnels=[_info(tunnel, states[tunnel.id]) for tunnel in tunnels])


def _is_tunnel(type: str) -> bool:
    return any(entry.type.name == type and isinstance(entry.type, Tunnel) for entry in services().registry)


def _info(connection: Connection, status: TunnelStatus) -> TunnelInfo:
    failure = None if status.last_error is None else request_context().told(status.last_error)
    return message_of(
        TunnelInfo,
        status,
        connection=connection.id,
        wanted=connection.cache.get(WANTED) is True,
        address=status.place,
        last_error=None if failure is None else TunnelFault(code=failure.code, message=failure.message),
    )
