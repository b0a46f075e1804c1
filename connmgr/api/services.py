"""The services that the endpoints use; the daemon creates them.

Three of them are of the pipeline alone: the slots of requests that wait for a machine, the shares of large answers, and
the counts of requests.
"""

from __future__ import annotations

import copy
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

import flask

from connmgr.api.auth import Caller, Credentials, Scraper, Tickets, Tokens
from connmgr.api.listeners import Listeners
from connmgr.api.page_files import PageFiles
from connmgr.audit.entry import SubjectNames
from connmgr.audit.log import AuditLog
from connmgr.computing import Computing, Pace, waiting
from connmgr.errors import Busy, Stopping
from connmgr.events import Events
from connmgr.facts.gathering import Gatherer
from connmgr.fs.bodies import Blobs
from connmgr.inventories.inventories import Inventories
from connmgr.jobs.jobs import Jobs
from connmgr.jobs.reaper import OrphanJobs
from connmgr.links.table import IdleLinks, LinkTable
from connmgr.multiplex.config import KeptConfig, SshConfigs
from connmgr.multiplex.sockets import ControlSockets
from connmgr.pipes.streams import Streams
from connmgr.registry import Registry
from connmgr.rights.approvals import Approvals
from connmgr.rights.authorisation import Authorisation
from connmgr.rights.saved_commands import SavedCommands
from connmgr.rights.tokens import Grants
from connmgr.runs.runs import Runs
from connmgr.schedules.schedules import Schedules
from connmgr.secrets.loans import Loans
from connmgr.settings import Settings
from connmgr.shares import MemoryShares, Queues, Shares, of_tokens
from connmgr.shell.shells import ShellTable
from connmgr.signers import Signers
from connmgr.terminals.terminals import Terminals
from connmgr.tunnels.table import Tunnels
from connmgr.undo.snapshots import Snapshots
from connmgr.undo.store import ChangeStore
from connmgr.vault import Vault

EXTENSION = "connmgr"

STOPS = 16
"""Extra slots for requests that stop something, so that a full daemon can still be freed."""

BOUNDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""Upper bounds of the classes of durations, in seconds."""


class RequestSlots:
    """Limits how many requests may wait for machines, so that others always find a free thread.

    A token may have five eighths of them, and all tokens together three quarters.
    """

    def __init__(self, count: int) -> None:
        self._shares = Shares(*of_tokens(count))
        self._free = threading.BoundedSemaphore(count)
        self._stops = threading.BoundedSemaphore(STOPS)
        self._lock = threading.Lock()
        self.count = count
        self.in_use = 0

    @contextmanager
    def taken(self, holder: str | None = None, *, stops: bool = False) -> Iterator[None]:
        """Hold one slot for ``holder``. A request that ``stops`` something may also take one of :data:`STOPS` more.

        :raises Busy: all are taken, or the holder's share is; this does not wait.
        """
        if not self._take(holder):
            if not stops or not self._stops.acquire(blocking=False):
                raise Busy(self._reason(holder))
            try:
                with waiting():
                    yield
            finally:
                self._stops.release()
            return
        self._add(1)
        try:
            with waiting():
                yield
        finally:
            self._add(-1)
            self._shares.give_back(holder)
            self._free.release()

    def _take(self, holder: str | None) -> bool:
        if not self._shares.take(holder):
            return False
        if self._free.acquire(blocking=False):
            return True
        self._shares.give_back(holder)
        return False

    def _reason(self, holder: str | None) -> str:
        if holder and self._shares.is_exhausted(holder):
            return f"The token's {self._shares.one} slots for requests that wait are in use; try again later."
        return f"All {self.count} slots for requests that wait are in use; try again later."

    def _add(self, number: int) -> None:
        with self._lock:
            self.in_use += number


LARGE_ANSWER_BYTES = 256 * 1024
"""Smaller answers are not counted."""

ANSWER_BYTES = 32 * 1024 * 1024
"""Most bytes of large answers that a token's clients may leave unread. A larger one counts as all of them."""

ANSWER_SECONDS = 20.0
"""Longest wait of a large answer's beginning for the token's others."""


