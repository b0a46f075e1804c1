"""``/tunnel``: the states of tunnels."""

from __future__ import annotations

from typing import Any

from marshmallow import fields

from connmgr import errors
from connmgr.api.account import caller
from connmgr.api.group import Group
from connmgr.api.schemas import Id, Ids, UtcTime
from connmgr.api.services import services
from connmgr.api.toggle import TUNNEL
from connmgr.fields import Schema
from connmgr.plugin import Tunnel
from connmgr.tunnels.table import WANTED
from connmgr.vault import Connection

group = Group("tunnel", "The states of tunnels, which `/connection/toggle` opens and keeps open.")


class TunnelQueryRequest(Schema):
    connections = Ids(metadata={"description": "Only these tunnels. Without it: all that the caller sees."})


class TunnelFault(Schema):
    code = fields.String(required=True, metadata={"description": "The error's code."})
    message = fields.String(required=True, metadata={"description": "For a person."})


class TunnelInfo(Schema):
    connection = Id(required=True, metadata={"description": "The tunnel's connection."})
    state = fields.String(
        required=True,
        metadata={
            "description": "`stopped`; `connecting`, for the first time; `open`; `retrying`, after it was lost or "
            "could not be opened; `failed`: it is tried again only when it is toggled."
        },
    )
    wanted = fields.Boolean(required=True, metadata={"description": "`sessionEnabled`: whether it shall be open."})
    address = fields.String(
        required=True,
        allow_none=True,
        metadata={"description": "Where it listens, as `HOST:PORT`; on the far side for `sshRemoteTunnel`."},
    )
    since = UtcTime(required=True, allow_none=True, metadata={"description": "Since when it is in this state."})
    retries = fields.Integer(required=True, metadata={"description": "Attempts that have failed since it was open."})
    nextRetry = UtcTime(required=True, allow_none=True, metadata={"description": "When the next attempt begins."})
    lastError = fields.Nested(
        TunnelFault,
        required=True,
        allow_none=True,
        metadata={"description": "The last error, of the tunnel or of one of its streams."},
    )
    relay = fields.String(
        required=True,
        allow_none=True,
        metadata={"description": "The program on the far side that dials, if the connection carries no TCP streams."},
    )
    streams = fields.Integer(required=True, metadata={"description": "Connections that it carries."})
    waiting = fields.Integer(
        required=True, metadata={"description": "Clients that wait until the tunnel is open again."}
    )
    bytesIn = fields.Integer(required=True, metadata={"description": "Bytes received from the far side."})
    bytesOut = fields.Integer(required=True, metadata={"description": "Bytes sent to the far side."})


class TunnelQueryResponse(Schema):
    tunnels = fields.List(fields.Nested(TunnelInfo), required=True, metadata={"description": "In the order asked."})


@group.endpoint(
    "/query",
    TunnelQueryRequest,
    TunnelQueryResponse,
    action="tunnel.query",
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
def query(request: dict[str, Any]) -> dict[str, Any]:
    """Describe tunnels: their state, where they listen, and what they have carried since they were toggled."""
    connections = services().vault.connections
    if "connections" in request:
        found = connections.infos(request["connections"])
        for one in found:
            if not _is_tunnel(one.type):
                raise errors.NotToggleable(f"A connection of type {one.type} is not a tunnel.")
    else:
        ids = [one.id for one in connections.listed() if _is_tunnel(one.type)]
        found = connections.infos(services().authorisation.visible(caller(), ids))
    return {"tunnels": [_shown(one) for one in found]}


def _is_tunnel(type: str) -> bool:
    return any(entry.type.name == type and isinstance(entry.type, Tunnel) for entry in services().registry)


def _shown(connection: Connection) -> dict[str, Any]:
    status = services().tunnels.status(connection.id)
    code_and_message = status.last_error
    return {
        "connection": connection.id,
        "state": status.state,
        "wanted": connection.cache.get(WANTED) is True,
        "address": None if status.address is None else _address(*status.address),
        "since": status.since,
        "retries": status.retries,
        "nextRetry": status.next_retry,
        "lastError": code_and_message and dict(zip(("code", "message"), code_and_message, strict=True)),
        "relay": status.relay,
        "streams": status.streams,
        "waiting": status.waiting,
        "bytesIn": status.bytes_in,
        "bytesOut": status.bytes_out,
    }


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
