"""Connections to the HTTP server; idle ones are closed, because their number is limited."""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 512
"""Most connections at once; one more takes the place of a client without a valid token, or of one that asks nothing."""

HEADER_SECONDS = 10.0
"""Time to send the head of the next request; after at most twice this time the connection is closed."""

CALLER = "connmgr.caller"
"""The key in a request's scope for its :class:`AgentConnection`."""


class AgentConnection(H11Protocol):
    """One connection, closed if no request begins on it in time."""

    is_known = False
    """Whether a request on it has shown a valid token."""

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
            one
            for one in self.connections
            if isinstance(one, AgentConnection) and not one.transport.is_closing() and (one._waits or not one.is_known)
        ]
        # This one came last, and is not known yet. A client that reads nothing must not delay the end.
        min(others, key=lambda one: (one.is_known, one is self, one._made)).transport.abort()

    def _look_again(self) -> None:
        self.loop.call_later(HEADER_SECONDS, self._look, self.cycle)

    def _look(self, seen: object) -> None:
        if self.transport.is_closing():
            return
        if self._waits and self.cycle is seen:
            self.transport.close()
        else:
            self._look_again()
