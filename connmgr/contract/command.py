"""``/command``: saved commands, which requests call by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from connmgr.contract.common import EMPTY
from connmgr.contract.message import Message


class CommandNameRequest(Message):
    name: Annotated[str, "The command's name."]


class SavedCommandFields(CommandNameRequest):
    argv: Annotated[
        list[Any],
        'The words. Each is a text; or `{"parameter": "service"}`, which the argument replaces; or '
        '`{"text": "unit-{service}.service"}`, with arguments in the text and doubled braces for single ones. The '
        "first is a text.",
    ]
    parameters: Annotated[
        Mapping[str, Any],
        "The parameters by name: which arguments each accepts, as an element of a rule (`re`, `in`, `integer`, "
        "`path`), and its `description`. An argument that would make a word begin with `-` is refused, unless `in` or "
        "`integer` allows it. With `secret` true the audit log does not have the argument; jobs, terminals and "
        "approvals do.",
    ] = EMPTY
    description: Annotated[str, "What it is for."] = ""
    may_run_others: Annotated[
        bool | None,
        "True lets rules of tokens name the command although an argument is a free word for a program that does more "
        "than print. Only the owner may say so.",
    ] = None


class CommandSaveRequest(SavedCommandFields):
    replace: Annotated[bool, "True replaces the command of this name."] = False


class CommandSaveResponse(Message):
    warning: Annotated[str | None, "Why no rule that allows the command lets a token run it, or null."]


class CommandQueryResponse(Message):
    commands: Annotated[list[SavedCommandFields], "By their names."]
