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
from pydantic import Field, ValidationError, create_model

from connmgr.client import ClientError, Unreachable
from connmgr.contract.message import camel_case
from connmgr.mcp.approval import with_approval
from connmgr.mcp.bridge import Bridge
from connmgr.mcp.call import ANSWER_SECONDS
from connmgr.mcp.call import Call as Call
from connmgr.mcp.outcome import Answer, answered, invalid, model_of, refused

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


Work = Callable[..., Answer]


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

    def is_allowed(self, bridge: Bridge) -> bool:
        """Whether the token's scopes allow the tool."""
        rights = bridge.rights
        return set(self.actions).issubset(rights.actions) and (not self.runs or rights.commands is not None)

    def bound(self, bridge: Bridge) -> Tool:
        """Return the tool for one bridge, in the SDK's form."""

        async def call(context: Context[Any, Any], **arguments: Any) -> CallToolResult | InputRequiredResult:
            return await self._answer(Call(bridge, context, self.name, arguments))

        return self._form.model_copy(update={"fn": call})

    @cached_property
    def _form(self) -> Tool:
        """The tool in the SDK's form, without a bridge; making its schemas takes milliseconds."""
        hints = get_type_hints(self.work, include_extras=True)
        answer = hints.pop("return")
        parameters = list(inspect.signature(self.work).parameters.values())[1:]

        async def call() -> None: ...

        own = [
            parameter.replace(
                name=camel_case(parameter.name), annotation=hints[parameter.name], kind=parameter.KEYWORD_ONLY
            )
            for parameter in parameters
        ]
        context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=Context)
        returned = Annotated[CallToolResult, model_of(answer)] | InputRequiredResult
        # The SDK reads names, types and sentences of the arguments, and the schema of the answer, from the signature.
        call.__signature__ = inspect.Signature([context, *own], return_annotation=returned)  # type: ignore[attr-defined]
        annotations = {parameter.name: parameter.annotation for parameter in own}
        call.__annotations__ = {**annotations, "context": Context, "return": returned}
        description = inspect.getdoc(self.work) or ""
        meta = {"ui": {"resourceUri": self.app}} if self.app else None
        form = Tool.from_function(call, self.name, description=description, annotations=self.annotations, meta=meta)
        return _Strict.of(form)

    async def _answer(self, call: Call) -> CallToolResult | InputRequiredResult:
        try:
            result = await with_approval(call, partial(self._work_with_progress, call))
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

    async def _work_with_progress(self, call: Call) -> Answer:
        """Return the result of the work, or the known part if it is overdue; report progress meanwhile."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call.tell_progress)
            tasks.start_soon(call.look_for_touches)
            try:
                done: Answer | ClientError = await self._work_in_thread(call)
            except ClientError as error:
                # Raised within the task group, it would be wrapped in a group.
                done = error
            tasks.cancel_scope.cancel()
        if isinstance(done, ClientError):
            raise done
        return done

    async def _work_in_thread(self, call: Call) -> Answer:
        names = list(inspect.signature(self.work).parameters)[1:]
        arguments = {name: call.arguments[camel_case(name)] for name in names}
        work = partial(self.work, call, **arguments)
        with anyio.move_on_after(call.began + ANSWER_SECONDS - time.monotonic()):
            # A cancelled call leaves its thread behind; the thread sees `cancelled` and ends.
            return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=call.bridge.threads)
        if call.partial_answer is None:
            raise Unreachable("The daemon did not answer in time.", sent=True)
        return call.partial_answer


class _Strict(Tool):
    """A tool that refuses unknown arguments, and reports faulty ones like all other errors."""

    @classmethod
    def of(cls, form: Tool) -> Tool:
        """Return a tool that allows no other arguments."""
        model = form.fn_metadata.arg_model
        model = create_model(model.__name__, __base__=model, __cls_kwargs__={"extra": "forbid"})
        metadata = form.fn_metadata.model_copy(update={"arg_model": model})
        changes = {"fn_metadata": metadata, "parameters": model.model_json_schema(by_alias=True)}
        return cls.model_construct(**{**dict(form), **changes})

    async def run(self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False) -> Any:
        try:
            return await super().run(arguments, context, convert_result)
        except ToolError as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            return invalid(error.__cause__)


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
