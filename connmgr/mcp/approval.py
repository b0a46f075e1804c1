"""Approvals: if a rule asks about a call, the agent's client asks the person in front of it.

The agent's token never decides. With an :class:`Approver`, whose token may decide, the person's answer is the decision.
Otherwise the person is told which command decides, and the call waits for it.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult
from mcp_types.version import is_version_at_least
from pydantic import BaseModel, ValidationError

from connmgr.client import ClientError
from connmgr.mcp.approver import Approver
from connmgr.mcp.call import Call
from connmgr.mcp.question import Question, deciding, decision_of, waiting

REQUIRED = "approval_required"

WAIT_SECONDS = 40.0
"""Seconds that a call waits for a person: clients may give up after 60, and the approved work takes time too."""

PROGRESS_SECONDS = 5.0
PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 4.0
"""Longest pause between two checks whether an approval was given elsewhere; each check is a request of the token."""

ANSWERS_WITH_THE_RETRY = "2026-07-28"
"""From this version of the protocol, a call is answered with the question, and the next call has the answer."""


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
        asked = self._open.get(question.approval)
        if asked is None:
            asked = self._open[question.approval] = _Asked()
            self._tasks.start_soon(self._put, call, question, asked)
        asked.calls += 1
        try:
            await _told(call, asked.done, seconds)
        except anyio.get_cancelled_exc_class():
            if asked.calls == 1:
                asked.shown.cancel()
            raise
        finally:
            asked.calls -= 1
        if asked.error is not None:
            raise asked.error
        return asked.step if asked.done.is_set() else _Step.OPEN

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

    async def _put(self, call: Call, question: Question, asked: _Asked) -> None:
        session, related = call.context.session, call.context.request_id
        try:
            asked.shown.deadline = anyio.current_time() + question.seconds
            with asked.shown:
                answer = await session.elicit_form(question.message, question.schema, related)
                asked.step = await self.take(question.approval, answer, decides=question.decides)
        except ClientError as error:
            asked.error = error
        except (MCPError, ValidationError):
            # The client cannot ask after all, or is gone: nothing was decided.
            asked.step = _Step.STOP
        finally:
            del self._open[question.approval]
            asked.done.set()


@asynccontextmanager
async def questions(approver: Approver | None) -> AsyncIterator[Questions]:
    """Yield the questions of a server; open ones are withdrawn at the end."""
    async with anyio.create_task_group() as tasks:
        yield Questions(tasks, approver)
        tasks.cancel_scope.cancel()


async def with_approval(call: Call, work: Callable[[], Awaitable[BaseModel]]) -> BaseModel | InputRequiredResult:
    """Return the result of ``work``; if it needs an approval, ask the person, and repeat it.

    The result may be the question, if the answer comes with the client's next call.

    :raises ClientError: ``approval_required`` if nobody decided in time, or nobody can be asked.
    """
    waiter = _Waiter(call)
    await waiter.resume()
    while True:
        try:
            return await work()
        except ClientError as error:
            if error.code != REQUIRED:
                raise
            required = error
        question = await waiter.settled(required)
        if question is not None:
            return question


class _Waiter:
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

    async def settled(self, required: ClientError) -> InputRequiredResult | None:
        """Return None when the work may be repeated, or the question that the client has to answer first.

        :raises ClientError: repeating it now is useless.
        """
        approval = str(required.details.get("approval", ""))
        if not approval or not _can_ask(self._call):
            raise _explained(required)
        if approval not in self._steps:
            find = partial(_question, self._call, self._questions.approver, required)
            question = await anyio.to_thread.run_sync(find)
            # Earlier clients ask the person during the call. Later ones get the question as the call's answer, and call
            # again with the person's answer and a state that is sealed for this tool and these arguments.
            if is_version_at_least(self._call.context.protocol_version or "", ANSWERS_WITH_THE_RETRY):
                return _as_answer(question)
            self._steps[approval] = await self._questions.ask(self._call, question, self._left())
        elif self._steps[approval] is _Step.WAIT:
            await self._paused(required)
        else:
            raise _explained(required)
        if self._steps[approval] in (_Step.STOP, _Step.OPEN):
            raise _explained(required, asked=self._steps[approval] is _Step.OPEN)
        return None

    async def _paused(self, required: ClientError) -> None:
        if self._left() <= self._pause:
            raise _explained(required)
        await _told(self._call, anyio.Event(), self._pause)
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)

    def _left(self) -> float:
        return max(0.0, self._call.began + WAIT_SECONDS - time.monotonic())


async def _told(call: Call, event: anyio.Event, seconds: float) -> None:
    """Wait up to ``seconds`` for ``event``, and meanwhile report progress to the client."""
    end = time.monotonic() + seconds
    while not event.is_set() and (left := end - time.monotonic()) > 0:
        with anyio.move_on_after(min(left, PROGRESS_SECONDS)):
            await event.wait()
        passed = time.monotonic() - call.began
        if not event.is_set():
            await call.context.report_progress(passed, message="It waits for a person's approval.")


def _as_answer(question: Question) -> InputRequiredResult:
    params = ElicitRequestFormParams(message=question.message, requested_schema=question.schema)
    state = json.dumps([question.approval, question.decides])
    return InputRequiredResult(input_requests={question.approval: ElicitRequest(params=params)}, request_state=state)


def _can_ask(call: Call) -> bool:
    declared = call.context.client_capabilities
    elicitation = declared.elicitation if declared else None
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def _question(call: Call, approver: Approver | None, required: ClientError) -> Question:
    found = approver.find(required.details["approval"]) if approver else None
    return waiting(call, required.details) if found is None else deciding(call, found)


def _explained(required: ClientError, *, asked: bool = False) -> ClientError:
    """Return the error with a text for the person, who may have been ``asked`` already."""
    approval, expires = required.details.get("approval"), required.details.get("expires")
    told = "A person is asked, and has not answered yet" if asked else "A person has to approve this first"
    text = f"{told}. `connmgr approve {str(approval)[:8]}` decides, until {expires}."
    return ClientError(text, required.code, required.status, required.details)
