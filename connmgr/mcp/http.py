"""Streamable HTTP on the loopback interface, for many agents: each shows its own token with every request."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import anyio
import anyio.to_thread
import uvicorn
from anyio.abc import TaskStatus
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from connmgr.client import AccessDenied, Client, ClientError
from connmgr.client.credentials import TOKEN_PREFIX
from connmgr.mcp.agents import MAX_REQUESTS_OF_TOKEN, Agents, Build, ConnectedAgent, TooManyAgentsError, owner_of
from connmgr.mcp.server import BridgeServer

HOST = "127.0.0.1"
PATH = "/mcp"
VERSION_HEADER = "mcp-protocol-version"

MAX_THREADS = 256
"""Most tool calls that wait for the daemon at once, each in a thread."""

CLOSING_SECONDS = 5
RETRY = {"Retry-After": "5"}

MAX_CONNECTIONS = 512
"""Most connections at once; one more takes the place of a client without a valid token, or of one that asks nothing."""

MOST_ACCEPTED_AT_ONCE = 16
"""Most connections that are accepted before what has come on earlier ones is read.

asyncio accepts so many at a time as uvicorn's ``backlog`` says, 2,048 by default: a flood of new connections would
displace an agent's before its token is read.
"""

HEADER_SECONDS = 10.0
"""Time to send the head of the next request; after at most twice this time the connection is closed."""

REFUSAL_SECONDS = 0.02
"""Pause between the refusals of clients without a valid token. One costs this process half a millisecond."""

MOST_REFUSALS_AT_ONCE = 50
"""Refusals that come without a pause after a quiet time, so that a client that looks how to log in does not wait."""

BEGINNING_SECONDS = 0.1
"""Pause between two sessions that begin with the same token. One costs this process 14 ms, and the daemon 6."""

MOST_BEGINNINGS_AT_ONCE = 32
"""Sessions of a token that begin without a pause after a quiet time."""

BACKLOG = 4096
"""Connections that the kernel keeps until they are accepted; it drops others, which try again only after a second."""

MOST_PASSED_OVER = 256
"""Most connections of clients that have left again that are closed before others are served."""

CALLER = "connmgr.caller"
"""The key in a request's scope for its :class:`AgentConnection`."""


class AgentConnection(H11Protocol):
    """One connection, closed if no request begins on it in time."""

    is_known = False
    """Whether a request on it has shown a valid token."""

    waits: anyio.CancelScope | None = None
    """Cancelled when the connection is lost, so that a client that has left takes no turn from others."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.waits is not None:
            self.waits.cancel()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        application = self.app

        async def named(scope: Scope, receive: Receive, send: Send) -> None:
            scope[CALLER] = self
            await application(scope, receive, send)

        self.app = named
        self._made = self.loop.time()
        self._look_again()
        if len(self.connections) > MAX_CONNECTIONS:
            self._displace()

    @property
    def _waits(self) -> bool:
        return self.cycle is None or bool(self.cycle.response_complete)

    def _displace(self) -> None:
        """Close another connection for this one, or this one if all others are of use."""
        others = [
            connection
            for connection in self.connections
            if isinstance(connection, AgentConnection)
            and not connection.transport.is_closing()
            and (connection._waits or not connection.is_known)
        ]
        # This one came last, and is not known yet. A client that reads nothing must not delay the end.
        min(
            others, key=lambda connection: (connection.is_known, connection is self, connection._made)
        ).transport.abort()

    def _look_again(self) -> None:
        self.loop.call_later(HEADER_SECONDS, self._look, self.cycle)

    def _look(self, seen: object) -> None:
        if self.transport.is_closing():
            return
        if self._waits and self.cycle is seen:
            self.transport.close()
        else:
            self._look_again()


class _Turns:
    """Lets connections go on one after the other, in the order in which they came.

    Each turn is ``seconds`` long, apart from the first ``at_once`` after a quiet time. So whoever asks again and again
    for what costs this process much only waits; until a token is known to be valid, the connections that wait are among
    those that are displaced first.
    """

    def __init__(self, seconds: float, at_once: int) -> None:
        self._seconds, self._at_once = seconds, at_once
        self._turn = anyio.Lock()
        self._due = 0.0
        self.waiting = 0

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits, and all turns are over."""
        return not self.waiting and self._due <= anyio.current_time()

    async def turn(self, caller: AgentConnection) -> bool:
        """Wait for the turn of ``caller``; return False at once when it has left."""
        if caller.transport.is_closing():
            return False
        self.waiting += 1
        try:
            with anyio.CancelScope() as caller.waits:
                async with self._turn:
                    due = max(self._due, anyio.current_time())
                    await anyio.sleep_until(due - self._at_once * self._seconds)
                    self._due = due + self._seconds
        finally:
            self.waiting -= 1
        return not caller.waits.cancel_called


