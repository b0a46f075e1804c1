"""The systems that the agent may use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from connmgr.client import Client, ClientError, Connection, Name
from connmgr.client.names import UNKNOWN, escape, find, telling
from connmgr.client.repeat import is_transient
from connmgr.contract.connection import ConnectionInfo
from connmgr.contract.tunnel import TunnelInfo
from connmgr.mcp.outcome import Answer, From, project
from connmgr.mcp.tool import Call, tool
from connmgr.mcp.tool import System as Named
from connmgr.printable import visible

MAX_LISTED = 300
TUNNEL = "tunnel"


class System(Answer):
    """A system that commands can run on."""

    source = ConnectionInfo

    id: str
    name: Annotated[
        str,
        "Its path, by which other tools take it, with the category if others have the same path. "
        "web/root runs in web, with more rights.",
    ]
    category: Annotated[str, "The category that it is in."]
    type: Annotated[str, "How it is reached: ssh, shellEnvironment, …"]
    usage: Annotated[str, "shell: commands run there; tunnel: it is started and stopped; or command, group."]
    os: Annotated[str | None, "Its operating system, as last seen; null: it was not used yet."]
    labels: Annotated[dict[str, str], "What its owner says about it, such as env: prod."]
    running: Annotated[
        bool | None, "For a tunnel: whether it is open; for a container: whether it ran when last seen; else null."
    ]


class Systems(Answer):
    systems: Annotated[list[System], "In the order of their paths."]
    omitted: Annotated[int, "How many more match."]


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
        usable = [name for name in names if name.usage is not None]
        listed = usable[:MAX_LISTED]
        infos = _infos(call, client, [name.id for name in listed])
        tunnels = _tunnels(call, client) if any(name.usage == TUNNEL for name in listed) else {}
        full_names = telling(client.connection.names() if filter or where else names)
    systems = [_system(name, full_names[name.id], infos.get(name.id), tunnels.get(name.id)) for name in listed]
    return Systems(systems=systems, omitted=len(usable) - len(listed))


def _system(name: Name, full_name: str, info: Connection | None, tunnel: TunnelInfo | None) -> System:
    state: Mapping[str, Any] = info.state if info else {}
    labels = info.labels if info else {}
    os_name, running = state.get("osName"), state.get("running")
    is_open = None if tunnel is None else tunnel.state == "open"
    return project(
        System,
        name,
        name=visible(full_name),
        category=visible("/".join(name.category)),
        labels={label: visible(value) for label, value in labels.items()},
        os=visible(os_name) if isinstance(os_name, str) else None,
        running=running if isinstance(running, bool) else is_open,
    )


def _infos(call: Call, client: Client, systems: list[str]) -> dict[str, Connection]:
    """Return what is stored about each system, if the token may read it."""
    if not systems or "connection.info" not in call.bridge.rights.actions:
        return {}
    try:
        return {info.id: info for info in client.connection.info(systems)}
    except ClientError as error:
        # A system was removed meanwhile.
        if error.code != UNKNOWN:
            raise
        return {}


class ToggledSystem(Answer):
    """A system that was started or stopped."""

    source = TunnelInfo

    id: Annotated[str, From("connection"), "Its uuid."]
    state: Annotated[str, "For a tunnel: open, connecting, retrying, failed or stopped; else started or stopped."]
    address: Annotated[str | None, "For an open tunnel: where it listens, as HOST:PORT."]
    error: Annotated[str | None, "What went wrong last."]


@tool("connection.toggle", "connection.query", destroys=True, repeats=True)
def toggle_state(
    call: Call, system: Named, state: Annotated[bool, Field(description="True starts or opens it, false stops it.")]
) -> ToggledSystem:
    """Open or close a tunnel, or start or stop a system such as a container."""
    with call.client() as client:
        types = client.connection.types() if "connection.types" in call.bridge.rights.actions else []
        kinds = {type.name for type in types if type.toggled}
        id = find(
            client.connection,
            system,
            accepts=lambda name: name.usage == TUNNEL or name.type in kinds,
            noun="system",
            listing="",
        )
        # Repeating it does no harm.
        call.persist(lambda: client.connection.toggle(id, state), is_transient)
        tunnel = _tunnels(call, client).get(id)
    if tunnel is None:
        return ToggledSystem(id=id, state="started" if state else "stopped", address=None, error=None)
    error = None if tunnel.last_error is None else visible(tunnel.last_error.message)
    return project(ToggledSystem, tunnel, error=error)


def _tunnels(call: Call, client: Client) -> dict[str, TunnelInfo]:
    """Return the tunnels by the uuids of their systems, if the token may read them."""
    if "tunnel.query" not in call.bridge.rights.actions:
        return {}
    return {tunnel.connection: tunnel for tunnel in map(TunnelInfo.read, client.tunnel.query())}
