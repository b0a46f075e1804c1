"""The daemon as one agent sees it: a token, what that allows, and the shell session that is the agent's own."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import anyio

from connmgr.client import Client, ClientError, ShellInfo
from connmgr.client.names import UNKNOWN, UUID, meant
from connmgr.client.rights import Rights

ANSWER_SECONDS = 40.0
"""Seconds for one answer of the daemon. A tool answers the agent before its client gives up, often after 60."""

MAX_CALLS = 32
"""Most calls of one agent at the same time; each has a thread."""

MAX_IDLE_CLIENTS = 8
STOP_SECONDS = 3.0
"""Seconds for stopping all shells when the agent has left."""

UNSETTLED_SECONDS = 300.0
MAX_UNSETTLED = 100
"""Most remembered starts of jobs whose answers were lost."""

MAX_CANDIDATES = 20
"""Most systems that the message on an ambiguous name lists."""


@dataclass(frozen=True)
class Place:
    """Where commands run: a connection's uuid, and the name of a shell on it."""

    connection: str
    session: str


@dataclass(frozen=True)
class _Start:
    """A job that is to be started, whose call began at a time.monotonic()."""

    start: str
    given_up: threading.Event
    began: float


class Bridge:
    """What the tools of one agent share. Safe to use from several threads; :meth:`close` when the agent has gone.

    ``client`` shows the token, and belongs to the bridge from now on.

    :raises ClientError: the daemon cannot be reached, or rejects the token.
    """

    def __init__(self, client: Client) -> None:
        self.session = f"mcp-{secrets.token_hex(4)}"
        self.rights: Rights = client.token.info()
        self.threads = anyio.CapacityLimiter(MAX_CALLS)
        self._first = client
        self._lock = threading.Lock()
        self._idle: list[Client] = []
        self._lent: set[Client] = set()
        self._closed = False
        self._directories: dict[Place, str] = {}
        self._keys: dict[str, _Start] = {}
        self._homes: dict[Place, str] = {}

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        """Lend a client to the thread that asks; it waits up to :data:`ANSWER_SECONDS` for an answer."""
        with self._lock:
            lent = self._idle.pop() if self._idle else self._first.clone(ANSWER_SECONDS)
            self._lent.add(lent)
        try:
            yield lent
        finally:
            lent.answer_by(None)
            with self._lock:
                self._lent.discard(lent)
                keep = not self._closed and len(self._idle) < MAX_IDLE_CLIENTS
                if keep:
                    self._idle.append(lent)
            if not keep:
                lent.close()

    def place(self, client: Client, system: str, session: str | None) -> Place:
        """Return where ``system`` and ``session`` lead; without a session it is the agent's own.

        :raises ClientError: ``unknown_connection``: none or several are called so.
        """
        return Place(_only(client, system), session or self.session)

    def directory(self, place: Place) -> str | None:
        """Return where the last command in ``place`` ended, None if that is where its shell is."""
        with self._lock:
            return self._directories.get(place)

    def ended_in(self, place: Place, directory: str | None) -> None:
        """Let the next command in ``place`` begin where one has ended."""
        with self._lock:
            if directory is not None and directory == self._homes.get(place):
                # What was approved in a shell's own directory is approved there again.
                self._directories.pop(place, None)
            elif directory is not None:
                self._directories[place] = directory

    def forget_directory(self, place: Place) -> None:
        """Let the next command in ``place`` begin where its shell is."""
        with self._lock:
            self._directories.pop(place, None)

    def key_of(self, start: str, given_up: threading.Event) -> str:
        """Return the key with which a job is started.

        It is that of an earlier call with the same ``start`` of which nobody knows what became: ``given_up`` is set
        when nobody waits for a call any more. Calls that go on at the same time have keys of their own, and after
        :data:`UNSETTLED_SECONDS` the same is meant anew.
        """
        with self._lock:
            since = time.monotonic() - UNSETTLED_SECONDS
            left = (key for key, one in self._keys.items() if one.start == start and one.given_up.is_set())
            key = next((one for one in left if self._keys[one].began > since), f"{self.session}-{secrets.token_hex(8)}")
            while len(self._keys) >= MAX_UNSETTLED:
                del self._keys[next(iter(self._keys))]
            self._keys[key] = _Start(start, given_up, time.monotonic())
            return key

    def settled(self, key: str) -> None:
        """Take note that it is known what became of the start with ``key``: the same again is another job."""
        with self._lock:
            self._keys.pop(key, None)

    def start_shell(self, client: Client, place: Place) -> ShellInfo:
        """Start the shell of ``place``, unless it runs, and describe it.

        One of the agent's own session is stopped with the agent.
        """
        started = client.shell.start(place.connection, session=place.session)
        with self._lock:
            if place.session != self.session or place in self._homes:
                return started
        found = client.shell.list(place.connection)
        home = next((one.directory for one in found if one.status.session == place.session), "")
        with self._lock:
            self._homes[place] = home
        return started

    def close(self) -> None:
        """Stop the agent's own shells, but no job; have calls under way fail, and close all that is idle."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for lent in self._lent:
                lent.abandon()
            places = list(self._homes)
        self._first.answer_by(time.monotonic() + STOP_SECONDS)
        for place in places:
            # It is stopped anyway when it was idle for long.
            with contextlib.suppress(ClientError):
                self._first.shell.stop(place.connection, session=place.session)
        for client in (*idle, self._first):
            client.close()


def _only(client: Client, name: str) -> str:
    found = [name.lower()] if UUID.fullmatch(name) else meant(client, name)
    if not found:
        raise ClientError(f"No system is called {name!r}.", UNKNOWN, 0)
    if len(found) > 1:
        infos = client.connection.info(found[:MAX_CANDIDATES])
        names = ", ".join(sorted("/".join((*one.category, *one.name)) for one in infos))
        raise ClientError(f"{name!r} may be any of {len(found)} systems: {names}.", UNKNOWN, 0)
    return found[0]