class _Reply:
    """The answer to a client, and how much of it was sent."""

    def __init__(self, send: Send, opening: ConnectedAgent | None) -> None:
        self._send = send
        self._opening = opening
        self.status: int | None = None
        self.whole = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self._opening is not None and self.succeeded:
                headers = dict(message["headers"])
                self._opening.session = headers[MCP_SESSION_ID_HEADER.encode()].decode("latin-1")
        elif message["type"] == "http.response.body":
            self.whole = not message.get("more_body", False)
        await self._send(message)

    @property
    def succeeded(self) -> bool:
        return self.status is not None and self.status < 400


class App:
    """The ASGI application: it authenticates each request, and passes it to its agent.

    With ``only``, requests with any other token are refused.
    """

    def __init__(self, agents: Agents, port: int, only: str | None) -> None:
        self._agents = agents
        self._only = only
        names = [f"{host}:{port}" for host in (HOST, "localhost", "[::1]")]
        allowed = TransportSecuritySettings(allowed_hosts=names, allowed_origins=[f"http://{name}" for name in names])
        self._names = TransportSecurityMiddleware(allowed)
        self._refusals = _Turns(REFUSAL_SECONDS, MOST_REFUSALS_AT_ONCE)
        self._beginnings: dict[bytes, _Turns] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        refusal = await self._names.validate_request(request)
        if refusal is None:
            is_mcp = request.url.path == PATH
            refusal = await self._answer(request, send) if is_mcp else _refused(404, "not_found", f"MCP is at {PATH}.")
        if refusal is not None:
            caller: AgentConnection = scope[CALLER]
            if not caller.is_known:
                await self._refusals.turn(caller)
            await refusal(scope, receive, send)

    async def _answer(self, request: Request, send: Send) -> Response | None:
        """Let the agent of the request answer it, or return the refusal."""
        token = _token(request.headers.get("authorization"))
        if token is None:
            return _unauthorized("Show a token of connmgr: `Authorization: Bearer cmgr_…`.")
        if self._only is not None and not hmac.compare_digest(token.encode(), self._only.encode()):
            return _unauthorized("This server was started for one token, and this is another one.")
        if self._agents.under_way(token) + self._waiting_to_begin(token) >= MAX_REQUESTS_OF_TOKEN:
            return _refused(429, "too_many_requests", "Too many requests are under way.", RETRY)
        # Later versions of the protocol have no sessions.
        sessions = request.headers.get(VERSION_HEADER, HANDSHAKE_PROTOCOL_VERSIONS[0]) in HANDSHAKE_PROTOCOL_VERSIONS
        session = request.headers.get(MCP_SESSION_ID_HEADER) if sessions else None
        begins = sessions and session is None and request.method == "POST"
        try:
            if begins:
                agent = await self._begin(token, request.scope[CALLER])
            elif session is None:
                agent = await self._agents.of_token(token)
            else:
                agent = await self._agents.of_session(token, session)
        except AccessDenied as error:
            return _unauthorized(error.message)
        except ClientError as error:
            return _refused(error.status if error.status >= 400 else 503, error.code, error.message, RETRY)
        except TooManyAgentsError:
            return _refused(503, "session_limit", "Too many sessions are in use: end one first.")
        if agent is None:
            return _refused(404, "unknown_session", "There is no such session: initialize a new one.")
        request.scope[CALLER].is_known = True
        return await self._by(agent, request, send, begins=begins)

    def _waiting_to_begin(self, token: str) -> int:
        turns = self._beginnings.get(owner_of(token))
        return turns.waiting if turns else 0

    async def _begin(self, token: str, caller: AgentConnection) -> ConnectedAgent | None:
        """Return a new agent when it is the turn of ``caller``, or None when that has left; raises as Agents.begin."""
        self._beginnings = {owner: turns for owner, turns in self._beginnings.items() if not turns.is_idle}
        turns = self._beginnings.setdefault(owner_of(token), _Turns(BEGINNING_SECONDS, MOST_BEGINNINGS_AT_ONCE))
        return await self._agents.begin(token) if await turns.turn(caller) else None

    async def _by(self, agent: ConnectedAgent, request: Request, send: Send, *, begins: bool) -> Response | None:
        reply = _Reply(send, agent if begins else None)
        try:
            await agent.answer(request.scope, request.receive, reply.send)
        finally:
            if (begins and agent.session is None) or (request.method == "DELETE" and reply.succeeded):
                self._agents.end(agent)
        if reply.status is None:
            # For clients, 404 means that the session has ended; they begin another one.
            return _refused(503 if agent.shared else 404, "session_ended", "The session has ended: begin another one.")
        if not reply.whole:
            await send({"type": "http.response.body", "body": b""})
        return None


