"""The questions about approvals that a person is asked; as far as possible the agent does not choose their words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal

from mcp_types import ElicitResult
from pydantic import BaseModel, Field, ValidationError

from connmgr.client.asked import beyond_ascii, described
from connmgr.mcp.approver import Decision
from connmgr.mcp.call import Call
from connmgr.printable import visible

MAX_LINES = 400
"""Longest question; longer requests are decided in a terminal, where they are shown whole."""

MAX_PREVIEW_LINES = 200
MAX_CHARACTERS = 1000
"""Longest line of a question."""

_DECISIONS: Mapping[str, Decision] = {"once": "once", "for an hour": "grant", "deny": "deny"}


class DecisionForm(BaseModel):
    """The form that a person fills in."""

    decision: Literal["once", "for an hour", "deny"] = Field(
        title="Decision", description="once: this request; for an hour: the same again and again; deny: not at all."
    )


@dataclass(frozen=True)
class Question:
    """A question about one ``approval``: if it ``decides``, the answer is the decision, else whether to wait."""

    approval: str
    message: str
    seconds: float
    decides: bool

    @property
    def schema(self) -> dict[str, Any]:
        """The form as JSON Schema, with only the members that the protocol allows."""
        whole = DecisionForm.model_json_schema() if self.decides else {"type": "object", "properties": {}}
        return {name: whole[name] for name in ("type", "properties", "required") if name in whole}


def decision_of(answer: ElicitResult) -> Decision | None:
    """Return the decision, None if the person closed the question or did not fill in the form."""
    if answer.action != "accept":
        return "deny" if answer.action == "decline" else None
    try:
        return _DECISIONS[DecisionForm.model_validate(answer.content).decision]
    except ValidationError:
        return None


def deciding(call: Call, approval: Mapping[str, Any]) -> Question:
    """Return the question whose answer is the decision; it shows the request as the daemon describes it."""
    asked = list(described(approval, f" for your approval (until {_minute(approval['expires'])})"))
    lines = [*asked, *_preview(call)]
    if len(lines) > MAX_LINES or any(len(line) > MAX_CHARACTERS for line in asked):
        return waiting(call, approval)
    return Question(approval["approval"], _indented(lines), _seconds(approval["expires"]), decides=True)


def waiting(call: Call, approval: Mapping[str, Any]) -> Question:
    """Return the question whether to wait until somebody decides elsewhere; ``approval`` has its id and expiry."""
    asked = {"action": call.name, "arguments": {name: one for name, one in call.arguments.items() if one is not None}}
    named = {"tokenName": call.bridge.rights.name, "asked": asked}
    told = described(named, f" for an approval (until {_minute(approval['expires'])})")
    lines = [*map(_cut, told), *_preview(call)]
    lines[MAX_LINES:] = ["  …"] if len(lines) > MAX_LINES else []
    command = f"connmgr approve {approval['approval'][:8]}"
    end = f"\n\nIn a terminal, `{command}` shows it whole and decides. Accept here to have the agent wait for that."
    return Question(approval["approval"], _indented(lines) + end, _seconds(approval["expires"]), decides=False)


def _preview(call: Call) -> Iterator[str]:
    if call.preview is None:
        return
    lines = visible(call.preview, lines=True).removesuffix("\n").replace("\r", "\\r").split("\n")
    yield "  change"
    for line in lines[:MAX_PREVIEW_LINES]:
        yield f"    {_cut(line)}"
    if len(lines) > MAX_PREVIEW_LINES:
        yield f"    … and {len(lines) - MAX_PREVIEW_LINES} more lines, which are not shown here"
    yield from beyond_ascii(call.preview)


def _cut(line: str) -> str:
    """Return a line, or its beginning and the number of omitted characters, so that the omission is seen."""
    more = len(line) - MAX_CHARACTERS
    return line if more <= 0 else f"{line[:MAX_CHARACTERS]}… and {more} more characters, which are not shown here"


def _indented(lines: list[str]) -> str:
    """Return lines that a client shows unchanged, except the first, even if it renders Markdown."""
    return "\n".join((lines[0], "", *(f"  {line}" for line in lines[1:])))


def _minute(expires: str) -> str:
    return f"{_time(expires):%H:%M} UTC"


def _seconds(expires: str) -> float:
    return max(0.0, (_time(expires) - datetime.now(timezone.utc)).total_seconds())


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
