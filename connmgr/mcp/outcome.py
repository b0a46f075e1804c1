"""Results of tools: structured content, or what went wrong, with its code and what to do next."""

from __future__ import annotations

from mcp_types import CallToolResult, TextContent
from pydantic import BaseModel, ValidationError

from connmgr.client import ClientError
from connmgr.mcp.advice import advice
from connmgr.printable import visible


def answered(result: BaseModel) -> CallToolResult:
    """Return what a tool answers, as structured content, and as JSON for clients that show texts alone."""
    text = result.model_dump_json(by_alias=True)
    structured = result.model_dump(mode="json", by_alias=True)
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=structured)


class Refused(BaseModel):
    """What came of a call that failed."""

    code: str
    message: str
    next: str | None = None
    approval: str | None = None
    expires: str | None = None


def refused(error: ClientError) -> CallToolResult:
    """Return an error as the result of a tool: JSON as text alone, for many clients hold what is structured to be what
    the tool's output schema has.
    """
    details = {name: error.details[name] for name in ("approval", "expires") if name in error.details}
    told = Refused(code=error.code, message=visible(error.message, lines=True), next=advice(error), **details)
    text = told.model_dump_json(exclude_none=True)
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)


def invalid(error: ValidationError) -> CallToolResult:
    """Return what is wrong with the arguments of a call."""
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    told = "; ".join(f"{'.'.join(map(str, fault['loc'])) or 'arguments'}: {fault['msg']}" for fault in faults)
    return refused(ClientError(told, "invalid_arguments", 0))
