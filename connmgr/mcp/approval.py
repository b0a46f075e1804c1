"""Approvals: if a rule asks about a call, the agent's client asks the person in front of it.

The agent's token never decides. With an :class:`Approver`, whose token may decide, the person's answer is the decision.
Otherwise the person is told which command decides, and the call waits for it. Then the work of the call is repeated.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from enum import Enum
from functools import partial
from typing import Any, Literal

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitRequestURLParams, ElicitResult, InputRequiredResult
from mcp_types.version import is_version_at_least
from pydantic import BaseModel, Field, ValidationError

from connmgr.client import Client, ClientError
from connmgr.client.repeat import repeated_task
from connmgr.client.rights import beyond_ascii, described
from connmgr.contract.approval import Verdict
from connmgr.contract.message import time_from_json
from connmgr.mcp.bridge import AskedCall
from connmgr.mcp.call import Call
from connmgr.mcp.outcome import Answer
from connmgr.printable import visible

logger = logging.getLogger("connmgr.mcp")

SCOPE = "approval.decide"
GRANT_SECONDS = 3600
OVER = "unknown_approval"

MAX_LINES = 400
"""Longest question; longer requests are decided in a terminal, where they are shown whole."""

MAX_PREVIEW_LINES = 200
MAX_CHARACTERS = 1000
"""Longest line of a question."""

PATTERN = "the pattern"
_DECISIONS: Mapping[str, Verdict] = {"once": "once", "for an hour": "grant", PATTERN: "pattern", "deny": "deny"}

REQUIRED = "approval_required"

WAIT_SECONDS = 40.0
"""Seconds that a call waits for a person: clients may give up after 60, and the approved work takes time too."""

PROGRESS_SECONDS = 5.0
PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 4.0
"""Longest pause between two checks whether an approval was given elsewhere; each check is a request of the token."""

ANSWERS_WITH_THE_RETRY = "2026-07-28"
"""From this version of the protocol, a call is answered with the question, and the next call has the answer."""


class Approver:
    """Decides with the token that ``client`` shows. Safe to use from several threads.

    :raises ClientError: the token is not valid, or may do anything but decide.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        if set(client.token.info().scopes) != {SCOPE}:
            text = f"The token that decides about approvals must have the scope {SCOPE} and no other."
            raise ClientError(text, "scope_denied", 0)

    def find(self, approval: str) -> Mapping[str, Any] | None:
        """Return the approval as ``/approval/query`` describes it, None if the token cannot see it, or it is over."""
        with self._lock:
            try:
                return self._pending(approval)
            except ClientError as error:
                logger.warning("The token that decides cannot look at the approval %s: %s", approval, error.message)
                return None

    def _pending(self, approval: str) -> Mapping[str, Any] | None:
        return next((pending for pending in self._client.approval.query() if pending["approval"] == approval), None)

    def decide(self, approval: str, decision: Verdict) -> None:
        """Decide; an approval that is over stays as it is, since a repeated request asks anew.

        So does one that somebody has denied since the question was put: an answer to that, sent late or once more, must
        not undo it.

        :raises ClientError: the token may not decide about this.
        """
        seconds = GRANT_SECONDS if decision == "grant" else None
        with self._lock:
            try:
                if decision == "deny" or self._pending(approval) is not None:
                    self._client.approval.decide(approval, decision, seconds)
            except ClientError as error:
                if error.code == OVER:
                    return
                logger.warning(
                    "The token that decides cannot decide about the approval %s: %s", approval, error.message
                )
                message = f"The person has decided, and the daemon did not accept it: {error.message}"
                raise ClientError(message, error.code, error.status, error.details) from error


class DecisionForm(BaseModel):
    """The form that a person fills in."""

    decision: Literal["once", "for an hour", "deny"] = Field(
        title="Decision", description="once: this request; for an hour: the same again and again; deny: not at all."
    )


class PatternForm(BaseModel):
    """The form where a pattern is proposed beside the request."""

    decision: Literal["once", "for an hour", "the pattern", "deny"] = Field(
        title="Decision",
        description="once: this request; for an hour: the same again and again; the pattern: what the last line says, "
        "as a rule; deny: not at all.",
    )


