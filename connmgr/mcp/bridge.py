"""The daemon as one agent sees it: a token, its rights, and the agent's own shell session."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from connmgr.client import Client, ClientError, ShellInfo
from connmgr.client.names import find
from connmgr.contract.connection import ConnectionInfo, ConnectionInfoRequest, ConnectionInfoResponse, DialledHost
from connmgr.contract.message import from_json, given_json
from connmgr.contract.token import TokenOwnResponse as Rights

ANSWER_SECONDS = 40.0
"""Seconds for one answer of the daemon. A tool must answer before the agent's client gives up, often after 60."""

MAX_CALLS = 32
"""Most simultaneous calls of one agent; each has a thread."""

MAX_IDLE_CLIENTS = 8
STOP_SECONDS = 3.0
"""Seconds for stopping all shells after the agent has left."""

UNSETTLED_SECONDS = 300.0
MAX_ASKED = 50
"""Most remembered calls that wait for approvals."""

MAX_UNSETTLED = 100
"""Most remembered job starts whose answers were lost."""


@dataclass(frozen=True)
class AgentShell:
    """Where commands run: a connection's uuid, and the name of a shell on it."""

    connection: str
    session: str


@dataclass(frozen=True)
class AskedCall:
    """A call of a tool that waits for an approval until it ``expires``, and the ``change`` of a file that it makes."""

    name: str
    arguments: Mapping[str, Any]
    change: Sequence[str]
    expires: str


@dataclass(frozen=True)
class _Start:
    """A job to be started, and the time.monotonic() at which its call began."""

    start: str
    given_up: threading.Event
    began: float


class Bridge:
    """The state shared by the tools of one agent. Safe to use from several threads; :meth:`close` it at the end.

    ``client`` shows the token; the bridge closes it.

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
        self._directories: dict[AgentShell, str] = {}
        self._keys: dict[str, _Start] = {}
        self._homes: dict[AgentShell, str] = {}
        self._asked: dict[str, AskedCall] = {}

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        """Lend a client to the calling thread; its answers may take :data:`ANSWER_SECONDS`."""
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

    def place(self, client: Client, system: str, session: str | None) -> AgentShell:
        """Return the place of ``system`` and ``session``, by default the agent's own; raise ``unknown_connection``."""
        id = find(client.connection, system, accepts=lambda name: name.usage == "shell", noun="system", listing="")
        return AgentShell(id, session or self.session)

    def directory(self, place: AgentShell) -> str | None:
        """Return the directory in which the last command in ``place`` ended, None for that of its shell."""
        with self._lock:
            return self._directories.get(place)

    def ended_in(self, place: AgentShell, directory: str | None) -> None:
        """Let the next command in ``place`` begin in ``directory``."""
        with self._lock:
            if directory is not None and directory == self._homes.get(place):
                # Requests in the shell's own directory name none, so that an approval given there still matches.
                self._directories.pop(place, None)
            elif directory is not None:
                self._directories[place] = directory

    def forget_directory(self, place: AgentShell) -> None:
        """Let the next command in ``place`` begin in the directory of its shell."""
        with self._lock:
            self._directories.pop(place, None)

    def key_of(self, start: str, given_up: threading.Event) -> str:
        """Return the key with which a job is started.

        If an earlier call with the same ``start`` was given up and its result is unknown, its key is returned, so that
        the job does not start twice; ``given_up`` is set when a call is given up. Simultaneous calls have different
        keys, and after :data:`UNSETTLED_SECONDS` a repeated call means another job.
        """
        with self._lock:
            since = time.monotonic() - UNSETTLED_SECONDS
            left = (key for key, begun in self._keys.items() if begun.start == start and begun.given_up.is_set())
            new = f"{self.session}-{secrets.token_hex(8)}"
            key = next((key for key in left if self._keys[key].began > since), new)
            # The oldest goes first: a dictionary keeps the order in which its keys came.
            while len(self._keys) >= MAX_UNSETTLED:
                del self._keys[next(iter(self._keys))]
            self._keys[key] = _Start(start, given_up, time.monotonic())
            return key

    def settled(self, key: str) -> None:
        """Note that the result of the start with ``key`` is known: a repeated call means another job."""
        with self._lock:
            self._keys.pop(key, None)

    def note_asked(self, approval: str, call: AskedCall) -> None:
        """Remember the call that waits for ``approval``, to show it to the person."""
        with self._lock:
            self._asked.pop(approval, None)
            while len(self._asked) >= MAX_ASKED:
                del self._asked[next(iter(self._asked))]
            self._asked[approval] = call

    def asked(self, approval: str) -> AskedCall | None:
        """Return the call of this agent that waits for ``approval``, or did so; None if it is not remembered."""
        with self._lock:
            return self._asked.get(approval)

    def start_shell(self, client: Client, place: AgentShell) -> ShellInfo:
        """Start the shell of ``place``, unless it runs, and describe it.

        A shell of the agent's own session is stopped with the agent.
        """
        started = client.shell.start(place.connection, session=place.session)
        with self._lock:
            if place.session != self.session or place in self._homes:
                return started
        shells = client.shell.list(place.connection)
        ours = (place.connection, place.session)
        home = next(
            (shell.directory for shell in shells if (shell.status.connection, shell.status.session) == ours), ""
        )
        with self._lock:
            self._homes[place] = home
        return started

    def close(self) -> None:
        """Stop the agent's own shells, but no jobs; let calls under way fail, and close idle clients."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for lent in self._lent:
                # A thread that waits for an answer ends when its connection does.
                lent.abandon()
            places = list(self._homes)
        # Whoever ends the server waits for this.
        self._first.answer_by(time.monotonic() + STOP_SECONDS)
        for place in places:
            # The daemon stops idle shells anyway.
            with contextlib.suppress(ClientError):
                self._first.shell.stop(place.connection, session=place.session)
        for client in (*idle, self._first):
            client.close()


def dialled(client: Client, id: str) -> tuple[ConnectionInfo, Sequence[DialledHost]]:
    """Return what is stored about a system, and the hosts that its links lead to, in the order of dialling."""
    request = ConnectionInfoRequest(connections=[id], dialled=True)
    [info] = from_json(ConnectionInfoResponse, client.post("/connection/info", **given_json(request))).infos
    return info, (info.dialled.hosts if info.dialled else None) or ()
