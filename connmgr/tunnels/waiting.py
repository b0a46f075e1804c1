"""Clients of a tunnel that wait until its way is open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from connmgr.streams.loop import Loop, Timer
from connmgr.tunnels.ends import End

HOLD_SECONDS = 10.0
"""Longest wait of a client for the way."""


@dataclass(eq=False)
class Client:
    """A client, its destination, and its data so far; ``answer`` tells a SOCKS client the outcome."""

    end: End
    to: tuple[str, int]
    early: bytes = b""
    answer: Callable[[bool], bytes] = lambda _: b""
    timer: Timer | None = field(default=None)


class Waiting:
    """Holds clients, each for :data:`HOLD_SECONDS` in all. Belongs to the thread of the loop."""

    def __init__(self, loop: Loop, give_up: Callable[[Client], None]) -> None:
        self._loop, self._give_up = loop, give_up
        self._clients: dict[Client, None] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def hold(self, client: Client) -> None:
        """Hold ``client``; if it was held before, for the rest of its time."""
        self._clients[client] = None
        if client.timer is None:
            client.timer = self._loop.after(HOLD_SECONDS, lambda: self._time_is_over(client))

    def take(self) -> list[Client]:
        """Return and release all held clients; the time of each goes on."""
        taken = list(self._clients)
        self._clients.clear()
        return taken

    def release(self, client: Client) -> None:
        """End the wait of ``client``."""
        self._clients.pop(client, None)
        if client.timer is not None:
            client.timer.cancel()

    def _time_is_over(self, client: Client) -> None:
        # A client whose stream is being dialled gets its answer from that.
        if client in self._clients:
            del self._clients[client]
            self._give_up(client)