def _token(authorization: str | None) -> str | None:
    """Return the token that a client shows, but never the owner's key, whose holder needs no bridge."""
    kind, _, shown = (authorization or "").partition(" ")
    return shown.strip() if kind.lower() == "bearer" and shown.strip().startswith(TOKEN_PREFIX) else None


def _unauthorized(message: str) -> Response:
    return _refused(
        401, "invalid_token", message, {"WWW-Authenticate": 'Bearer realm="connmgr", error="invalid_token"'}
    )


def _refused(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"error": code, "error_description": message}, status, headers)


class _HttpServer(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, with a queue of :data:`BACKLOG` in the kernel."""
        await super().startup(sockets)
        for listening in sockets or ():
            # asyncio has just told the kernel the number that it accepts at once.
            listening.listen(BACKLOG)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to :func:`serve`, which ends agents first."""
        yield


class ListeningSocket(socket.socket):
    """Accepts no client that has left again: closing its connection here costs a tenth of what serving it would."""

    def accept(self) -> tuple[socket.socket, Any]:
        for _ in range(MOST_PASSED_OVER):
            accepted, address = super().accept()
            if not _has_left(accepted):
                return accepted, address
            accepted.close()
        # For asyncio: nobody more for now. It looks again after it has served others.
        raise BlockingIOError


def _has_left(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def listen(port: int) -> ListeningSocket:
    """Return a socket that listens on a ``port`` of the loopback interface, 0 for a free one.

    :raises OSError: the port is taken.
    """
    created = socket.create_server((HOST, port), backlog=BACKLOG)
    listening = ListeningSocket(created.family, created.type, created.proto, created.detach())
    # Inherited by each connection, because asyncio does not always set it; an answer is sent in several pieces.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def url_of(listening: socket.socket) -> str:
    """Return the URL of the MCP server on a socket."""
    return f"http://{HOST}:{listening.getsockname()[1]}{PATH}"


async def serve(
    listening: socket.socket,
    client: Callable[[str], Client],
    ready: Callable[[], None],
    only: str | None = None,
    build: Build = BridgeServer,
) -> None:
    """Serve agents on a socket until SIGINT or SIGTERM; call ``ready`` once these signals end it cleanly.

    ``client`` makes clients of the daemon that show a token, in any thread. With ``only`` any other token is refused.
    """
    anyio.to_thread.current_default_thread_limiter().total_tokens = MAX_THREADS
    async with anyio.create_task_group() as tasks:
        agents = Agents(client, build, tasks)
        server = _HttpServer(
            uvicorn.Config(
                App(agents, listening.getsockname()[1], only),
                lifespan="off",
                http=AgentConnection,
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                backlog=MOST_ACCEPTED_AT_ONCE,
                timeout_graceful_shutdown=CLOSING_SECONDS,
            )
        )
        await tasks.start(_until_signal, server, agents)
        ready()
        await server.serve(sockets=[listening])
        tasks.cancel_scope.cancel()


async def _until_signal(server: _HttpServer, agents: Agents, *, task_status: TaskStatus[None]) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            agents.end_all()
            server.should_exit = True
