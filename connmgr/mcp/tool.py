"""How a function becomes a tool: declared once, with what it needs of the daemon, and called in a thread of its own."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, get_type_hints

import anyio
import anyio.from_thread
import anyio.to_thread
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.tools import Tool
from mcp_types import CallToolResult, ToolAnnotations
from pydantic import BaseModel, Field

from connmgr.client import ClientError
from connmgr.mcp.bridge import Bridge
from connmgr.mcp.outcome import answered, refused

System = Annotated[str, Field(description="A system's name or path as list_systems shows it, or its uuid.")]


@dataclass
class Call:
    """One call of a tool: ``bridge`` does what it asks, ``cancelled`` is set when its client no longer waits."""

    bridge: Bridge
    context: Context[Any, Any]
    cancelled: threading.Event

    def progress(self, seconds: float, message: str) -> None:
        """Tell the client that the call is under way, from the call's own thread."""
        anyio.from_thread.run(partial(self.context.report_progress, seconds, message=message))


Work = Callable[..., BaseModel]


@dataclass(frozen=True)
class Declared:
    """A tool and what it needs: ``actions`` of the daemon, and whether it ``runs`` commands."""

    work: Work
    actions: tuple[str, ...]
    runs: bool
    annotations: ToolAnnotations

    @property
    def name(self) -> str:
        return self.work.__name__

    def allowed(self, bridge: Bridge) -> bool:
        """Whether the scopes of the bridge's token suffice."""
        rights = bridge.rights
        return rights.actions.issuperset(self.actions) and (not self.runs or rights.commands is not None)

    def bound(self, bridge: Bridge) -> Tool:
        """Return the tool as the SDK takes it, for one bridge."""
        hints = get_type_hints(self.work, include_extras=True)
        answer = hints.pop("return")
        parameters = list(inspect.signature(self.work).parameters.values())[1:]

        async def call(context: Context[Any, Any], **arguments: Any) -> CallToolResult:
            return await self._called(Call(bridge, context, threading.Event()), arguments)

        own = [one.replace(annotation=hints[one.name], kind=one.KEYWORD_ONLY) for one in parameters]
        context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=Context)
        returned = Annotated[CallToolResult, answer]
        call.__signature__ = inspect.Signature([context, *own], return_annotation=returned)  # type: ignore[attr-defined]
        call.__annotations__ = {**{one.name: one.annotation for one in own}, "context": Context, "return": returned}
        description = inspect.getdoc(self.work) or ""
        return Tool.from_function(call, self.name, description=description, annotations=self.annotations)

    async def _called(self, call: Call, arguments: dict[str, Any]) -> CallToolResult:
        try:
            work = partial(self.work, call, **arguments)
            # Whoever no longer waits leaves the thread; it sees `cancelled` and ends.
            return answered(await anyio.to_thread.run_sync(work, abandon_on_cancel=True))
        except ClientError as error:
            return refused(error)
        except anyio.get_cancelled_exc_class():
            call.cancelled.set()
            raise


def tool(
    *actions: str, runs: bool = False, reads: bool = False, destroys: bool = False, repeats: bool = False
) -> Callable[[Work], Declared]:
    """Declare a tool, which needs ``actions`` of the daemon; its docstring is its description for the agent.

    ``runs`` tells that it runs commands, ``reads`` that it changes nothing, ``destroys`` that it may change or remove
    what is there, ``repeats`` that a second call with the same arguments changes nothing more.
    """
    annotations = ToolAnnotations(
        read_only_hint=reads, destructive_hint=destroys, idempotent_hint=repeats or reads, open_world_hint=runs
    )
    return lambda work: Declared(work, actions, runs, annotations)
