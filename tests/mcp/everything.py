"""``connmgr mcp --http`` with the additional tools that the conformance suite needs."""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import Annotated

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.prompts import Prompt
from mcp.server.mcpserver.resolve import Elicit, ElicitationResult, ListRoots, Resolve, Sample
from mcp_types import (
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    ListRootsResult,
    SamplingMessage,
    TextContent,
)
from pydantic import BaseModel, Field

from connmgr.client import Client
from connmgr.mcp import server, tasks
from connmgr.mcp.bridge import Bridge
from connmgr.mcp.http import listen, serve, url_of
from connmgr.mcp.output import Ran
from connmgr.mcp.stdio import log_to_stderr
from connmgr.mcp.tool import Call, tool
from connmgr.mcp.tools import commands
from tests.mcp.bridge import READY

STEPS = (0, 50, 100)
STEP_SECONDS = 0.05


class Person(BaseModel):
    username: str = Field(description="User's response")
    email: str = Field(description="User's email address")


class Name(BaseModel):
    name: str


class Agreed(BaseModel):
    ok: bool


def _asked(prompt: str) -> Sample:
    message = SamplingMessage(role="user", content=TextContent(type="text", text=prompt))
    return Sample([message], max_tokens=100)


def _sampled(prompt: str) -> Sample:
    return _asked(prompt)


def _capital() -> Sample:
    return _asked("What is the capital of France?")


def _person(message: str) -> Elicit[Person]:
    return Elicit(message, Person)


def _name() -> Elicit[Name]:
    return Elicit("What is your name?", Name)


def _agreed() -> Elicit[Agreed]:
    return Elicit("Please confirm", Agreed)


def _roots() -> ListRoots:
    return ListRoots()


def test_simple_text() -> str:
    return "This is a simple text response for testing."


def test_error_handling() -> str:
    raise ValueError("This tool intentionally returns an error for testing")


async def test_tool_with_progress(context: Context) -> str:
    for step in STEPS:
        await context.report_progress(step, 100)
        await anyio.sleep(STEP_SECONDS)
    return "done"


async def test_streaming_elicitation(context: Context, name: Annotated[Name, Resolve(_name)]) -> str:
    await context.report_progress(1, 1)
    return name.name


def test_sampling(prompt: str, said: Annotated[CreateMessageResult, Resolve(_sampled)]) -> str:
    return f"LLM response: {said.content}"


def test_missing_capability(said: Annotated[CreateMessageResult, Resolve(_capital)]) -> str:
    return str(said.content)


def test_elicitation(message: str, person: Annotated[ElicitationResult[Person], Resolve(_person)]) -> str:
    return f"User response: {person}"


def _question(message: str, member: str) -> ElicitRequest:
    """Return a question as approvals put it."""
    form = {"type": "object", "properties": {member: {"type": "string"}}, "required": [member]}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=form))


async def test_input_required_result_elicitation(context: Context) -> str | InputRequiredResult:
    answer = (context.input_responses or {}).get("user_name")
    if not isinstance(answer, ElicitResult):
        return InputRequiredResult(input_requests={"user_name": _question("What is your name?", "name")})
    return f"Hello, {(answer.content or {})['name']}!"


def test_simple_prompt() -> str:
    return "This is a simple prompt for testing."


def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


def static_text() -> str:
    return "This is the content of the static text resource."


def template(id: str) -> str:
    return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


def test_input_required_result_sampling(said: Annotated[CreateMessageResult, Resolve(_capital)]) -> str:
    return str(said.content)


def test_input_required_result_list_roots(roots: Annotated[ListRootsResult, Resolve(_roots)]) -> str:
    return str(roots.roots)


def test_input_required_result_request_state(agreed: Annotated[Agreed, Resolve(_agreed)]) -> str:
    return f"state-ok {agreed.ok}"


def test_input_required_result_tampered_state(agreed: Annotated[Agreed, Resolve(_agreed)]) -> str:
    return str(agreed.ok)


TOOLS = (
    test_simple_text,
    test_error_handling,
    test_tool_with_progress,
    test_streaming_elicitation,
    test_sampling,
    test_missing_capability,
    test_elicitation,
    test_input_required_result_elicitation,
    test_input_required_result_sampling,
    test_input_required_result_list_roots,
    test_input_required_result_request_state,
    test_input_required_result_tampered_state,
)


def test_greeting(name: str) -> str:
    return f"Hello, {name}!"


@tool("job.start", "job.output", runs=True)
def slow_compute(call: Call, seconds: int = 0, label: str = "") -> Ran:
    """Sleep, and say so."""
    return _commanded(call, ["sh", "-c", 'sleep "$0"; echo "$1"', str(seconds), label], wait=0 if seconds else 20)


@tool("job.start", "job.output", runs=True)
def confirm_delete(call: Call, filename: str = "") -> Ran:
    """Ask before it deletes, which it does not."""
    words = ["sh", "-c", 'printf "Delete %s? " "$0"; read -r answer; echo "$answer"', filename]
    return _commanded(call, words, wait=0, opened=True)


@tool("job.start", "job.output", runs=True)
def failing_job(call: Call) -> Ran:
    """Fail."""
    return _commanded(call, ["sh", "-c", "sleep 1; exit 1"], wait=0)


def _commanded(call: Call, argv: list[str], *, wait: float, opened: bool = False) -> Ran:
    with call.shell("local machine") as shell:
        return commands.run(shell, {"argv": argv}, "", moves=False, opened=opened, wait=wait, most=4096)


COMMANDS = (slow_compute, failing_job, confirm_delete)
"""Tools that run a command, which may become a task, under the names that the suite has for them."""


def build(bridge: Bridge) -> MCPServer:
    """Return a bridge's server with the additional tools of the suite."""
    made = server.BridgeServer(bridge)
    for one in TOOLS:
        made.add_tool(one, description=one.__name__.replace("_", " "))
    for prompt in (test_simple_prompt, test_prompt_with_arguments):
        made.add_prompt(Prompt.from_function(prompt, description=prompt.__name__.replace("_", " ")))
    made.resource("test://static-text", mime_type="text/plain")(static_text)
    made.resource("test://template/{id}/data", mime_type="application/json")(template)
    made.add_tool(test_greeting, name="greet", description="Greet somebody.")
    for command in COMMANDS:
        made._tool_manager._tools[command.name] = command.bound(bridge)
    return made


def main(url: str) -> None:
    """Serve agents of the daemon at ``url`` on a free port."""
    own = {command.name for command in COMMANDS}
    tasks._starts_command = lambda name: name in own
    # As in the program: the SDK's own log would colour each traceback, which takes seconds.
    log_to_stderr()
    with listen(0) as listening:
        ready = f"{READY}{url_of(listening)}"
        served = partial(serve, build=build)
        anyio.run(served, listening, lambda token: Client(url, api_key=token), lambda: print(ready, flush=True))


if __name__ == "__main__":
    main(sys.argv[2])
