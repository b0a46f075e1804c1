"""Which systems there are."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from connmgr.client.names import escape
from connmgr.mcp.tool import Call, tool


class System(BaseModel):
    """A system that commands can run on."""

    id: str = Field(description="Its uuid.")
    name: str = Field(description="Its path, by which other tools take it.")
    category: str = Field(description="The category that it is in.")
    type: str = Field(description="How it is reached: ssh, shellEnvironment, …")


class Systems(BaseModel):
    systems: list[System]


@tool("connection.query", reads=True)
def list_systems(
    call: Call, filter: Annotated[str, Field(description="A part of the path; all systems without it.")] = ""
) -> Systems:
    """List the systems that you may use, with the names that other tools take as `system`."""
    with call.client() as client:
        names = client.connection.names(f"**{escape(filter)}**" if filter else "*")
    return Systems(
        systems=[
            System(id=one.id, name=one.path, category="/".join(one.category), type=one.type)
            for one in names
            if one.usage is not None
        ]
    )
