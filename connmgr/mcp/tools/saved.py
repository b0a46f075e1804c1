"""Saved commands: called by their names, with typed parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field, WithJsonSchema

from connmgr.client import ClientError
from connmgr.contract.command import SavedCommandFields
from connmgr.mcp.bridge import Bridge
from connmgr.mcp.call import path_in
from connmgr.mcp.output import Ran
from connmgr.mcp.tool import Call, Declared, Session, System, tool
from connmgr.mcp.tools.commands import Cwd, MaxBytes, Wait, run
from connmgr.printable import visible

PREFIX = "saved_"
MAX_NAME = 40
"""Longest tool name; clients add a prefix, and many allow 64 characters in all."""

MAX_TOOLS = 50
"""Most saved commands that are tools of their own; run_saved_command runs all."""

Arguments = Annotated[
    Mapping[str, str | int] | None,
    Field(description="A text or an integer for each of its parameters, by their names."),
]


class SavedCommandSummary(BaseModel):
    """A saved command."""

    name: str
    description: str
    argv: list[Any] = Field(description="Its words, in which parameters stand.")
    parameters: dict[str, Any] = Field(description="What `arguments` of run_saved_command takes, as JSON Schema.")


class SavedCommandList(BaseModel):
    commands: list[SavedCommandSummary]


@tool("command.query", reads=True)
def list_commands(call: Call) -> SavedCommandList:
    """List the saved commands: programs with parameters that somebody has prepared."""
    with call.client() as client:
        found = client.command.query()
    return SavedCommandList(
        commands=[
            SavedCommandSummary(
                name=one.name,
                description=visible(one.description, lines=True),
                argv=one.argv,
                parameters=schema_of(one.parameters),
            )
            for one in map(SavedCommandFields.read, found)
        ]
    )


@tool("job.start", "job.output", "command.query", runs=True, destroys=True)
def run_saved_command(
    call: Call,
    system: System,
    name: Annotated[str, Field(max_length=64, description="Its name, as list_commands has it.")],
    arguments: Arguments = None,
    session: Session = "",
    cwd: Cwd = "",
    wait: Wait = 20,
    max_bytes: MaxBytes = 16384,
) -> Ran:
    """Run a saved command on a system; otherwise as run_command."""
    place = call.place(system, session)
    options = {
        "saved": {"name": name, "arguments": dict(arguments or {})},
        "cwd": path_in(call.bridge, place, cwd) or None,
    }
    with call.client() as client:
        return run(call, client, place, options, "", moves=False, opened=False, wait=wait, most=max_bytes)


def tools_of(bridge: Bridge) -> list[Declared]:
    """Return a tool for each saved command, if its name is fit for a tool and the token may run saved commands."""
    if not run_saved_command.allowed(bridge):
        return []
    try:
        with bridge.client() as client:
            found = [SavedCommandFields.read(one) for one in client.command.query()]
    except ClientError:
        # run_saved_command can call them when the daemon answers again.
        return []
    made: dict[str, Declared] = {}
    for one in found:
        name = PREFIX + re.sub(r"\W", "_", one.name, flags=re.ASCII)
        if len(name) <= MAX_NAME and name not in made and len(made) < MAX_TOOLS:
            made[name] = _tool_of(name, one)
    return list(made.values())


def _tool_of(name: str, saved: SavedCommandFields) -> Declared:
    schema = schema_of(saved.parameters)

    def work(
        call: Call,
        system: System,
        arguments: Mapping[str, str | int],
        session: Session = "",
        cwd: Cwd = "",
        wait: Wait = 20,
        max_bytes: MaxBytes = 16384,
    ) -> Ran:
        return run_saved_command.work(  # type: ignore[return-value]
            call, system, saved.name, arguments, session, cwd, wait, max_bytes
        )

    work.__name__ = name
    work.__doc__ = f"The saved command {saved.name}. {visible(saved.description, lines=True)}".strip()
    work.__annotations__["arguments"] = Annotated[dict[str, str | int], WithJsonSchema(schema)]
    return tool(*run_saved_command.actions, runs=True, destroys=True)(work)


def schema_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a saved command's arguments."""
    return {
        "type": "object",
        "properties": {name: _parameter(element) for name, element in parameters.items()},
        "required": list(parameters),
        "additionalProperties": False,
    }


def _parameter(element: Mapping[str, Any]) -> dict[str, Any]:
    told = {"description": visible(element["description"], lines=True)} if element.get("description") else {}
    if "integer" in element:
        span = element["integer"]
        most = {"maximum": span["max"]} if "max" in span else {}
        return {"type": "integer", "minimum": span.get("min", 0), **most, **told}
    if "in" in element:
        return {"type": "string", "enum": element["in"], **told}
    if "re" in element:
        return {"type": "string", "pattern": f"^(?:{element['re']})$", **told}
    if "path" in element:
        description = f"{told.get('description', '')} An absolute path that matches {element['path']}.".strip()
        return {"type": "string", "description": description}
    return {"type": "string", **told}