class LargeAnswers:
    """Has one large answer at a time made for each token, and counts the answers that its clients have yet to read.

    While it is made, an answer takes several times its size: rows, values, their text. Afterwards its bytes stay until
    the client has read them, for as long as a slow one takes. The owner has no limit. Safe to use from several threads.
    """

    def __init__(self, of_token: int = ANSWER_BYTES, longest: float = ANSWER_SECONDS) -> None:
        self._of_token = of_token
        self._turns = Queues(1, longest, "A large answer for the token is being made; ask for one after the other.")
        self._unread = Shares(of_token, 2 * of_token)

    @contextmanager
    def making(self, holder: str | None) -> Iterator[None]:
        """Make an answer for ``holder`` during the block, when the one before it is made.

        :raises Busy: that takes too long.
        """
        with ExitStack() as stack:
            with waiting():
                stack.enter_context(self._turns.turn(holder, ""))
            yield

    def count(self, holder: str | None, response: flask.Response) -> None:
        """Count a whole ``response`` for ``holder`` until it is sent, if it is large.

        :raises Busy: the answers that its clients have not read yet leave no room for it.
        """
        if holder is None or response.is_streamed:
            return
        size = response.calculate_content_length() or 0
        if size < LARGE_ANSWER_BYTES:
            return
        counted = min(size, self._of_token)
        if not self._unread.take(holder, counted):
            raise Busy("Too many bytes of answers wait for clients of tokens; read those first.")
        response.call_on_close(partial(self._unread.give_back, holder, counted))


@dataclass
class Durations:
    """The number of durations in each class, and their sum in seconds. The last class has no upper bound."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """Return the classes in Prometheus's form: each includes those below it."""
        ends = [*(f"{bound:g}" for bound in BOUNDS), "+Inf"]
        return [(end, float(sum(self.counts[: place + 1]))) for place, end in enumerate(ends)]


class Counts:
    """The numbers of answered requests by endpoint and status, and their durations; thread-safe."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        """The time.monotonic() at which the daemon was started."""
        self._lock = threading.Lock()
        self._requests: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._durations: defaultdict[str, Durations] = defaultdict(Durations)

    def add(self, path: str, status: int, seconds: float) -> None:
        """Count a request to the endpoint ``path`` that took ``seconds``; ``path`` is empty for unknown endpoints."""
        with self._lock:
            self._requests[path, status] += 1
            self._durations[path].add(seconds)

    def snapshot(self) -> tuple[dict[tuple[str, int], int], dict[str, Durations]]:
        """Return the current numbers of requests by path and status, and the durations by path."""
        with self._lock:
            return dict(self._requests), copy.deepcopy(self._durations)


@dataclass(frozen=True)
class Services:
    """The services of the endpoints. ``anonymous`` is the caller of all requests while ``no-auth`` is set."""

    settings: Settings
    vault: Vault
    registry: Registry
    links: LinkTable
    signers: Signers
    idle_links: IdleLinks
    shells: ShellTable
    streams: Streams
    terminals: Terminals
    tunnels: Tunnels
    sockets: ControlSockets
    ssh_configs: SshConfigs
    kept_config: KeptConfig
    facts: Gatherer
    jobs: Jobs
    runs: Runs
    schedules: Schedules
    inventories: Inventories
    orphans: OrphanJobs
    authorisation: Authorisation
    approvals: Approvals
    commands: SavedCommands
    credentials: Credentials
    grants: Grants
    loans: Loans
    tokens: Tokens
    tickets: Tickets
    listeners: Listeners
    events: Events
    scraper: Scraper
    anonymous: Caller
    slots: RequestSlots
    answers: LargeAnswers
    outputs: MemoryShares
    """The bytes of commands' outputs in memory."""

    pace: Pace
    computing: Computing
    changes: ChangeStore
    snapshots: Snapshots
    page_files: PageFiles
    upgrades: Pace
    """The pace at which a token's requests become streams."""

    scans: Queues
    """The turns of a token's programs that read whole files on a connection's machine."""

    blobs: Blobs
    audit: AuditLog
    subject_names: SubjectNames
    counts: Counts
    stopping: Callable[[], bool]
    stop: Callable[[], None]

    def require_running(self) -> None:
        """Raise :class:`connmgr.errors.Stopping` if the daemon is stopping."""
        if self.stopping():
            raise Stopping("The daemon is stopping.")


def services() -> Services:
    """Return the services of the application that answers this request."""
    daemon: Services = flask.current_app._get_current_object().extensions[EXTENSION]  # type: ignore[attr-defined]
    return daemon
