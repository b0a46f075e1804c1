"""A program on a terminal of the remote host, which runs on with or without clients.

A client that attaches to it, a :class:`Viewer`, gets the screen, and then further output, as fast as it reads.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import Protocol

from connmgr.computing import give_way
from connmgr.contract.terminal import CLOSED, EXITED, LOST, RUNNING
from connmgr.engine.waiting import Lull, WaitingWork
from connmgr.errors import Busy, ConnmgrError, ShellLost, TerminalEnded
from connmgr.links.link import Lease
from connmgr.pipes.clients import Client, Opening
from connmgr.pipes.remote import RemoteProcess
from connmgr.pipes.streams import Streams
from connmgr.plugin import Channel
from connmgr.streams import frames
from connmgr.streams.loop import Timer
from connmgr.streams.websocket import GOING_AWAY
from connmgr.terminals.emulator.drawing import draw
from connmgr.terminals.emulator.screen import ASKS_FOR_CURSOR, MAX_CELLS, REPLIES, queries_in
from connmgr.terminals.output import TerminalOutput
from connmgr.terminals.recording import FLUSH_SECONDS, Recording

ACKNOWLEDGEMENT_SECONDS = 5.0
"""Longest wait of the program for one acknowledgement of the leading client."""

MAX_INPUT_BYTES = 1 << 20
"""Most bytes of input from requests that the remote host has not accepted yet; more is refused."""

UPDATE_SECONDS = 10.0
"""Interval of updates of a screen with much output: with less than a backlog in this time nothing is skipped."""

MAX_WAITING_PIECES = 16
"""Most waiting pieces of input at which the program's queries are answered."""


@dataclass(eq=False)
class _Subscription:
    subscriber: Callable[[], None]
    pause: float
    due: bool = False


@dataclass(frozen=True)
class Origin:
    """The request that opened a terminal."""

    id: str
    connection: str
    session: str | None
    command: str | tuple[str, ...] | None
    term: str
    opened: datetime
    token: str | None = None
    """The id of the token that opened it; None for the owner."""

    holder: str | None = None
    """The id of the token whose share of the terminals it takes; None for the owner's."""


