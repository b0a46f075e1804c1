"""The systems that the agent may use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field

from connmgr.client import Client, ClientError, Connection, Name
from connmgr.client.names import UNKNOWN, escape, find, telling
from connmgr.client.repeat import is_transient
from connmgr.contract.tunnel import TunnelInfo
from connmgr.mcp.call import persist
from connmgr.mcp.tool import Call, tool
from connmgr.mcp.tool import System as Named
from connmgr.printable import visible

MAX_LISTED = 300
TUNNEL = "tunnel"


class System(BaseModel):
    """A system that commands can run on."""

    id: str = Field(description="Its uuid.")
    name: str = Field(
        description="Its path, by which other tools take it, with the category if others have the same path. "
        "web/root runs in web, with more rights."
    )
    category: str = Field(description="The category that it is in.")
    type: str = Field(description="How it is reached: ssh, shellEnvironment, …")
    usage: str = Field(description="shell: commands run there; tunnel: it is started and stopped; or command, group.")
    os: str | None = Field(description="Its operating system, as last seen; null: it was not used yet.")
    labels: dict[str, str] = Field(description="What its owner says about it, such as env: prod.")
    running: bool | None = Field(
        description="For a tunnel: whether it is open; for a container: whether it ran when last seen; else null."
    )


class Systems(BaseModel):
    systems: list[System] = Field(description="In the order of their paths.")
    omitted: int = Field(description="How many more match.")


@tool("connection.query", reads=True)
def list_systems(
    call: Call,
    filter: Annotated[str, Field(max_length=500, description="A part of the path; all systems without it.")] = "",
    where: Annotated[
        str,
        Field(
            max_length=1000,
            description="A condition on labels and gathered facts: env=prod and os.id=debian and memory.total>4G. Also "
            "!=, ~ (a pattern), <, <=, >=, or, not, ().",
        ),
    ] = "",
) -> Systems:
    """List the systems that you may use, with the names that other tools take as `system`."""
    with call.client() as client:
        names = client.connection.names(f"**{escape(filter)}**" if filter else "*", where=where or None)
        usable = [one for one in names if one.usage is not None]
        listed = usable[:MAX_LISTED]
        described = _described(call, client, [one.id for one in listed])
        tunnels = _open_tunnels(call, client, [one.id for one in listed if one.usage == TUNNEL])
        told = telling(client.connection.names() if filter or where else names)
    systems = [_system(one, told[one.id], described.get(one.id), tunnels.get(one.id)) for one in listed]
    return Systems(systems=systems, omitted=len(usable) - len(listed))


def _system(found: Name, name: str, described: Connection | None, is_open: bool | None) -> System:
    state: Mapping[str, Any] = described.state if described else {}
    labels = described.labels if described else {}
    seen, running = state.get("osName"), state.get("running")
    return System(
        id=found.id,
        name=visible(name),
        category=visible("/".join(found.category)),
        type=found.type,
        usage=str(found.usage),
        labels={name: visible(value) for name, value in labels.items()},
        os=visible(seen) if isinstance(seen, str) else None,
        running=running if isinstance(running, bool) else is_open,
    )


def _described(call: Call, client: Client, systems: list[str]) -> dict[str, Connection]:
    """Return what is stored about each system, if the token may read it."""
    if not systems or "connection.info" not in call.bridge.rights.actions:
        return {}
    try:
        return {one.id: one for one in client.connection.info(systems)}
    except ClientError as error:
        # A system was removed meanwhile.
        if error.code != UNKNOWN:
            raise
        return {}


class ToggledSystem(BaseModel):
    """A system that was started or stopped."""

    id: str = Field(description="Its uuid.")
    state: str = Field(
        description="For a tunnel: open, connecting, retrying, failed or stopped; else started or stopped."
    )
    address: str | None = Field(description="For an open tunnel: where it listens, as HOST:PORT.")
    error: str | None = Field(description="What went wrong last.")


@tool("connection.toggle", "connection.query", destroys=True, repeats=True)
def toggle_state(
    call: Call, system: Named, state: Annotated[bool, Field(description="True starts or opens it, false stops it.")]
) -> ToggledSystem:
    """Open or close a tunnel, or start or stop a system such as a container."""
    with call.client() as client:
        types = client.connection.types() if "connection.types" in call.bridge.rights.actions else []
        kinds = {one.name for one in types if one.toggled}
        id = find(
            client.connection,
            system,
            accepts=lambda one: one.usage == TUNNEL or one.type in kinds,
            noun="system",
            listing="",
        )
        # Repeating it does no harm.
        persist(call, lambda: client.connection.toggle(id, state), is_transient)
        can_ask = "tunnel.query" in call.bridge.rights.actions
        tunnels = [TunnelInfo.read(one) for one in client.tunnel.query()] if can_ask else []
        found = [one for one in tunnels if one.connection == id]
    if not found:
        return ToggledSystem(id=id, state="started" if state else "stopped", address=None, error=None)
    [tunnel] = found
    error = None if tunnel.last_error is None else visible(tunnel.last_error.message)
    return ToggledSystem(id=id, state=tunnel.state, address=tunnel.address, error=error)


def _open_tunnels(call: Call, client: Client, tunnels: list[str]) -> dict[str, bool]:
    """Return for each tunnel whether it is open, if the token may read it."""
    if not tunnels or "tunnel.query" not in call.bridge.rights.actions:
        return {}
    return {one.connection: one.state == "open" for one in map(TunnelInfo.read, client.tunnel.query())}
