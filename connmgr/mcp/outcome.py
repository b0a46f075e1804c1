"""Results of tools: structured content, or what the daemon refused, with its code and what to do next."""

from __future__ import annotations

from collections.abc import Mapping

from mcp_types import CallToolResult, TextContent
from pydantic import BaseModel

from connmgr.client import ClientError
from connmgr.mcp.shown import visible

NEXT: Mapping[str, str] = {
    "unknown_connection": "Call list_systems for the names that there are.",
    "scope_denied": "The token does not allow it: ask the person who created the token.",
    "policy_denied": "A rule of the token denies it: do it otherwise, or ask the person who created it.",
    "approval_denied": "A person decided against it. Do not try to reach the same in another way; ask what they want.",
    "approval_required": "Repeat the same call with the same arguments when a person has approved it.",
    "quota_exceeded": "Wait, and send fewer requests.",
    "session_limit": "Leave out session, or reuse one.",
    "unreachable": "The daemon does not answer. What was started goes on; try again in some seconds.",
}
"""What helps an agent after an error, by the error's code."""


def answered(result: BaseModel) -> CallToolResult:
    """Return what a tool answers, as structured content, and as JSON for clients that show texts alone."""
    text = result.model_dump_json(by_alias=True)
    structured = result.model_dump(mode="json", by_alias=True)
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=structured)


class Refused(BaseModel):
    """What came of a call that failed."""

    code: str
    message: str
    next: str | None


def refused(error: ClientError) -> CallToolResult:
    """Return an error of the daemon as the result of a tool."""
    told = Refused(code=error.code, message=visible(error.message), next=NEXT.get(error.code))
    result = answered(told)
    return result.model_copy(update={"is_error": True})