class Terminal:
    """The terminal of ``origin``, whose process is behind ``channel`` and has printed ``early``.

    Methods marked "in the loop" belong to the thread of the streams' loop; the others are safe in any thread.
    ``when_ended`` is called once, in a thread that may block, when the process has ended or its channel was closed,
    with the exit status, or None if that is unknown. ``changed`` is called in the loop, with what has changed: its
    clients, or its state, which it then has.
    """

    def __init__(
        self,
        streams: Streams,
        origin: Origin,
        output: TerminalOutput,
        lease: Lease,
        channel: Channel,
        early: bytes,
        recording: Recording | None,
        when_ended: Callable[[int | None], object],
        changed: Callable[[Terminal, str], object] = lambda *_: None,
    ) -> None:
        self.origin = origin
        self._changed = changed
        self.output = output
        self.lease = lease
        self.recording = recording
        self.state = RUNNING
        self.end: int | ConnmgrError | None = None
        """The exit status, or the error in its place; None while it runs."""
        self.ended: datetime | None = None
        self.last_used = time.monotonic()
        self.lull = Lull()
        self.waiting: WaitingWork | None = None
        """What the program was last seen to wait for."""
        self._streams = streams
        self._when_ended = when_ended
        self._viewers: list[Viewer] = []
        self._waiting: deque[tuple[Callable[[int], None], int]] = deque()
        self._queued = 0
        self._overdue_timer: Timer | None = None
        self._next_look = 0.0
        self._lock = threading.Lock()
        self._subscribers: set[_Subscription] = set()
        self._over = threading.Event()
        streams.loop.call(lambda: self._begin(channel, early))

    def _begin(self, channel: Channel, early: bytes) -> None:
        self._changed(self, "opened")
        self._process = RemoteProcess(
            self._streams.loop,
            channel,
            output=self._printed,
            taken=self._taken,
            ended=self._process_ended,
            released=self._released,
        )
        if early:
            self._printed(early, b"")

    @property
    def exit_code(self) -> int | None:
        """The exit status of the process, None if it is unknown."""
        return self.end if isinstance(self.end, int) else None

    @property
    def clients(self) -> int:
        """The number of attached clients."""
        return len(self._viewers)

    @property
    def idle_seconds(self) -> float:
        """The seconds since a client was last attached or used it."""
        return 0.0 if self._viewers else time.monotonic() - self.last_used

    def use(self) -> None:
        """Note that a request uses the terminal."""
        self.last_used = time.monotonic()

    def attach(self, opening: Opening, *, watches: bool) -> None:
        """Attach a client. Unless it only ``watches``, it now leads: its size and its pace are the terminal's."""
        self._streams.loop.call(lambda: self._attach(opening, watches=watches))

    def input(self, data: bytes) -> None:
        """Queue ``data`` as typed input.

        :raises TerminalEnded: the process has ended.
        :raises Busy: the program has left too much input unread.
        """
        self._require_running()
        self.use()
        with self._lock:
            if self._queued + len(data) > MAX_INPUT_BYTES:
                raise Busy(f"The program has not read the last {MAX_INPUT_BYTES >> 20} MiB of input; try again later.")
            self._queued += len(data)
        self.lull.stir()
        if self.waiting is not None:
            self.waiting = None
            self._streams.loop.call(lambda: self._changed(self, RUNNING))
        self._streams.loop.call(lambda: self.type(data, self._unqueue))

    def resize(self, columns: int, rows: int) -> None:
        """Set the size, whoever is attached; raise :class:`TerminalEnded` after the end."""
        self._require_running()
        self._streams.loop.call(lambda: self._resize(columns, rows, by=None))

    def close(self) -> None:
        """End the process, if it runs: it gets HUP, as when a terminal is disconnected."""
        self._streams.loop.call(lambda: self._end(CLOSED, TerminalEnded("The terminal was closed.")))

    def drop(self) -> None:
        """Disconnect all clients."""
        self._streams.loop.call(self._drop)

    def wait(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until it has ended and its link is released; return whether that happened."""
        return self._over.wait(timeout)

    def subscribe(self, offset: int, state: str, pause: float, subscriber: Callable[[], None]) -> Callable[[], None]:
        """Call ``subscriber`` when there is output after ``offset`` or another state; return a function to cancel it.

        It is called ``pause`` seconds after the output came, or soon after the end.
        """
        subscription = _Subscription(subscriber, pause)
        with self._lock:
            self._subscribers.add(subscription)
        # Output may have come between the request's look and this line; the loop then calls the subscriber.
        if self.output.end > offset or self.state != state:
            self._streams.loop.call(self._notify_subscribers)
        return lambda: self._unsubscribe(subscription)

    def _unsubscribe(self, subscription: _Subscription) -> None:
        with self._lock:
            self._subscribers.discard(subscription)

    # In the thread of the loop.

    def type(self, data: bytes, taken: Callable[[int], None]) -> None:
        """Write input after all earlier input; call ``taken`` with the bytes that were passed on. In the loop."""
        if not data:
            return
        self._waiting.append((taken, len(data)))
        if self.state != RUNNING:
            self._taken(len(data))
        else:
            self._process.write(data)

    def resized_by(self, viewer: Viewer) -> None:
        """Apply the size of a client, if it leads. In the loop."""
        if viewer.size is not None and viewer is self._leader:
            self._resize(*viewer.size, by=viewer)

    def has_room(self, viewer: Viewer) -> None:
        """Continue: ``viewer`` has acknowledged its output. In the loop."""
        if viewer is self._leader:
            self._keep_pace()

    def left(self, viewer: Viewer) -> None:
        """Remove a client that has left. In the loop."""
        was_leader = viewer is self._leader
        if viewer in self._viewers:
            self._viewers.remove(viewer)
        self.use()
        if was_leader:
            leader = self._leader
            if leader is not None and leader.size is not None:
                # It is told too: a page has followed the size of the one that has left, and does not know this.
                self._resize(*leader.size, by=None)
            self._keep_pace()
        self._changed(self, "clients")

    @property
    def _leader(self) -> Viewer | None:
        return next((viewer for viewer in reversed(self._viewers) if not viewer.watches), None)

    def _attach(self, opening: Opening, *, watches: bool) -> None:
        self.use()
        self._viewers.append(Viewer(self._streams, self, opening, self.origin.connection, watches=watches))
        self._changed(self, "clients")
        self._keep_pace()

    def _resize(self, columns: int, rows: int, by: Viewer | None) -> None:
        if self.state != RUNNING or (columns, rows) == (self.output.columns, self.output.rows):
            return
        self._process.resize(columns, rows)
        self.output.resize(columns, rows)
        if self.recording:
            self.recording.resized(columns, rows)
        # A copy, because a viewer whose client turns out to be gone is removed meanwhile.
        for viewer in list(self._viewers):
            if viewer is not by:
                viewer.tell_size(columns, rows)

    def _printed(self, stdout: bytes, stderr: bytes) -> None:
        # A server may send messages of its own apart, although the process has a terminal (RFC 4254, section 5.2).
        printed = stdout + stderr
        self.output.append(printed)
        if self.recording:
            self._record(self.recording, printed)
        for viewer in list(self._viewers):
            viewer.show()
        if self._leader is None:
            self._answer_queries(printed)
        else:
            self._keep_pace()
        self._notify_subscribers()
        now = time.monotonic()
        if self.output.is_overdue and now >= self._next_look:
            self._next_look = now + UPDATE_SECONDS
            self._streams.loop.work(self._look)

    def _look(self) -> None:
        with self.output.look():
            pass

    def _answer_queries(self, printed: bytes) -> None:
        """Answer the queries of the program to its terminal; an attached client's terminal answers them itself."""
        for query in queries_in(printed):
            if query == ASKS_FOR_CURSOR:
                # Drawing what was printed until now may take a quarter of a second, too long for the loop.
                self._streams.loop.work(self._report_cursor)
            else:
                self._answer(REPLIES[query])

    def _report_cursor(self) -> None:
        with self.output.look() as (screen, _):
            report = screen.cursor_report
        self._streams.loop.call(lambda: self._answer(report))

    def _answer(self, data: bytes) -> None:
        # A program that sends queries and reads no answers would fill the queue of input.
        if self.state == RUNNING and len(self._waiting) < MAX_WAITING_PIECES:
            self.type(data, lambda _: None)

    def _record(self, recording: Recording, data: bytes) -> None:
        flushes = recording.unflushed
        recording.output(data)
        if not flushes:
            self._streams.loop.after(FLUSH_SECONDS, recording.flush)

    def _keep_pace(self) -> None:
        """Read no faster than the leading client acknowledges, as long as it acknowledges in time."""
        # Only the leader holds the program back. A watcher that reads slowly would otherwise slow down the person who
        # types; it gets a new drawing instead (Viewer.is_behind).
        leader = self._leader
        waits = leader is not None and leader.is_full and not leader.is_behind
        if waits and self._overdue_timer is None:
            self._process.pause()
            self._overdue_timer = self._streams.loop.after(ACKNOWLEDGEMENT_SECONDS, self._leave_behind)
        elif not waits and self._overdue_timer is not None:
            self._overdue_timer.cancel()
            self._overdue_timer = None
            self._process.resume()

    def _leave_behind(self) -> None:
        if self._leader is not None:
            self._leader.is_behind = True
        self._keep_pace()

    def _taken(self, size: int) -> None:
        """Report input as passed on, in the order in which it came."""
        while size > 0 and self._waiting:
            callback, length = self._waiting.popleft()
            part = min(size, length)
            size -= part
            if part < length:
                self._waiting.appendleft((callback, length - part))
            callback(part)

    def _unqueue(self, size: int) -> None:
        with self._lock:
            self._queued -= size

    def _process_ended(self, status: int | None) -> None:
        if status is None:
            self._end(LOST, ShellLost("The link broke; it is unknown how the program ended."))
        else:
            self._end(EXITED, status)

    def _end(self, state: str, end: int | ConnmgrError) -> None:
        if self.state != RUNNING:
            return
        self._process.close()
        # Before the state, which other threads read: who sees that the terminal has ended finds its recording whole.
        if self.recording:
            self.recording.close()
        self.end, self.ended, self.state = end, datetime.now(timezone.utc), state
        self.waiting = None
        self._changed(self, state)
        self._taken(sum(length for _, length in self._waiting))
        if self._overdue_timer is not None:
            self._overdue_timer.cancel()
            self._overdue_timer = None
        for viewer in list(self._viewers):
            viewer.show()
        self._notify_subscribers()

    def _released(self) -> None:
        try:
            # Not the terminal's own state, which another thread may be about to set.
            self._when_ended(self._process.status)
        finally:
            self._over.set()

    def _drop(self) -> None:
        for viewer in list(self._viewers):
            viewer.stop(TerminalEnded("The terminal has ended."))

    def _notify_subscribers(self) -> None:
        """Call the subscribers, each after its pause, so that one call covers all output until then."""
        with self._lock:
            subscriptions = [each for each in self._subscribers if not each.due]
        for each in subscriptions:
            each.due = True
            self._streams.loop.after(0.0 if self.end is not None else each.pause, partial(self._notify, each))

    def _notify(self, subscription: _Subscription) -> None:
        with self._lock:
            is_subscribed = subscription in self._subscribers
            self._subscribers.discard(subscription)
        if is_subscribed:
            subscription.subscriber()

    def _require_running(self) -> None:
        if self.state != RUNNING:
            raise TerminalEnded("The terminal's program has ended.")


PIECE_BYTES = 16 << 10
"""Bytes taken from the output at once; so many may wait in excess of a client's window."""


class Viewed(Protocol):
    """The terminal of an attached client. All methods are called in the thread of the streams' loop."""

    output: TerminalOutput
    end: int | ConnmgrError | None

    def type(self, data: bytes, taken: Callable[[int], None]) -> None:
        """Write a client's input; call ``taken`` with the bytes that were passed on."""

    def resized_by(self, viewer: Viewer) -> None:
        """Handle a client's new size."""

    def has_room(self, viewer: Viewer) -> None:
        """Handle a client's acknowledgement of its output."""

    def left(self, viewer: Viewer) -> None:
        """Handle that a client has left."""


class Viewer:
    """The client of ``opening`` at ``terminal``, which runs on ``connection``.

    One that only ``watches`` neither types nor changes the size. Belongs to the thread of the streams' loop. ``size``
    is the size of the client's own terminal, once known.
    """

    def __init__(self, streams: Streams, terminal: Viewed, opening: Opening, connection: str, *, watches: bool) -> None:
        self.watches = watches
        self.size: tuple[int, int] | None = None
        self.is_behind = False
        """Whether it was too slow; then the screen is redrawn when it has room again."""
        self._streams = streams
        self._terminal = terminal
        self._output: TerminalOutput = terminal.output
        self._position = 0
        self._drawing = self._over = False
        self._holder = opening.holder
        self._client = Client(streams.loop, opening, self)
        streams.add(
            self,
            on=connection,
            token=opening.token,
            session=opening.session,
            holder=opening.holder,
            has_ended=opening.has_ended,
        )
        self.tell_size(terminal.output.columns, terminal.output.rows)
        self.draw()

    @property
    def is_full(self) -> bool:
        """Whether it must acknowledge before it gets more."""
        return self._client.is_full

    def receive(self, data: bytes) -> None:
        if self.watches:
            raise ValueError("A client that only watches cannot type: attach without watch.")
        self._terminal.type(data, self._client.acknowledge)

    def end_input(self) -> None:
        """Do nothing: the terminal runs on, and others may type."""

    def resize(self, columns: int, rows: int) -> None:
        if columns * rows > MAX_CELLS:
            raise ValueError(f"A terminal has at most {MAX_CELLS} characters.")
        self.size = columns, rows
        self._terminal.resized_by(self)

    def has_room(self) -> None:
        if self.is_behind:
            self.is_behind = False
            self.draw()
        else:
            self.show()
        self._terminal.has_room(self)

    def leave(self) -> None:
        self._over = True
        self._streams.discard(self)
        self._terminal.left(self)

    def stop(self, why: ConnmgrError) -> None:
        """Tell the client why its stream ends, and close."""
        self._client.fail(why, GOING_AWAY)

    def tell_size(self, columns: int, rows: int) -> None:
        """Tell the client the size of the terminal."""
        self._client.tell(frames.resize(columns, rows))

    def draw(self) -> None:
        """Draw the current screen in a thread that may block; then show further output."""
        if not self._drawing:
            self._drawing = True
            self._streams.loop.work(self._draw)

    def _draw(self) -> None:
        with self._streams.turn(self._holder), self._output.look() as (screen, offset):
            picture = draw(screen, give_way)
        self._streams.loop.call(lambda: self._drawn(picture, offset))

    def _drawn(self, picture: bytes, offset: int) -> None:
        self._drawing = False
        if self._over:
            return
        self._position = offset
        self._client.send(picture)
        self.show()

    def show(self) -> None:
        """Send new output as far as the client has room; finally the terminal's exit status."""
        if self._drawing or self._over or self.is_behind:
            return
        if self._position < self._output.start:
            # A drawing of this moment would be outdated by the time there is room for it.
            if not self._client.is_full:
                self.draw()
            return
        while self._position < self._output.end and not self._client.is_full:
            _, data = self._output.read(self._position, PIECE_BYTES)
            self._position += len(data)
            self._client.send(data)
        if self._position >= self._output.end:
            self._tell_end()

    def _tell_end(self) -> None:
        end = self._terminal.end
        if isinstance(end, ConnmgrError):
            self._client.fail(end)
        elif end is not None:
            self._client.finish(end)
