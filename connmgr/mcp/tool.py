"""Turns functions into tools: each declares the daemon's actions that it needs, and runs in its own thread."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Any, get_type_hints

import anyio
import anyio.to_thread
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp_types import CallToolResult, InputRequiredResult, ToolAnnotations
from pydantic import BaseModel, Field, ValidationError, create_model

from connmgr.client import ClientError, Unreachable
from connmgr.contract.message import Length, Message, Range, fields_of
from connmgr.mcp.approval import with_approval
from connmgr.mcp.bridge import Bridge
from connmgr.mcp.call import ANSWER_SECONDS
from connmgr.mcp.call import Call as Call
from connmgr.mcp.outcome import answered, invalid, refused

logger = logging.getLogger("connmgr.mcp")

APPROVAL_APP = "ui://connmgr/approval"
"""The address of the document by which clients with the extension MCP Apps show what show_approval answers."""

System = Annotated[str, Field(description="A system's name or path as list_systems shows it, or its uuid.")]
Session = Annotated[
    str,
    Field(
        max_length=64,
        description="The name of a shell session, which has its own directory. Without it: your own session.",
    ),
]


Work = Callable[..., BaseModel]


@dataclass(frozen=True)
class Declared:
    """A tool: the ``actions`` of the daemon that it needs, whether it ``runs`` commands, and the ``app`` to show it."""

    work: Work
    actions: tuple[str, ...]
    runs: bool
    annotations: ToolAnnotations
    app: str = ""

    @property
    def name(self) -> str:
        return self.work.__name__

    def allowed(self, bridge: Bridge) -> bool:
        """Whether the token's scopes allow the tool."""
        rights = bridge.rights
        return set(self.actions).issubset(rights.actions) and (not self.runs or rights.commands is not None)

    def bound(self, bridge: Bridge) -> Tool:
        """Return the tool for one bridge, in the SDK's form."""

        async def call(context: Context[Any, Any], **arguments: Any) -> CallToolResult | InputRequiredResult:
            return await self._called(Call(bridge, context, self.name, arguments))

        return self._form.model_copy(update={"fn": call})

    @cached_property
    def _form(self) -> Tool:
        """The tool in the SDK's form, without a bridge; making its schemas takes milliseconds."""
        hints = get_type_hints(self.work, include_extras=True)
        answer = hints.pop("return")
        parameters = list(inspect.signature(self.work).parameters.values())[1:]

        async def call() -> None: ...

        own = [
            one.replace(name=camel_case(one.name), annotation=hints[one.name], kind=one.KEYWORD_ONLY)
            for one in parameters
        ]
        context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=Context)
        returned = Annotated[CallToolResult, answer] | InputRequiredResult
        call.__signature__ = inspect.Signature([context, *own], return_annotation=returned)  # type: ignore[attr-defined]
        call.__annotations__ = {**{one.name: one.annotation for one in own}, "context": Context, "return": returned}
        description = inspect.getdoc(self.work) or ""
        meta = {"ui": {"resourceUri": self.app}} if self.app else None
        made = Tool.from_function(call, self.name, description=description, annotations=self.annotations, meta=meta)
        return _Strict.of(made)

    async def _called(self, call: Call) -> CallToolResult | InputRequiredResult:
        try:
            result = await with_approval(call, partial(self._done, call))
            if isinstance(result, InputRequiredResult):
                return result
            return answered(result, call.context.protocol_version)
        except ClientError as error:
            return refused(error)
        except Exception:
            logger.exception("The tool %s has failed.", self.name)
            return refused(ClientError("The tool failed because of a fault in connmgr.", "internal", 0))
        finally:
            call.cancelled.set()

    async def _done(self, call: Call) -> BaseModel:
        """Return the result of the work, or the known part if it is overdue; report progress meanwhile."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call.tell_progress)
            tasks.start_soon(call.look_for_touches)
            try:
                done: BaseModel | ClientError = await self._worked(call)
            except ClientError as error:
                # Raised within the task group, it would be wrapped in a group.
                done = error
            tasks.cancel_scope.cancel()
        if isinstance(done, ClientError):
            raise done
        return done

    async def _worked(self, call: Call) -> BaseModel:
        names = list(inspect.signature(self.work).parameters)[1:]
        given = {name: call.arguments[camel_case(name)] for name in names}
        work = partial(self.work, call, **given)
        with anyio.move_on_after(call.began + ANSWER_SECONDS - time.monotonic()):
            # A cancelled call leaves its thread behind; the thread sees `cancelled` and ends.
            return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=call.bridge.threads)
        if call.known is None:
            raise Unreachable("There was no answer in time.", sent=True)
        return call.known


def derived(kind: type[Message], name: str, description: str | None = None, **own: Any) -> Any:
    """Return pydantic's description of a value that is the field ``name`` of a message of the contract.

    It has the contract's sentence and limits, unless others are given: those that a call needs for itself.
    """
    declared = next(one for one in fields_of(kind) if one.name == name)
    limits: dict[str, Any] = {}
    if length := declared.fact(Length):
        limits |= {"min_length": length.min, "max_length": length.max}
    if bounds := declared.fact(Range):
        limits |= {"gt" if bounds.above else "ge": bounds.min, "le": bounds.max}
    return Field(description=description or declared.description.replace("`", ""), **{**limits, **own})


class _Strict(Tool):
    """A tool that refuses unknown arguments, and reports faulty ones like all other errors."""

    @classmethod
    def of(cls, made: Tool) -> Tool:
        """Return a tool that allows no other arguments."""
        model = made.fn_metadata.arg_model
        model = create_model(model.__name__, __base__=model, __cls_kwargs__={"extra": "forbid"})
        metadata = made.fn_metadata.model_copy(update={"arg_model": model})
        changed = {"fn_metadata": metadata, "parameters": model.model_json_schema(by_alias=True)}
        return cls.model_construct(**{**dict(made), **changed})

    async def run(self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False) -> Any:
        try:
            return await super().run(arguments, context, convert_result)
        except ToolError as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            return invalid(error.__cause__)


def camel_case(name: str) -> str:
    """Return the name of an argument as agents write it: ``maxBytes``."""
    first, *further = name.split("_")
    return first + "".join(map(str.capitalize, further))


def tool(
    *actions: str,
    runs: bool = False,
    reads: bool = False,
    destroys: bool = False,
    repeats: bool = False,
    app: str = "",
) -> Callable[[Work], Declared]:
    """Declare a tool, which needs ``actions`` of the daemon; its docstring is its description for the agent.

    It ``runs`` commands, only ``reads``, ``destroys`` (changes or removes) things, or ``repeats`` without more effect;
    an ``app`` shows its answers.
    """
    annotations = ToolAnnotations(
        read_only_hint=reads, destructive_hint=destroys, idempotent_hint=repeats or reads, open_world_hint=runs
    )
    return lambda work: Declared(work, actions, runs, annotations, app)