@dataclass(frozen=True)
class Question:
    """A question about one ``approval``: if it ``decides``, the answer is the decision, else whether to wait."""

    approval: str
    message: str
    seconds: float
    decides: bool
    has_pattern: bool = False
    url: str | None = None
    """The address of the approval on the daemon's page, for a client that opens addresses and has no forms."""

    @property
    def schema(self) -> dict[str, Any]:
        """The form as JSON Schema, with only the members that the protocol allows."""
        form = PatternForm if self.has_pattern else DecisionForm
        whole = form.model_json_schema() if self.decides else {"type": "object", "properties": {}}
        return {name: whole[name] for name in ("type", "properties", "required") if name in whole}


def decision_of(answer: ElicitResult) -> Verdict | None:
    """Return the decision, None if the person closed the question or did not fill in the form."""
    if answer.action != "accept":
        return "deny" if answer.action == "decline" else None
    try:
        return _DECISIONS[PatternForm.model_validate(answer.content).decision]
    except ValidationError:
        return None


def deciding(call: Call, approval: Mapping[str, Any]) -> Question:
    """Return the question whose answer is the decision; it shows the request as the daemon describes it."""
    request = list(described(approval, f" for your approval (until {_minute(approval['expires'])})"))
    lines = [*request, *_preview(call)]
    if len(lines) > MAX_LINES or any(len(line) > MAX_CHARACTERS for line in request):
        return waiting(call, approval)
    return Question(
        approval["approval"],
        _indented(lines),
        _seconds(approval["expires"]),
        decides=True,
        has_pattern=approval.get("pattern") is not None,
    )


def waiting(call: Call, approval: Mapping[str, Any]) -> Question:
    """Return the question whether to wait until somebody decides elsewhere; ``approval`` has its id and expiry."""
    request = {
        "action": call.name,
        "arguments": {name: value for name, value in call.arguments.items() if value is not None},
    }
    named = {"tokenName": call.bridge.rights.name, "asked": request}
    request_lines = described(named, f" for an approval (until {_minute(approval['expires'])})")
    lines = [*map(_cut, request_lines), *_preview(call)]
    lines[MAX_LINES:] = ["  …"] if len(lines) > MAX_LINES else []
    command = short_command(approval["approval"])
    end = f"\n\nIn a terminal, `{command}` shows it whole and decides. Accept here to have the agent wait for that."
    return Question(approval["approval"], _indented(lines) + end, _seconds(approval["expires"]), decides=False)


def _preview(call: Call) -> Iterator[str]:
    if call.preview is None:
        return
    yield "  change"
    yield from (f"    {line}" for line in _changed(call))
    yield from beyond_ascii(call.preview)


def _changed(call: Call) -> Iterator[str]:
    """Yield the lines of a call's preview, cut where they are too long or too many."""
    if call.preview is None:
        return
    lines = visible(call.preview, lines=True).removesuffix("\n").replace("\r", "\\r").split("\n")
    yield from map(_cut, lines[:MAX_PREVIEW_LINES])
    if len(lines) > MAX_PREVIEW_LINES:
        yield f"… and {len(lines) - MAX_PREVIEW_LINES} more lines, which are not shown here"


def _cut(line: str) -> str:
    """Return a line, or its beginning and the number of omitted characters, so that the omission is seen."""
    more = len(line) - MAX_CHARACTERS
    return line if more <= 0 else f"{line[:MAX_CHARACTERS]}… and {more} more characters, which are not shown here"


def _indented(lines: list[str]) -> str:
    """Return lines that a client shows unchanged, except the first, even if it renders Markdown."""
    return "\n".join((lines[0], "", *(f"  {line}" for line in lines[1:])))


def _minute(expires: str) -> str:
    return f"{time_from_json(expires):%H:%M} UTC"


def _seconds(expires: str) -> float:
    return max(0.0, (time_from_json(expires) - datetime.now(timezone.utc)).total_seconds())


class _Step(Enum):
    """The consequence of a person's answer for the call."""

    AGAIN = "decided"
    WAIT = "decided elsewhere"
    STOP = "not decided"
    OPEN = "not answered yet"


@dataclass
class _Asked:
    """A question that a person sees."""

    done: anyio.Event = field(default_factory=anyio.Event)
    shown: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    calls: int = 0
    step: _Step = _Step.STOP
    error: ClientError | None = None


