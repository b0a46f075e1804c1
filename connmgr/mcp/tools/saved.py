"""Saved commands: called by their names, with typed parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from connmgr.client import ClientError
from connmgr.contract.command import SavedCommandFields
from connmgr.mcp.bridge import Bridge
from connmgr.mcp.outcome import Answer, project
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


class SavedCommandSummary(Answer):
    """A saved command."""

    source = SavedCommandFields

    name: str
    description: str
    argv: Annotated[list[Any], "Its words, in which parameters stand."]
    parameters: Annotated[dict[str, Any], "What `arguments` of run_saved_command takes, as JSON Schema."]


class SavedCommandList(Answer):
    commands: list[SavedCommandSummary]


@tool("command.query", reads=True)
def list_commands(call: Call) -> SavedCommandList:
    """List the saved commands: programs with parameters that somebody has prepared."""
    with call.client() as client:
        commands = [SavedCommandFields.read(saved) for saved in client.command.query()]
    return SavedCommandList(
        commands=[
            project(
                SavedCommandSummary,
                saved,
                description=visible(saved.description, lines=True),
                argv=saved.argv,
                parameters=schema_of(saved.parameters),
            )
            for saved in commands
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
    with call.shell(system, session) as shell:
        options = {"saved": {"name": name, "arguments": dict(arguments or {})}, "cwd": shell.path(cwd) or None}
        return run(shell, options, "", moves=False, opened=False, wait=wait, most=max_bytes)


def tools_of(bridge: Bridge) -> list[Declared]:
    """Return a tool for each saved command, if its name is fit for a tool and the token may run saved commands."""
    if not run_saved_command.is_allowed(bridge):
        return []
    try:
        with bridge.client() as client:
            commands = [SavedCommandFields.read(saved) for saved in client.command.query()]
    except ClientError:
        # run_saved_command can call them when the daemon answers again.
        return []
    tools: dict[str, Declared] = {}
    for saved in commands:
        name = PREFIX + re.sub(r"\W", "_", saved.name, flags=re.ASCII)
        if len(name) <= MAX_NAME and name not in tools and len(tools) < MAX_TOOLS:
            tools[name] = _tool_of(name, saved)
    return list(tools.values())


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
    description = visible(element.get("description") or "", lines=True)
    shown = {"description": description} if description else {}
    if "integer" in element:
        span = element["integer"]
        most = {"maximum": span["max"]} if "max" in span else {}
        return {"type": "integer", "minimum": span.get("min", 0), **most, **shown}
    if "in" in element:
        return {"type": "string", "enum": element["in"], **shown}
    if "re" in element:
        return {"type": "string", "pattern": f"^(?:{element['re']})$", **shown}
    if "path" in element:
        return {
            "type": "string",
            "description": f"{description} An absolute path that matches {element['path']}.".strip(),
        }
    return {"type": "string", **shown}
