"""``/tunnel``: the states of tunnels."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from connmgr.contract.message import DISTINCT, ID, Message


class TunnelQueryRequest(Message):
    connections: Annotated[list[str] | None, DISTINCT, "Only these tunnels. Without it: all that the caller sees."] = (
        None
    )


class TunnelFault(Message):
    code: Annotated[str, "The error's code."]
    message: Annotated[str, "For a person."]


class TunnelInfo(Message):
    connection: Annotated[str, ID, "The tunnel's connection."]
    state: Annotated[
        str,
        "`stopped`; `connecting`, for the first time; `open`; `retrying`, after it was lost or could not be opened; "
        "`failed`: it is tried again only when it is toggled.",
    ]
    wanted: Annotated[bool, "`sessionEnabled`: whether it shall be open."]
    address: Annotated[str | None, "Where it listens, as `HOST:PORT`; on the remote host for `sshRemoteTunnel`."]
    since: Annotated[datetime | None, "Since when it is in this state."]
    retries: Annotated[int, "Attempts that have failed since it was open."]
    next_retry: Annotated[datetime | None, "When the next attempt begins."]
    last_error: Annotated[TunnelFault | None, "The last error, of the tunnel or of one of its streams."]
    relay: Annotated[str | None, "The program on the remote host that dials, if the connection carries no TCP streams."]
    streams: Annotated[int, "Connections that it carries."]
    waiting: Annotated[int, "Clients that wait until the tunnel is open again."]
    bytes_in: Annotated[int, "Bytes received from the remote host."]
    bytes_out: Annotated[int, "Bytes sent to the remote host."]


class TunnelQueryResponse(Message):
    tunnels: Annotated[list[TunnelInfo], "In the order asked."]
