"""A user who answers an agent's client, and this client with a server in the tests' own process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, closing
from typing import Any

import anyio
import anyio.to_thread
from mcp import Client
from mcp.client.context import ClientRequestContext
from mcp_types import CallToolResult, ElicitRequestFormParams, ElicitRequestParams, ElicitResult

from connmgr.client import Client as DaemonClient
from connmgr.mcp.approval import Approver
from connmgr.mcp.bridge import Bridge
from connmgr.mcp.server import BridgeServer
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS
from tests.rights.wire import Holder

Answer = ElicitResult | Callable[[ElicitRequestFormParams], ElicitResult]

CLOSED = ElicitResult(action="cancel")
DECLINED = ElicitResult(action="decline")
ACCEPTED = ElicitResult(action="accept", content={})


class Person:
    """A user who gives the client one answer after the other; an answer may be a function of the question."""

    def __init__(self, *answers: Answer) -> None:
        self.asked: list[ElicitRequestFormParams] = []
        self.answers = list(answers)

    async def __call__(self, _: ClientRequestContext, asked: ElicitRequestParams) -> ElicitResult:
        assert isinstance(asked, ElicitRequestFormParams)
        self.asked.append(asked)
        answer = self.answers.pop(0)
        return answer if isinstance(answer, ElicitResult) else await anyio.to_thread.run_sync(answer, asked)


def chosen(decision: str) -> ElicitResult:
    """Return the answer of a user who fills in the form."""
    return ElicitResult(action="accept", content={"decision": decision})


@asynccontextmanager
async def client_of(
    daemon: Daemon, holder: Holder, mode: str, person: Person | None = None, approver: Holder | None = None
) -> AsyncIterator[Client]:
    """Yield a client of a server in this process, with the token of ``holder`` and, to decide, that of ``approver``."""
    with ExitStack() as stack:
        bridge = stack.enter_context(closing(Bridge(DaemonClient(daemon.url, daemon.auth_file, holder.secret))))
        decider = None
        if approver is not None:
            own = stack.enter_context(closing(DaemonClient(daemon.url, daemon.auth_file, approver.secret)))
            decider = Approver(own)
        with anyio.fail_after(DEADLINE_SECONDS):
            server = BridgeServer(bridge, decider)
            async with Client(
                server, mode=mode, read_timeout_seconds=DEADLINE_SECONDS, elicitation_callback=person
            ) as client:
                yield client


async def ran(client: Client, command: str, **more: Any) -> CallToolResult:
    """Call run_command on the daemon's machine."""
    return await client.call_tool("run_command", {"system": "local machine", "command": command, **more})