class Questions:
    """The questions of one server. A question outlives the call that raised it; a repeated call joins it."""

    def __init__(self, tasks: TaskGroup, approver: Approver | None) -> None:
        self.approver = approver
        self._tasks = tasks
        self._open: dict[str, _Asked] = {}

    async def ask(self, call: Call, question: Question, seconds: float) -> _Step:
        """Return the consequence of the person's answer; OPEN without an answer within ``seconds``.

        When the client has cancelled all calls that wait for the answer, the question is withdrawn.
        """
        prompt = self._open.get(question.approval)
        if prompt is None:
            prompt = self._open[question.approval] = _Asked()
            self._tasks.start_soon(self._put, call, question, prompt)
        prompt.calls += 1
        try:
            await _wait(call, prompt.done, seconds)
        except anyio.get_cancelled_exc_class():
            if prompt.calls == 1:
                prompt.shown.cancel()
            raise
        finally:
            prompt.calls -= 1
        if prompt.error is not None:
            raise prompt.error
        return prompt.step if prompt.done.is_set() else _Step.OPEN

    async def take(self, approval: str, answer: ElicitResult, *, decides: bool) -> _Step:
        """Carry out a person's answer to a question about ``approval``.

        :raises ClientError: the approver's token may not decide.
        """
        if not decides:
            return _Step.WAIT if answer.action == "accept" else _Step.STOP
        decision = decision_of(answer)
        if decision is None or self.approver is None:
            return _Step.STOP
        await anyio.to_thread.run_sync(self.approver.decide, approval, decision)
        return _Step.AGAIN

    async def _put(self, call: Call, question: Question, prompt: _Asked) -> None:
        session, related = call.context.session, call.context.request_id
        try:
            # After the approval has expired, an answer decides nothing.
            prompt.shown.deadline = anyio.current_time() + question.seconds
            with prompt.shown:
                if question.url is None:
                    answer = await session.elicit_form(question.message, question.schema, related)
                else:
                    answer = await session.elicit_url(question.message, question.url, question.approval, related)
                prompt.step = await self.take(question.approval, answer, decides=question.decides)
        except ClientError as error:
            prompt.error = error
        except (MCPError, ValidationError):
            # The client cannot ask after all, or is gone: nothing was decided.
            prompt.step = _Step.STOP
        finally:
            del self._open[question.approval]
            prompt.done.set()


@asynccontextmanager
async def questions(approver: Approver | None) -> AsyncIterator[Questions]:
    """Yield the questions of a server; open ones are withdrawn at the end."""
    async with anyio.create_task_group() as tasks:
        yield Questions(tasks, approver)
        tasks.cancel_scope.cancel()


async def with_approval(call: Call, work: Callable[[], Awaitable[Answer]]) -> Answer | InputRequiredResult:
    """Return the result of ``work``; if it needs an approval, ask the person, and repeat it.

    The result may be the question, if the answer comes with the client's next call.

    :raises ClientError: ``approval_required`` if nobody decided in time, or nobody can be asked.
    """
    waiter = _AskingCall(call)
    await waiter.resume()
    try:
        return await repeated_task(work, waiter.remedy)
    except _AskedWithAnswerError as question:
        return question.result


class _AskedWithAnswerError(Exception):
    """The call is answered with a question; its work begins again with the client's next call."""

    def __init__(self, result: InputRequiredResult) -> None:
        super().__init__()
        self.result = result


