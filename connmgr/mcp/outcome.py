"""Results of tools: structured content, or an error with its code and advice."""

from __future__ import annotations

from mcp_types import CallToolResult, TextContent
from pydantic import BaseModel, ValidationError

from connmgr.client import ClientError
from connmgr.mcp.advice import advice
from connmgr.printable import visible


def answered(result: BaseModel) -> CallToolResult:
    """Return a tool's answer as structured content, and as JSON text for clients that show only text."""
    text = result.model_dump_json(by_alias=True)
    structured = result.model_dump(mode="json", by_alias=True)
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=structured)


class FailedCall(BaseModel):
    """The error of a failed call."""

    code: str
    message: str
    next: str | None = None
    approval: str | None = None
    expires: str | None = None


def refused(error: ClientError) -> CallToolResult:
    """Return an error as the result of a tool, as JSON text alone.

    Many clients validate structured content by the tool's output schema, which an error does not match.
    """
    details = {name: error.details[name] for name in ("approval", "expires") if name in error.details}
    told = FailedCall(code=error.code, message=visible(error.message, lines=True), next=advice(error), **details)
    text = told.model_dump_json(exclude_none=True)
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)


def invalid(error: ValidationError) -> CallToolResult:
    """Return the faults in the arguments of a call as the result of a tool."""
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    told = "; ".join(f"{'.'.join(map(str, fault['loc'])) or 'arguments'}: {fault['msg']}" for fault in faults)
    return refused(ClientError(told, "invalid_arguments", 0))
