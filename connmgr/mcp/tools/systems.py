"""Which systems there are."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from connmgr.client import Client
from connmgr.client.names import escape
from connmgr.client.patience import may_pass
from connmgr.mcp.shown import visible
from connmgr.mcp.starting import persist
from connmgr.mcp.tool import Call, tool
from connmgr.mcp.tool import System as Named

MAX_LISTED = 500
TUNNEL = "tunnel"


class System(BaseModel):
    """A system that commands can run on."""

    id: str = Field(description="Its uuid.")
    name: str = Field(description="Its path, by which other tools take it. web/root runs in web, with more rights.")
    category: str = Field(description="The category that it is in.")
    type: str = Field(description="How it is reached: ssh, shellEnvironment, …")
    usage: str = Field(description="shell: commands run there; tunnel: it is started and stopped; or command, group.")
    running: bool | None = Field(description="Of a tunnel, whether it is open; null where that is not known.")


class Systems(BaseModel):
    systems: list[System] = Field(description="In the order of their paths.")
    omitted: int = Field(description="How many more match.")


@tool("connection.query", reads=True)
def list_systems(
    call: Call,
    filter: Annotated[str, Field(max_length=500, description="A part of the path; all systems without it.")] = "",
) -> Systems:
    """List the systems that you may use, with the names that other tools take as `system`."""
    with call.client() as client:
        names = client.connection.names(f"**{escape(filter)}**" if filter else "*")
        open_ones = _open_tunnels(call, client, [one.id for one in names if one.usage == TUNNEL])
    found = [
        System(
            id=one.id,
            name=visible(one.path),
            category=visible("/".join(one.category)),
            type=one.type,
            usage=one.usage,
            running=open_ones.get(one.id),
        )
        for one in names
        if one.usage is not None
    ]
    return Systems(systems=found[:MAX_LISTED], omitted=max(0, len(found) - MAX_LISTED))


class Toggled(BaseModel):
    """A system that was started or stopped."""

    id: str = Field(description="Its uuid.")
    state: str = Field(
        description="Of a tunnel: open, connecting, retrying, failed or stopped; else started or stopped."
    )
    address: str | None = Field(description="Of an open tunnel, where it listens: HOST:PORT.")
    error: str | None = Field(description="What went wrong last.")


@tool("connection.toggle", "connection.query", destroys=True, repeats=True)
def toggle_state(
    call: Call, system: Named, state: Annotated[bool, Field(description="True starts or opens it, false stops it.")]
) -> Toggled:
    """Open or close a tunnel, or start or stop what a system leads to, such as a container."""
    id = call.place(system).connection
    with call.client() as client:
        # To want it twice is to want it.
        persist(call, lambda: client.connection.toggle(id, state), may_pass)
        can_ask = "tunnel.query" in call.bridge.rights.actions
        found = [one for one in client.tunnel.query() if one["connection"] == id] if can_ask else []
    if not found:
        return Toggled(id=id, state="started" if state else "stopped", address=None, error=None)
    told = found[0]
    error = told["lastError"]
    shown = error.get("message") if isinstance(error, dict) else error
    return Toggled(id=id, state=told["state"], address=told["address"], error=visible(str(shown)) if shown else None)


def _open_tunnels(call: Call, client: Client, tunnels: list[str]) -> dict[str, bool]:
    """Return of each tunnel whether it is open, where the token may know."""
    if not tunnels or "tunnel.query" not in call.bridge.rights.actions:
        return {}
    return {one["connection"]: one["state"] == "open" for one in client.tunnel.query()}