class _AskingCall:
    """One call that may need several approvals, one after another."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._questions: Questions = call.context.request_context.lifespan_context
        self._steps: dict[str, _Step] = {}
        self._pause = PAUSE_SECONDS

    async def resume(self) -> None:
        """Carry out the person's answer that comes with this call.

        This server has sealed the state for one tool and its arguments, so that no other call can use the answer.
        """
        if self._call.context.request_state is None:
            return
        approval, decides = json.loads(self._call.context.request_state)
        answer = (self._call.context.input_responses or {}).get(approval)
        if isinstance(answer, ElicitResult):
            self._steps[approval] = await self._questions.take(approval, answer, decides=decides)

    async def remedy(self, required: ClientError) -> bool:
        """Whether the work may be repeated, because a person has decided; False for errors of other kinds.

        :raises ClientError: repeating it now is useless.
        :raises _AskedWithAnswerError: the client has to put the question first.
        """
        if required.code != REQUIRED:
            return False
        approval = str(required.details.get("approval", ""))
        if not approval:
            raise _with_advice(required)
        note_asked(self._call, required)
        if not _can_ask(self._call):
            raise _with_advice(required)
        if approval not in self._steps:
            find = partial(_question, self._call, self._questions.approver, required)
            question = await anyio.to_thread.run_sync(find)
            # Earlier clients ask the person during the call. Later ones get the question as the call's answer, and call
            # again with the person's answer and a state that is sealed for this tool and these arguments.
            if is_version_at_least(self._call.context.protocol_version or "", ANSWERS_WITH_THE_RETRY):
                raise _AskedWithAnswerError(_as_answer(question))
            self._steps[approval] = await self._questions.ask(self._call, question, self._left())
        elif self._steps[approval] is _Step.WAIT:
            await self._wait_a_while(required)
        else:
            raise _with_advice(required)
        if self._steps[approval] in (_Step.STOP, _Step.OPEN):
            raise _with_advice(required, was_asked=self._steps[approval] is _Step.OPEN)
        return True

    async def _wait_a_while(self, required: ClientError) -> None:
        if self._left() <= self._pause:
            raise _with_advice(required)
        await _wait(self._call, anyio.Event(), self._pause)
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)

    def _left(self) -> float:
        return max(0.0, self._call.began + WAIT_SECONDS - time.monotonic())


def note_asked(call: Call, error: ClientError) -> None:
    """Remember a call that failed for want of an approval, so that it can be shown to the person."""
    if error.code == REQUIRED and (approval := error.details.get("approval")):
        change = [*_changed(call), *beyond_ascii(call.preview or "")]
        waiting_call = AskedCall(call.name, call.arguments, change, str(error.details.get("expires")))
        call.bridge.note_asked(str(approval), waiting_call)


async def _wait(call: Call, event: anyio.Event, seconds: float) -> None:
    """Wait up to ``seconds`` for ``event``, and meanwhile report progress to the client."""
    end = time.monotonic() + seconds
    while not event.is_set() and (left := end - time.monotonic()) > 0:
        with anyio.move_on_after(min(left, PROGRESS_SECONDS)):
            await event.wait()
        passed = time.monotonic() - call.began
        if not event.is_set():
            await call.context.report_progress(passed, message="Waiting for a person's approval.")


def _as_answer(question: Question) -> InputRequiredResult:
    params: ElicitRequestFormParams | ElicitRequestURLParams = (
        ElicitRequestFormParams(message=question.message, requested_schema=question.schema)
        if question.url is None
        else ElicitRequestURLParams(message=question.message, url=question.url)
    )
    state = json.dumps([question.approval, question.decides])
    return InputRequiredResult(input_requests={question.approval: ElicitRequest(params=params)}, request_state=state)


def _can_ask(call: Call) -> bool:
    declared = call.context.client_capabilities
    elicitation = declared.elicitation if declared else None
    return elicitation is not None and (_has_forms(call) or page_of(call, "") is not None)


def _has_forms(call: Call) -> bool:
    declared = call.context.client_capabilities
    elicitation = declared.elicitation if declared else None
    # Without any member it means forms, as it did before there were addresses.
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def page_of(call: Call, approval: str) -> str | None:
    """Return the address of an approval on the daemon's page; None if it has none that a browser opens."""
    with call.bridge.client() as client:
        is_page = client.base_url.startswith(("http://", "https://"))
        return f"{client.base_url}/#/approvals/{approval}" if is_page else None


def short_command(approval: str) -> str:
    """Return the command that shows an approval in a terminal, and decides."""
    return f"connmgr approve {approval[:8]}"


def _question(call: Call, approver: Approver | None, required: ClientError) -> Question:
    if not _has_forms(call):
        # Whoever is logged in there decides; accepting means that the agent waits for it.
        question = waiting(call, required.details)
        return replace(question, url=page_of(call, question.approval))
    pending = approver.find(required.details["approval"]) if approver else None
    return waiting(call, required.details) if pending is None else deciding(call, pending)


def _with_advice(required: ClientError, *, was_asked: bool = False) -> ClientError:
    """Return the error with a text for the person, who may have been asked already."""
    approval, expires = required.details.get("approval"), required.details.get("expires")
    reason = "A person was asked, and has not answered yet" if was_asked else "A person has to approve this first"
    text = f"{reason}. `{short_command(str(approval))}` decides, until {expires}."
    return ClientError(text, required.code, required.status, required.details)
