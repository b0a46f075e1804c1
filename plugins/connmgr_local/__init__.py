"""The connection type ``local``: shells on the daemon's machine, as the daemon's user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from connmgr.plugin import ConnectionType, Schema, Text, Transport, hookimpl
from connmgr_local.transport import LocalTransport


class LocalSchema(Schema):
    """The fields of a local connection."""

    shell = Text(
        allow_none=True,
        metadata={"description": "The session's shell, a path or a name; the user's login shell otherwise."},
    )


class Local(ConnectionType):
    """The machine that the daemon runs on."""

    name = "local"
    description = "The machine that the daemon runs on, as the user that it runs as."
    schema = LocalSchema
    example: ClassVar[Mapping[str, Any]] = {"shell": "/bin/bash"}

    def open(self, data: Mapping[str, Any], via: Transport | None, *, timeout: float) -> Transport:
        return LocalTransport()


@hookimpl
def connmgr_connection_types() -> Sequence[ConnectionType]:
    return [Local()]
