"""A command that runs on is a task for clients that declare the extension: polled, answered, cancelled, found again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import anyio
import pytest
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.shared.exceptions import MCPError
from mcp_types import MISSING_REQUIRED_CLIENT_CAPABILITY, CallToolResult, Request, RequestParams, Result
from pydantic import ConfigDict

from connmgr.client import LOCAL_MACHINE
from connmgr.mcp.tasks import IDENTIFIER
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.mcp.agent import LOCAL, content
from tests.mcp.near import EVERYTHING, Agent, run
from tests.rights import wire

POLL_SECONDS = 0.2


class Handle(Result):
    model_config = ConfigDict(extra="allow")
    result_type: Literal["task"] = "task"
    task_id: str
    status: str


class Named(RequestParams):
    task_id: str


class Updated(Named):
    input_responses: dict[str, Any]


class Asking(Request[Updated | Named, str]):
    name_param: ClassVar[str | None] = "taskId"


class Told(Result):
    model_config = ConfigDict(extra="allow")


class Declares(ClientExtension):
    """Declares the extension, and keeps each handle; the result in its place is an error, which has no schema."""

    identifier = IDENTIFIER

    def __init__(self) -> None:
        self.handles: list[dict[str, Any]] = []

    def claims(self) -> list[ResultClaim[Handle]]:
        return [ResultClaim(result_type="task", model=Handle, resolve=self._resolve)]

    async def _resolve(self, handle: Handle, _: ClaimContext) -> CallToolResult:
        self.handles.append(handle.model_dump(mode="json", by_alias=True))
        return CallToolResult(content=[], is_error=True)


async def ask(agent: Agent, method: str, task: str, **more: Any) -> dict[str, Any]:
    params = Updated(task_id=task, **more) if more else Named(task_id=task)
    told = await agent.client.session.send_request(Asking(method=method, params=params), Told)
    return told.model_dump(mode="json", by_alias=True)


async def begun(agent: Agent, extension: Declares, **arguments: Any) -> dict[str, Any]:
    """Return the handle of the task that a command has become."""
    await agent.client.call_tool("run_command", {**LOCAL, "wait": 0, **arguments})
    return extension.handles.pop()


async def ended(agent: Agent, task: str, *statuses: str) -> dict[str, Any]:
    # The agent's own deadline ends this.
    while (found := await ask(agent, "tasks/get", task))["status"] not in statuses:
        await anyio.sleep(POLL_SECONDS)
    return found


def test_a_task_is_polled_and_found_again_by_another_client(daemon: Daemon) -> None:
    tasks: list[str] = []
    extension = Declares()

    async def begins(agent: Agent) -> None:
        handle = await begun(agent, extension, command="read line; echo $line", openStdin=True)
        assert (handle["resultType"], handle["status"], handle["ttlMs"]) == ("task", "working", None)
        tasks.append(handle["taskId"])
        assert (await ask(agent, "tasks/get", tasks[0]))["status"] in ("working", "input_required")

    async def resumes(agent: Agent) -> None:
        waits = await ended(agent, tasks[0], "input_required")
        [(key, asked)] = waits["inputRequests"].items()
        assert asked["method"] == "elicitation/create"
        accepted = {"action": "accept", "content": {"answer": "hello"}}
        await ask(agent, "tasks/update", tasks[0], input_responses={"another": accepted})
        await ask(agent, "tasks/update", tasks[0], input_responses={key: accepted})
        over = await ended(agent, tasks[0], "completed")
        assert over["resultType"] == "complete"
        assert over["result"]["structuredContent"]["stdout"] == "hello\n"
        # It is over: an answer and a cancellation change nothing.
        await ask(agent, "tasks/update", tasks[0], input_responses={key: accepted})
        await ask(agent, "tasks/cancel", tasks[0])
        assert (await ask(agent, "tasks/get", tasks[0]))["status"] == "completed"

    holder = wire.create(daemon, *EVERYTHING)
    for work in (begins, resumes):
        run(daemon, work, holder=holder, extensions=[extension])


def test_a_task_is_cancelled_once_or_twice(daemon: Daemon) -> None:
    extension = Declares()

    async def work(agent: Agent) -> None:
        task = (await begun(agent, extension, command="sleep 1000"))["taskId"]
        await ask(agent, "tasks/cancel", task)
        assert (await ended(agent, task, "cancelled"))["ttlMs"] > 0
        await ask(agent, "tasks/cancel", task)

    run(daemon, work, extensions=[extension])


def test_quick_commands_and_other_clients_get_answers_as_before(daemon: Daemon) -> None:
    async def quick(agent: Agent) -> None:
        assert (await agent.call("run_command", **LOCAL, command="echo x", wait=40))["stdout"] == "x\n"

    async def other(agent: Agent) -> None:
        ran = await agent.call("run_command", **LOCAL, command="sleep 1000", wait=0)
        assert ran["state"] in ("starting", "running")
        await agent.call("stop_job", job=ran["job"])

    run(daemon, quick, extensions=[Declares()])
    run(daemon, other)
    run(daemon, other, mode="legacy")


def test_the_task_of_an_agent_is_unknown_to_one_that_does_not_see_its_system(daemon: Daemon) -> None:
    tasks: list[str] = []
    extension = Declares()

    async def begins(agent: Agent) -> None:
        tasks.append((await begun(agent, extension, command="read line; echo $line", openStdin=True))["taskId"])

    async def takes(agent: Agent) -> None:
        accepted = {"action": "accept", "content": {"answer": "mine"}}
        for id in (tasks[0], "3f0e4f0a-8f3c-4b5e-9c55-0a51c0f8d0b7", "no id"):
            for method in ("tasks/get", "tasks/cancel"):
                with pytest.raises(MCPError, match="unknown_job"):
                    await ask(agent, method, id)
            with pytest.raises(MCPError, match="unknown_job"):
                await ask(agent, "tasks/update", id, input_responses={"any": accepted})

    async def ends(agent: Agent) -> None:
        assert (await ask(agent, "tasks/get", tasks[0]))["status"] in ("working", "input_required")
        await ask(agent, "tasks/cancel", tasks[0])

    owner = wire.create(daemon, *EVERYTHING)
    other = wire.create(daemon, *EVERYTHING, connections=["nothing-of-this"])
    for work, holder in ((begins, owner), (takes, other), (ends, owner)):
        run(daemon, work, holder=holder, extensions=[extension])


def test_a_task_is_found_again_after_the_end_of_its_client_and_of_the_daemon(
    start_daemon: StartDaemon, tmp_path: Path
) -> None:
    daemon = start_daemon()
    holder = wire.create(daemon, *EVERYTHING)
    extension, gate, tasks = Declares(), tmp_path / "gate", list[str]()

    async def begins(agent: Agent) -> None:
        command = f"echo begun; until [ -e {gate} ]; do sleep 0.1; done; echo over; exit 5"
        tasks.append((await begun(agent, extension, command=command))["taskId"])

    async def finds(agent: Agent) -> None:
        assert (await ask(agent, "tasks/get", tasks[0]))["status"] == "working"
        gate.touch()
        result = (await ended(agent, tasks[0], "completed"))["result"]
        told = result["structuredContent"]
        assert (told["exitCode"], told["stdout"]) == (5, "begun\nover\n")

    run(daemon, begins, holder=holder, extensions=[extension])
    daemon.kill()
    again = start_daemon(home=daemon.home)
    again.client.shell.start(LOCAL_MACHINE)
    run(again, finds, holder=holder, extensions=[extension])


def test_a_client_that_has_not_declared_tasks_is_told_what_is_missing(daemon: Daemon) -> None:
    async def work(agent: Agent) -> None:
        for method in ("tasks/get", "tasks/cancel"):
            with pytest.raises(MCPError) as refusal:
                await ask(agent, method, "3f0e4f0a-8f3c-4b5e-9c55-0a51c0f8d0b7")
            assert refusal.value.error.code == MISSING_REQUIRED_CLIENT_CAPABILITY

    run(daemon, work)


def test_lists_say_how_long_they_hold_and_cut_output_links_to_its_rest(daemon: Daemon) -> None:
    async def work(agent: Agent) -> None:
        listed = await agent.client.list_tools()
        assert (listed.ttl_ms, listed.cache_scope) == (300_000, "private")
        much = {"command": "seq 9999", "maxBytes": 256, "wait": 40}
        found = await agent.client.call_tool("run_command", {**LOCAL, **much})
        job = content(found)["job"]
        assert [one.uri for one in found.content if one.type == "resource_link"] == [f"connmgr://job/{job}/stdout"]

    run(daemon, work)
