"""``/command``: saved commands, which requests call by name."""

from __future__ import annotations

from typing import Any

from marshmallow import fields

from connmgr.api.account import account, caller, detail
from connmgr.api.group import Group
from connmgr.api.services import services
from connmgr.errors import CommandExists, InvalidRequest, ScopeDenied, UnknownCommand
from connmgr.fields import Boolean, List, Schema, Text
from connmgr.rights.command_rules import TOO_FREE
from connmgr.rights.saved_commands import SavedCommand

group = Group(
    "command",
    "Saved commands: an argv with parameters. `/shell/exec`, `/shell/broadcast`, `/shell/pipe`, `/job/start` "
    "and `/terminal/open` run one by `saved`, in place of `command` or `argv`. A rule may allow one by its "
    "name, whatever its words are.",
)


class CommandNameRequest(Schema):
    name = Text(required=True, metadata={"description": "The command's name."})


class SavedCommandFields(CommandNameRequest):
    argv = List(
        fields.Raw(),
        required=True,
        metadata={
            "description": 'The words. Each is a text; or `{"parameter": "service"}`, which the argument replaces; or '
            '`{"text": "unit-{service}.service"}`, with arguments in the text and doubled braces for single ones. '
            "The first is a text."
        },
    )
    parameters = fields.Dict(
        load_default=dict,
        metadata={
            "description": "The parameters by name: which arguments each accepts, as an element of a rule (`re`, `in`, "
            "`integer`, `path`), and its `description`. An argument that would make a word begin with `-` is "
            "refused, unless `in` or `integer` allows it. With `secret` true the audit log does not have the argument; "
            "jobs, terminals and approvals do."
        },
    )
    description = Text(load_default="", metadata={"description": "What it is for."})
    mayRunOthers = Boolean(
        metadata={
            "description": "True lets rules of tokens name the command although an argument is a free word for a "
            "program that does more than print. Only the owner may say so."
        }
    )


class CommandSaveRequest(SavedCommandFields):
    replace = Boolean(load_default=False, metadata={"description": "True replaces the command of this name."})


class CommandSaveResponse(Schema):
    warning = fields.String(
        required=True,
        allow_none=True,
        metadata={"description": "Why no rule that allows the command lets a token run it, or null."},
    )


class CommandQueryResponse(Schema):
    commands = fields.List(
        fields.Nested(SavedCommandFields), required=True, metadata={"description": "By their names."}
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
    CommandSaveResponse,
    has_content=True,
    action="command.save",
    about=("name", "replace"),
    raises=[CommandExists, ScopeDenied],
    example=EXAMPLE,
    answer={"warning": "systemctl runs or loads other programs as its words tell it."},
)
def save(request: dict[str, Any]) -> dict[str, Any]:
    """Save a command. Later calls run this version; commands that already run are not affected.

    Arguments that tokens choose obey the limits of free words in rules. The owner may save any command and run it; a
    token saves none whose arguments are too free.
    """
    body = {name: request[name] for name in ("argv", "parameters", "description")}
    if request.get("mayRunOthers"):
        body["mayRunOthers"] = True
    command = SavedCommand.read(request["name"], body)
    why = command.too_free("allow", {})
    if caller().grant is not None:
        if "mayRunOthers" in body:
            raise ScopeDenied("Only the owner saves a command with mayRunOthers: rules of other tokens may name it.")
        if why is not None:
            raise InvalidRequest(f"parameters: {why}")
    services().commands.save(command, replaces=request["replace"])
    return {"warning": why}


@group.endpoint(
    "/query", response=CommandQueryResponse, action="command.query", reads=True, answer={"commands": [EXAMPLE]}
)
def query() -> dict[str, Any]:
    """List the saved commands."""
    return {"commands": [{"name": name, **body} for name, body in services().commands.all()]}


@group.endpoint(
    "/remove",
    CommandNameRequest,
    action="command.remove",
    about=("name",),
    raises=[UnknownCommand],
    example={"name": "restart-web"},
)
def remove(request: dict[str, Any]) -> None:
    """Remove a saved command."""
    services().commands.remove(request["name"])


def with_words(request: dict[str, Any]) -> dict[str, Any]:
    """Return a loaded request with the argv of its ``saved`` command.

    ``saved`` then has its name and its arguments as texts, for the rules.
    :raises UnknownCommand | InvalidRequest: there is no such command, or it does not take these arguments.
    """
    if "saved" not in request:
        return request
    name = request["saved"]["name"]
    command = services().commands.get(name)
    expanded = command.expand(request["saved"]["arguments"])
    detail(saved=name)
    account().recorded = list(expanded.recorded)
    saved = {"saved": (name, expanded.arguments), TOO_FREE: command.too_free}
    return {**request, "argv": list(expanded.argv), **saved}
