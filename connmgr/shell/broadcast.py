"""One command on many connections at once."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, NamedTuple, NoReturn, TypeVar

from connmgr.cancellation import NEVER, Cancellation
from connmgr.engine.envelope import Command
from connmgr.engine.running import LOOK_SECONDS, Result, RunningCommand
from connmgr.engine.session import ENVELOPE_INPUT_BYTES
from connmgr.errors import CommandCancelled, NoShell, ShellBusy, ShellLost
from connmgr.rights.ground import Ground
from connmgr.secrets.principals import Access
from connmgr.shell.commands import CommandStart, begin_command
from connmgr.shell.shells import ShellRef, ShellTable

QUICK_SECONDS = 0.05
"""A command that takes longer gets a thread of its own."""

SLICE_SECONDS = 0.002
"""Longest wait of the driver for one command before it checks the others again."""


@dataclass(frozen=True)
class Order:
    """A command that may take ``timeout`` seconds on each connection, on ``parallel`` connections at a time.

    ``start`` starts missing shells; ``session`` names the shell of each connection; ``fresh`` runs the command in a new
    shell of each.
    """

    command: Command
    timeout: float
    parallel: int
    start: bool
    session: str | None = None
    fresh: bool = False
    grounds: Mapping[str, Ground] = field(default_factory=dict)
    """The grounds on which the command was approved, by connections; empty if it needed no approval."""

    admits: Callable[[str], None] | None = None
    """Called with a connection before its command is sent; what it raises is the outcome, and nothing is sent."""

    def admitting(self, connection: str) -> Callable[[], None] | None:
        """Return ``admits`` for one connection."""
        return None if self.admits is None else partial(self.admits, connection)


class BroadcastOutcome(NamedTuple):
    """The outcome of the command on one connection, and how many seconds it took.

    ``restarted`` says that its shell had been lost, and is a new one.
    """

    connection: str
    seconds: float
    result: Result | BaseException
    restarted: bool = False


class _StartedCommand(NamedTuple):
    """The command on one connection. ``reservation`` keeps the session until the command has ended or was killed."""

    connection: str
    at: float
    running: RunningCommand
    reservation: contextlib.ExitStack

    def result(self) -> Result:
        with self.reservation:
            return self.running.result()

    def fail(self, error: BaseException) -> NoReturn:
        with self.reservation:
            raise error


Outcome = TypeVar("Outcome")


class Outcomes(Generic[Outcome]):
    """Outcomes on their way to the one thread that takes them, which is woken when there are enough, not by each."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[Outcome] = []
        self._least = 1
        self._woken = False

    def put(self, some: Iterable[Outcome]) -> None:
        """Add outcomes; safe to call from several threads."""
        with self._changed:
            self._waiting += some
            if len(self._waiting) >= self._least:
                self._changed.notify()

    def wake(self) -> None:
        """Let :meth:`take` return."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    def take(self, seconds: float, least: int = 1) -> list[Outcome]:
        """Return all outcomes once there are ``least``, after ``seconds``, or after :meth:`wake`; perhaps none."""
        with self._changed:
            self._least = least
            self._changed.wait_for(lambda: self._woken or len(self._waiting) >= least, max(0.0, seconds))
            self._woken = False
            taken, self._waiting = self._waiting, []
            return taken

    @property
    def are_there(self) -> bool:
        """Whether some wait to be taken."""
        return bool(self._waiting)


class Broadcast:
    """Runs a command on connections: on ``ready`` ones, whose shells run and admit ``access``, and on the ``others``.

    Waking a thread costs more than a short command. So one thread, the driver, begins the command in the ready shells
    and reads from all of them in turn. Whatever must be waited for has its own thread: a starting shell, earlier
    commands of other clients, a command that is not quick.

    Each connection counts as running until the reader of :meth:`outcomes` asks for later outcomes: a slow reader delays
    commands that have not begun, and few outcomes are kept for it.

    :meth:`open` is for a caller that does not know all connections at the beginning: it feeds them one after the other.
    """

    def __init__(
        self, shells: ShellTable, access: Access, order: Order, ready: Iterable[str], others: Iterable[str]
    ) -> None:
        self._shells = shells
        self._access = access
        self._order = order
        self._ready = deque(ready)
        self._others = deque(others)
        self._started = list[_StartedCommand]()
        self._restarted = set[str]()
        self._small = _is_small(order.command)
        self._room = threading.Semaphore(order.parallel)
        self._outcomes = Outcomes[BroadcastOutcome]()
        self._cancellation = Cancellation()
        self._is_open = self._was_opened = False
        self._fed = threading.Event()
        self._pool = ThreadPoolExecutor(order.parallel, "broadcast")
        # It looks at one link after the other. A selector for all would save little: of the 120 µs that a short command
        # takes the thread, one goes into looking at its link.
        self._driver = threading.Thread(target=self._drive, name="broadcast", daemon=True)

    def outcomes(self, cancellation: Cancellation = NEVER) -> Iterator[list[BroadcastOutcome]]:
        """Yield the outcomes in bursts as they come.

        If the iteration is abandoned or cancelled, kill the commands that run, and begin no more.
        :raises CommandCancelled: it was cancelled.
        """
        left = len(self._ready) + len(self._others)
        self._driver.start()
        try:
            with cancellation.waking(self._outcomes.wake):
                while left:
                    ended = self._next(cancellation)
                    yield ended
                    left -= len(ended)
                    self._room.release(len(ended))
        finally:
            self._cancellation.cancel()
            # The driver may be blocked in acquire(), which looks at no cancellation; it checks it after it wakes.
            self._room.release()
            self._driver.join()

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Run the command on what :meth:`feed` brings, until the context ends; commands that still run are killed."""
        self._is_open = self._was_opened = True
        self._driver.start()
        try:
            yield
        finally:
            self._is_open = False
            self.kill("The work was given up")
            self._driver.join()

    def feed(self, ready: Iterable[str], others: Iterable[str]) -> None:
        """Run the command on further connections, while it is open."""
        self._ready.extend(ready)
        self._others.extend(others)
        self._fed.set()

    def take(self, seconds: float, least: int = 1) -> list[BroadcastOutcome]:
        """Return outcomes of an open broadcast; as :meth:`Outcomes.take`."""
        ended = self._outcomes.take(seconds, least)
        if ended:
            self._room.release(len(ended))
        return ended

    def wake(self) -> None:
        """Let :meth:`take` return."""
        self._outcomes.wake()

    def kill(self, reason: str) -> None:
        """Kill the commands that run, and begin no more; their outcomes follow, and begin with ``reason``."""
        self._cancellation.cancel(reason)
        self._room.release()
        self._fed.set()

    def _next(self, cancellation: Cancellation) -> list[BroadcastOutcome]:
        while True:
            if ended := self._outcomes.take(LOOK_SECONDS):
                return ended
            if cancellation.cancelled:
                raise CommandCancelled(f"{cancellation.reason}; running commands were killed.")
            if not self._driver.is_alive() and not self._outcomes.are_there:
                raise RuntimeError("The driver of a broadcast ended before its work.")

    def _drive(self) -> None:
        with self._pool:
            try:
                while not self._cancellation.cancelled:
                    if self._ready or self._others or self._started:
                        with self._shells.switching.among(len(self._ready) + len(self._started)):
                            self._begin_next()
                            self._read_all()
                    elif self._is_open:
                        self._fed.wait()
                        self._fed.clear()
                    else:
                        break
            finally:
                for started in self._started:
                    if self._was_opened:
                        self._wait_for(started.connection, started.at, started.result)
                    else:
                        self._pool.submit(started.reservation.close)
                if self._was_opened:
                    not_begun = CommandCancelled(f"{self._cancellation.reason} before the command began.")
                    self._outcomes.put([BroadcastOutcome(id, 0.0, not_begun) for id in (*self._ready, *self._others)])

    def _begin_next(self) -> None:
        """Begin on as many connections as allowed; wait for room if there is nothing else to do."""
        while (self._ready or self._others) and self._room.acquire(blocking=not self._started):
            if self._cancellation.cancelled:
                return
            if self._ready and self._small:
                self._begin(self._ready.popleft())
            else:
                connection = (self._ready or self._others).popleft()
                self._wait_for(connection, time.monotonic(), partial(self._run, connection))

    def _begin(self, connection: str) -> None:
        at = time.monotonic()
        try:
            reservation = contextlib.ExitStack()
            running, _ = reservation.enter_context(self._beginning(connection, turn_timeout=0.0))
            started = _StartedCommand(connection, at, running, reservation)
        except (NoShell, ShellBusy):
            self._wait_for(connection, at, partial(self._run, connection))
        except BaseException as error:  # noqa: BLE001 - a plugin may raise anything, and the client must hear of it
            if self._order.start and isinstance(error, ShellLost) and not error.sent:
                self._wait_for(connection, at, partial(self._run, connection))
            else:
                self._outcomes.put([BroadcastOutcome(connection, time.monotonic() - at, error)])
        else:
            self._started.append(started)

    def _read_all(self) -> None:
        """Read once from all begun commands; if there is no output, wait :data:`SLICE_SECONDS` for some."""
        now = time.monotonic()
        slice_ends, late = now + SLICE_SECONDS, now - QUICK_SECONDS
        commands, self._started = self._started, []
        ended = list[_StartedCommand]()
        for started in commands:
            try:
                if started.running.read(max(0.0, slice_ends - time.monotonic())):
                    ended.append(started)
                elif started.at < late:
                    self._wait_for(started.connection, started.at, started.result)
                else:
                    self._started.append(started)
            except BaseException as error:  # noqa: BLE001
                # Ending a lost shell takes a while.
                self._wait_for(started.connection, started.at, partial(started.fail, error))
        if ended:
            self._outcomes.put([self._outcome(started.connection, started.at, started.result) for started in ended])

    def _wait_for(self, connection: str, at: float, work: Callable[[], Result]) -> None:
        self._pool.submit(lambda: self._outcomes.put([self._outcome(connection, at, work)]))

    def _beginning(
        self, connection: str, *, start: bool = False, fresh: bool = False, turn_timeout: float | None = None
    ) -> AbstractContextManager[CommandStart]:
        order = self._order
        return begin_command(
            self._shells,
            ShellRef(connection, order.session),
            self._access,
            order.command,
            order.timeout,
            self._cancellation,
            start=start,
            fresh=fresh,
            ground=order.grounds.get(connection),
            admits=order.admitting(connection),
            turn_timeout=turn_timeout,
        )

    def _run(self, connection: str) -> Result:
        """Run the command to its end; if ordered, start the shell first."""
        order = self._order
        with self._beginning(connection, start=order.start, fresh=order.fresh) as (running, restarted):
            if restarted:
                self._restarted.add(connection)
            return running.result()

    def _outcome(self, connection: str, at: float, work: Callable[[], Result]) -> BroadcastOutcome:
        try:
            result: Result | BaseException = work()
        except BaseException as error:  # noqa: BLE001 - a plugin may raise anything, and the client must hear of it
            result = error
        return BroadcastOutcome(connection, time.monotonic() - at, result, connection in self._restarted)


def _is_small(command: Command) -> bool:
    """Whether a remote host accepts the command without delay."""
    variables = sum(len(name) + len(value) for name, value in (command.environment or {}).items())
    words = sum(map(len, command.argv)) + len(command.argv)
    return len(command.text) + words + len(command.stdin) + variables <= ENVELOPE_INPUT_BYTES
