"""The agents of an HTTP server: each has shown a token, and has its own bridge and session."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from hashlib import sha256

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup, TaskStatus
from mcp.server.mcpserver import MCPServer
from starlette.types import Receive, Scope, Send

from connmgr.client import AccessDenied, Client, ClientError
from connmgr.mcp.bridge import Bridge

IDLE_SECONDS = 30 * 60.0
"""An agent that neither sends nor listens for so many seconds is ended."""

CHECK_SECONDS = 30.0
"""Interval at which the daemon is asked whether it still accepts an agent's token."""

MAX_AGENTS = 128
MAX_AGENTS_OF_TOKEN = 16
"""Far fewer than the sessions that the daemon allows a token."""

MAX_REQUESTS_OF_TOKEN = 64
"""Requests under way at once, listening ones included; each tool call needs one of the threads that agents share."""

MAX_UNKNOWN = 32
"""Tokens that the daemon is asked about at once, so that invented ones leave threads to the agents that are known."""

MAX_BODY_BYTES = 16 * 1024 * 1024

Build = Callable[[Bridge], MCPServer]


class TooManyAgentsError(Exception):
    """No agent is accepted until one has left."""


class ConnectedAgent:
    """One agent: the server of its requests, and when it was last heard of. For one event loop."""

    def __init__(self, owner: bytes, bridge: Bridge, server: MCPServer, *, shared: bool) -> None:
        self.owner = owner
        self.shared = shared
        """Whether it serves all requests that show its token without a session."""

        self.session: str | None = None
        self.heard = self.checked = anyio.current_time()
        self._bridge = bridge
        # Sessions end with their agent, and App checks requests before they come here.
        server.streamable_http_app(max_request_body_size=MAX_BODY_BYTES, session_idle_timeout=None, host="")
        self._manager = server.session_manager
        self._requests: set[anyio.CancelScope] = set()
        self._over = anyio.Event()

    @property
    def idle(self) -> bool:
        return not self._requests

    @property
    def under_way(self) -> int:
        """The number of its requests that are not answered yet."""
        return len(self._requests)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; if the agent ends meanwhile, the answer may be cut short or missing."""
        if self._over.is_set():
            return
        with anyio.CancelScope() as request:
            self._requests.add(request)
            try:
                await self._manager.handle_request(scope, receive, send)
            finally:
                self._requests.discard(request)
                self.heard = anyio.current_time()

    def check_token(self) -> None:
        """Return if the daemon still accepts the token; raise ClientError if not, or if it cannot be reached."""
        with self._bridge.client() as client:
            client.token.info()

    def end(self) -> None:
        """Cancel its requests, and end."""
        self._over.set()
        for request in self._requests:
            request.cancel()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve requests until the block is left."""
        try:
            async with self._manager.run():
                yield
        finally:
            # Also where the task is cancelled: shells of the agent must not stay behind on machines.
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._bridge.close)

    async def over(self) -> None:
        """Return when the agent has ended, or was silent for too long."""
        while not self._over.is_set():
            since = anyio.current_time() if self._requests else self.heard
            with anyio.move_on_at(since + IDLE_SECONDS):
                await self._over.wait()
            if self.idle and anyio.current_time() >= self.heard + IDLE_SECONDS:
                self._over.set()


class Agents:
    """The current agents. For one event loop; each agent runs in a task of ``tasks``.

    ``client`` makes clients of the daemon that show a token, ``build`` the server of a bridge; both in any thread.
    """

    def __init__(self, client: Callable[[str], Client], build: Build, tasks: TaskGroup) -> None:
        self._client = client
        self._build = build
        self._tasks = tasks
        self._agents: set[ConnectedAgent] = set()
        self._unknown = anyio.CapacityLimiter(MAX_UNKNOWN)

    def under_way(self, token: str) -> int:
        """Return the number of requests with ``token`` that are not answered yet."""
        owner = owner_of(token)
        return sum(agent.under_way for agent in self._agents if agent.owner == owner)

    async def of_session(self, token: str, session: str) -> ConnectedAgent | None:
        """Return the agent with the id ``session`` if it has shown ``token``, else None.
        :raises ClientError: as :meth:`ConnectedAgent.check_token`.
        """
        owner = owner_of(token)
        known_agent = next((agent for agent in self._agents if agent.session == session and agent.owner == owner), None)
        return None if known_agent is None else await self._check(known_agent)

    async def of_token(self, token: str) -> ConnectedAgent:
        """Return the agent of all requests that show ``token`` without a session; raises as :meth:`begin`."""
        shared_agent = self._shared(owner_of(token))
        return await self.begin(token, shared=True) if shared_agent is None else await self._check(shared_agent)

    async def begin(self, token: str, *, shared: bool = False) -> ConnectedAgent:
        """Return a new agent, or an existing one if a ``shared`` agent of ``token`` has appeared meanwhile.

        :raises ClientError: the daemon rejects the token, or cannot be reached.
        :raises TooManyAgentsError: a limit on agents is reached.
        """
        owner = owner_of(token)
        bridge, server = await anyio.to_thread.run_sync(self._make, token, limiter=self._unknown)
        try:
            # Making the bridge took a while, in which another request of the token may have come first.
            existing = self._shared(owner) if shared else None
            if existing is None:
                self._make_room(owner)
        except TooManyAgentsError:
            await anyio.to_thread.run_sync(bridge.close)
            raise
        if existing is not None:
            await anyio.to_thread.run_sync(bridge.close)
            return existing
        agent = ConnectedAgent(owner, bridge, server, shared=shared)
        self._agents.add(agent)
        await self._tasks.start(self._keep, agent)
        return agent

    def _make(self, token: str) -> tuple[Bridge, MCPServer]:
        bridge = Bridge(self._client(token))
        try:
            return bridge, self._build(bridge)
        except BaseException:
            bridge.close()
            raise

    def end(self, agent: ConnectedAgent) -> None:
        """Cancel an agent's requests, and end its session; its jobs on machines run on."""
        self._agents.discard(agent)
        agent.end()

    def end_all(self) -> None:
        """End all agents."""
        for agent in list(self._agents):
            self.end(agent)

    async def _keep(self, agent: ConnectedAgent, *, task_status: TaskStatus[None]) -> None:
        async with agent.running():
            task_status.started()
            await agent.over()
            self._agents.discard(agent)

    async def _check(self, agent: ConnectedAgent) -> ConnectedAgent:
        now = anyio.current_time()
        if now >= agent.checked + CHECK_SECONDS:
            agent.checked = now
            try:
                await anyio.to_thread.run_sync(agent.check_token)
            except AccessDenied:
                self.end(agent)
                raise
            except ClientError:
                # The daemon is away: the agent's tools report this, and the next call may find it back.
                return agent
        return agent

    def _shared(self, owner: bytes) -> ConnectedAgent | None:
        return next((agent for agent in self._agents if agent.shared and agent.owner == owner), None)

    def _make_room(self, owner: bytes) -> None:
        """If there is no room, end the idle agent of ``owner`` that was silent for the longest time.

        :raises TooManyAgentsError: none is idle.
        """
        own = [agent for agent in self._agents if agent.owner == owner]
        if len(own) < MAX_AGENTS_OF_TOKEN and len(self._agents) < MAX_AGENTS:
            return
        idle = [agent for agent in own if agent.idle]
        if not idle:
            raise TooManyAgentsError
        self.end(min(idle, key=lambda agent: agent.heard))


def owner_of(token: str) -> bytes:
    """Return what stands for the holder of ``token``, so that the token itself is not kept."""
    return sha256(token.encode()).digest()
