"""``/command``: saved commands, which requests call by name."""

from __future__ import annotations

from typing import Any

from connmgr.api.context import caller
from connmgr.api.endpoint import Group
from connmgr.api.services import services
from connmgr.contract.command import (
    CommandNameRequest,
    CommandQueryResponse,
    CommandSaveRequest,
    CommandSaveResponse,
    SavedCommandFields,
)
from connmgr.errors import CommandExists, InvalidRequest, ScopeDenied, UnknownCommand
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
    has_content=True,
    about=("name", "replace"),
    raises=[CommandExists, ScopeDenied],
    example=EXAMPLE,
    answer={"warning": "systemctl runs or loads other programs as its words tell it."},
)
def save(request: CommandSaveRequest) -> CommandSaveResponse:
    """Save a command. Later calls run this version; commands that already run are not affected.

    Arguments that tokens choose obey the limits of free words in rules. The owner may save any command and run it; a
    token saves none whose arguments are too free.
    """
    body: dict[str, Any] = {
        "argv": request.argv,
        "parameters": dict(request.parameters),
        "description": request.description,
    }
    if request.may_run_others:
        body["mayRunOthers"] = True
    command = SavedCommand.read(request.name, body)
    why = command.too_free("allow", {})
    if caller().grant is not None:
        if request.may_run_others:
            raise ScopeDenied("Only the owner saves a command with mayRunOthers: rules of other tokens may name it.")
        if why is not None:
            raise InvalidRequest(f"parameters: {why}")
    services().commands.save(command, replaces=request.replace)
    return CommandSaveResponse(warning=why)


@group.endpoint("/query", reads=True, answer={"commands": [EXAMPLE]})
def query() -> CommandQueryResponse:
    """List the saved commands."""
    return CommandQueryResponse(
        commands=[SavedCommandFields.read({"name": name, **body}) for name, body in services().commands.all()]
    )


@group.endpoint("/remove", about=("name",), raises=[UnknownCommand], example={"name": "restart-web"})
def remove(request: CommandNameRequest) -> None:
    """Remove a saved command."""
    services().commands.remove(request.name)
