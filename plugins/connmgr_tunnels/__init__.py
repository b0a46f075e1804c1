"""The connection types of tunnels: local ports that lead to another machine, and ports there that lead here.

A type says which port to listen on and where it leads; the daemon listens, dials and keeps the tunnel open.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from connmgr.plugin import (
    Boolean,
    Forward,
    Integer,
    Length,
    Nested,
    OneOf,
    Range,
    Reference,
    Schema,
    Text,
    Tunnel,
    ValidationError,
    hookimpl,
)

LOOPBACK = "127.0.0.1"
_PORT = Range(1, 65535)
_FREE_OR_PORT = Range(0, 65535)
_LOCAL_MACHINE = "f0ec68aa-63f5-405c-b178-9a4454556d6b"


def _host(value: str) -> None:
    # A name that begins with a hyphen would be an option of the programs that relay where the transport carries no TCP.
    if not value or len(value) > 255 or value.startswith("-") or not value.isprintable() or " " in value:
        raise ValidationError("Not the name or address of a host.")


def _address(value: str) -> None:
    if value == "localhost":
        return
    try:
        ipaddress.ip_address(value)
    except ValueError:
        raise ValidationError("Not an address to listen on: an IP address, or localhost.") from None


def _through() -> Reference:
    return Reference(required=True, metadata={"description": "The connection that it goes through."})


def _auto_start() -> Boolean:
    return Boolean(load_default=False, metadata={"description": "Whether it is opened whenever the daemon starts."})


def _local_port() -> Integer:
    return Integer(
        allow_none=True,
        load_default=None,
        validate=_FREE_OR_PORT,
        metadata={"description": "The port here. Without it, or 0: a free one at each opening."},
    )


def _bind(where: str) -> Text:
    return Text(
        load_default=LOOPBACK,
        validate=_address,
        metadata={"description": f"The address to listen on {where}; others than loopback let other machines in."},
    )


class ProtocolSchema(Schema):
    """The protocol of a service, for programs that show it."""

    type = Text(
        required=True,
        validate=OneOf(["none", "http", "https", "custom"]),
        metadata={"description": "none, http, https or custom."},
    )
    path = Text(allow_none=True, validate=Length(0, 2048), metadata={"description": "The path of its page."})
    commandTemplate = Text(
        allow_none=True, validate=Length(0, 4096), metadata={"description": "What opens a custom one; never run here."}
    )


class CustomServiceSchema(Schema):
    """The fields of a service."""

    host = _through()
    remotePort = Integer(required=True, validate=_PORT, metadata={"description": "The service's port."})
    localPort = _local_port()
    address = Text(
        load_default="localhost",
        validate=_host,
        metadata={"description": "The service's host, as that machine names it."},
    )
    serviceProtocolType = Nested(ProtocolSchema, allow_none=True, metadata={"description": "What it speaks."})
    autoStart = _auto_start()


class LocalTunnelSchema(Schema):
    """The fields of a tunnel from here."""

    host = _through()
    remotePort = Integer(required=True, validate=_PORT, metadata={"description": "The port that it leads to."})
    remoteHost = Text(
        load_default="localhost",
        validate=_host,
        metadata={"description": "The host that it leads to, as the remote host names it."},
    )
    localPort = _local_port()
    bindAddress = _bind("here")
    autoStart = _auto_start()


class RemoteTunnelSchema(Schema):
    """The fields of a tunnel from the remote host."""

    host = _through()
    remotePort = Integer(
        load_default=0,
        validate=_FREE_OR_PORT,
        metadata={"description": "The port there; 0 for a free one at each opening."},
    )
    bindAddress = _bind("there")
    localPort = Integer(required=True, validate=_PORT, metadata={"description": "The port that it leads to."})
    localHost = Text(
        load_default=LOOPBACK,
        validate=_host,
        metadata={"description": "The host that it leads to, as the daemon's machine names it."},
    )
    autoStart = _auto_start()


class DynamicTunnelSchema(Schema):
    """The fields of a SOCKS server."""

    host = _through()
    localPort = _local_port()
    bindAddress = _bind("here")
    autoStart = _auto_start()


class CustomService(Tunnel):
    """A service of another machine, on a loopback port of this one."""

    name = "customService"
    description = "A service of a connection's machine, brought to a loopback port of this one."
    schema = CustomServiceSchema
    example: ClassVar[Mapping[str, Any]] = {"host": _LOCAL_MACHINE, "remotePort": 5432, "localPort": 15432}
    via = "host"
    folder = "services"

    def forward(self, data: Mapping[str, Any]) -> Forward:
        return Forward(LOOPBACK, data["localPort"] or 0, (data["address"], data["remotePort"]), data["autoStart"])


class LocalTunnel(Tunnel):
    """A port of this machine that leads to a host and port that the remote host reaches, as with ``ssh -L``."""

    name = "sshLocalTunnel"
    description = "A port of this machine that leads to a host and port which the remote host reaches."
    schema = LocalTunnelSchema
    example: ClassVar[Mapping[str, Any]] = {
        "host": _LOCAL_MACHINE,
        "remoteHost": "db.internal",
        "remotePort": 5432,
        "localPort": 15432,
    }
    via = "host"

    def forward(self, data: Mapping[str, Any]) -> Forward:
        to = data["remoteHost"], data["remotePort"]
        return Forward(data["bindAddress"], data["localPort"] or 0, to, data["autoStart"])


class RemoteTunnel(Tunnel):
    """A port of the remote host that leads to a host and port that this machine reaches, as with ``ssh -R``."""

    name = "sshRemoteTunnel"
    description = "A port of the remote host that leads to a host and port which this machine reaches."
    schema = RemoteTunnelSchema
    example: ClassVar[Mapping[str, Any]] = {"host": _LOCAL_MACHINE, "remotePort": 8080, "localPort": 80}
    via = "host"
    listens_far = True

    def forward(self, data: Mapping[str, Any]) -> Forward:
        to = data["localHost"], data["localPort"]
        return Forward(data["bindAddress"], data["remotePort"], to, data["autoStart"])


class DynamicTunnel(Tunnel):
    """A SOCKS server on this machine whose connections are opened by the remote host, as with ``ssh -D``."""

    name = "sshDynamicTunnel"
    description = "A SOCKS server on a port of this machine; names are resolved and dialled on the remote host."
    schema = DynamicTunnelSchema
    example: ClassVar[Mapping[str, Any]] = {"host": _LOCAL_MACHINE, "localPort": 1080}
    via = "host"

    def forward(self, data: Mapping[str, Any]) -> Forward:
        return Forward(data["bindAddress"], data["localPort"] or 0, None, data["autoStart"])


@hookimpl
def connmgr_connection_types() -> Sequence[Tunnel]:
    return [CustomService(), LocalTunnel(), RemoteTunnel(), DynamicTunnel()]
