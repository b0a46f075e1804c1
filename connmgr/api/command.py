"""``/command``: saved commands, which requests call by name."""

from __future__ import annotations

from typing import Any

from connmgr.api.group import Group
from connmgr.api.services import services
from connmgr.contract.command import CommandNameRequest, CommandQueryResponse, CommandSaveRequest, SavedCommandFields
from connmgr.errors import CommandExists, UnknownCommand
from connmgr.rights.saved_commands import SavedCommand

group = Group(
    "command",
    "Saved commands: an argv with parameters. `/shell/exec`, `/shell/broadcast`, `/shell/pipe`, `/job/start` "
    "and `/terminal/open` run one by `saved`, in place of `command` or `argv`. A rule may allow one by its "
    "name, whatever its words are.",
)


EXAMPLE: dict[str, Any] = {
    "name": "restart-web",
    "argv": ["systemctl", "restart", {"text": "{service}.service"}],
    "parameters": {"service": {"in": ["nginx", "varnish"], "description": "What to restart."}},
    "description": "Restarts one of the web servers.",
}


@group.endpoint(
    "/save",
    CommandSaveRequest,
    has_content=True,
    action="command.save",
    about=("name", "replace"),
    raises=[CommandExists],
    example=EXAMPLE,
)
def save(request: CommandSaveRequest) -> None:
    """Save a command. Later calls run this version; commands that already run are not affected."""
    body = {"argv": request.argv, "parameters": dict(request.parameters), "description": request.description}
    services().commands.save(SavedCommand.read(request.name, body), replaces=request.replace)


@group.endpoint(
    "/query", response=CommandQueryResponse, action="command.query", reads=True, answer={"commands": [EXAMPLE]}
)
def query() -> CommandQueryResponse:
    """List the saved commands."""
    return CommandQueryResponse(
        commands=[SavedCommandFields(name=name, **body) for name, body in services().commands.all()]
    )


@group.endpoint(
    "/remove",
    CommandNameRequest,
    action="command.remove",
    about=("name",),
    raises=[UnknownCommand],
    example={"name": "restart-web"},
)
def remove(request: CommandNameRequest) -> None:
    """Remove a saved command."""
    services().commands.remove(request.name)
