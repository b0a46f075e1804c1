"""Connections to the HTTP server; idle ones are closed, because their number is limited."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0
"""Time to send the head of the next request; after at most twice this time the connection is closed."""


class Caller(H11Protocol):
    """One connection, closed if no request begins on it in time."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look_again()

    def _look_again(self) -> None:
        self.loop.call_later(HEADER_SECONDS, self._look, self.cycle)

    def _look(self, seen: object) -> None:
        if self.transport.is_closing():
            return
        waits = self.cycle is None or self.cycle.response_complete
        if waits and self.cycle is seen:
            self.transport.close()
        else:
            self._look_again()
