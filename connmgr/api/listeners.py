"""The clients that listen for events: each gets what it may see, from where it was, as fast as it reads.

One thread of the streams' loop at a time filters new events for all of them, because sight is in the vault and the loop
must not wait. A client that reads slowly is not served meanwhile, and goes on from where it was; what has left
:class:`connmgr.events.Events` by then it has missed.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any, NamedTuple, Protocol

from connmgr.api.auth import Caller
from connmgr.contract.event import (
    ALIVE,
    APPROVAL,
    BEGUN,
    CATEGORY,
    CONNECTION,
    ENDED,
    HOSTKEY,
    JOB,
    LINK,
    MISSED,
    RUN,
    SCHEDULE,
    SHELL,
    STREAM,
    TERMINAL,
    TOKEN,
    TUNNEL,
    Event,
)
from connmgr.contract.message import to_json
from connmgr.errors import ConnmgrError, InternalError, Unavailable
from connmgr.events import Events, Happening, Publish
from connmgr.jobs.jobs import Jobs
from connmgr.links.table import LinkTable
from connmgr.pipes.clients import GOODBYE_SECONDS, Opening, WebSocket
from connmgr.pipes.streams import Streams
from connmgr.rights.authorisation import Authorisation, Work
from connmgr.rights.grant import ConnectionFacts, Grant
from connmgr.rights.scopes import missing
from connmgr.shell.shells import ShellActivity, ShellTable
from connmgr.streams.endpoints import Outcome, SocketEndpoint
from connmgr.streams.frames import DATA
from connmgr.streams.loop import Loop
from connmgr.streams.websocket import GOING_AWAY, NORMAL, POLICY_VIOLATION, ProtocolError
from connmgr.terminals.terminals import Terminals
from connmgr.vault.jobs import StoredJobs

logger = logging.getLogger("connmgr.api")

JOIN_SECONDS = 0.02
"""Events that happen within this time are filtered together."""

FULL_BYTES = 64 * 1024
"""A client that has left so much unread gets nothing until it has read it."""

PASS_SECONDS = 0.1
"""Time for the events of tokens' clients, after which those for the owner are looked at again."""

BATCH = 500
"""Most events that one client gets at once."""

TOLD_AT_ONCE = 16
"""After so many lines and clients of a token the loop serves others, and the token rests: it may use a fifth of the
thread that serves all."""

TICK_SECONDS = 1.0
ALIVE_SECONDS = 15.0
STALL_SECONDS = 60.0
"""A client that reads nothing for this long, though there is something, is considered gone."""

LONG = timedelta(seconds=1)
"""A shell is told to be busy when its command has run for so long."""

ACTIONS: Mapping[str, str] = {
    CONNECTION: "connection.query",
    CATEGORY: "category.query",
    HOSTKEY: "connection.query",
    LINK: "connection.query",
    SHELL: "shell.list",
    JOB: "job.query",
    TERMINAL: "terminal.query",
    TUNNEL: "tunnel.query",
    APPROVAL: "approval.query",
    TOKEN: "token.query",
    RUN: "run.query",
    SCHEDULE: "schedule.query",
}
"""The action by which a caller reads what the events of a kind are about: its scopes are needed for the events too."""


def open_kinds(grant: Grant | None) -> list[str]:
    """Return the kinds of events that a token may hear of; the owner, None, hears of all."""
    return [kind for kind, action in ACTIONS.items() if grant is None or missing(action, grant.scopes) is None]


class EventClient(Protocol):
    """A client, by WebSocket or by lines over HTTP; all methods belong to the thread of the loop."""

    @property
    def unsent(self) -> int:
        """Bytes that the client has not taken yet."""

    def send(self, lines: Sequence[str]) -> None:
        """Send lines of JSON."""

    def end(self, code: int, reason: str) -> None:
        """Stop sending, and close when the client has read everything, or soon in any case."""

    def abandon(self) -> None:
        """Close at once."""


Connect = Callable[[Loop, Callable[[], None], Callable[[], None]], EventClient]
"""Returns the client, in the loop's thread; calls the first function when it has read all, and the second, once, when
it has left."""


class SocketClient:
    """The client of the WebSocket ``opening``: each line is a text message."""

    def __init__(self, opening: Opening, loop: Loop, has_room: Callable[[], None], left: Callable[[], None]) -> None:
        self._websocket = WebSocket(
            loop, opening, received=self._received, refused=lambda _: None, left=left, drained=has_room
        )

    @property
    def unsent(self) -> int:
        return self._websocket.unsent

    def send(self, lines: Sequence[str]) -> None:
        self._websocket.say(lines)

    def end(self, code: int, reason: str) -> None:
        self._websocket.close(code, reason)

    def abandon(self) -> None:
        self._websocket.abandon()

    def _received(self, _: bytes) -> None:
        raise ProtocolError("Nothing is sent to the stream of events after its request.", POLICY_VIOLATION)


class LinesClient:
    """The client of an answer over HTTP, to which ``connected`` belongs: lines, in chunks if it knows them."""

    def __init__(
        self,
        connected: socket.socket,
        head: bytes,
        loop: Loop,
        has_room: Callable[[], None],
        left: Callable[[], None],
        *,
        chunked: bool,
    ) -> None:
        self._loop, self._has_room, self._left, self._chunked = loop, has_room, left, chunked
        self._is_over = False
        self._endpoint = SocketEndpoint(loop, connected)
        self._endpoint.begin(self)
        self._endpoint.write(head)

    @property
    def unsent(self) -> int:
        return self._endpoint.unwritten

    def send(self, lines: Sequence[str]) -> None:
        data = "".join(f"{line}\n" for line in lines).encode()
        self._endpoint.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def end(self, code: int, reason: str) -> None:
        if self._chunked:
            self._endpoint.write(b"0\r\n\r\n")
        self._endpoint.end()
        self._loop.after(GOODBYE_SECONDS, self.abandon)

    def abandon(self) -> None:
        self._endpoint.close()
        self._leave()

    # As the receiver of what the client sends.

    def arrived(self, data: bytes | memoryview, kind: int = DATA) -> None:
        """Drop it: the answer says that no further request is answered here."""

    def taken(self, size: int) -> None:
        if not self._endpoint.unwritten:
            self._has_room()

    def ended(self) -> None:
        self.abandon()

    def over(self, outcome: Outcome) -> None:
        self._leave()

    def _leave(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._left()


class Listener:
    """A client that listens for events of ``kinds`` after the number ``position``. Belongs to the loop's thread."""

    def __init__(
        self, listeners: Listeners, loop: Loop, asking: Caller, kinds: frozenset[str], position: int, connect: Connect
    ) -> None:
        self.asking, self.kinds, self.position = asking, kinds, position
        self._listeners = listeners
        self.is_in_line = False
        """Whether lines wait to be sent to it."""

        self._is_over = False
        self._sent_at = self._read_at = time.monotonic()
        self._client = connect(loop, self._has_room, self._leave)

    @property
    def is_full(self) -> bool:
        """Whether the client has to take what it was told before it gets more."""
        return self._is_over or self.is_in_line or self._client.unsent > FULL_BYTES

    def tell(self, lines: Sequence[str], position: int) -> None:
        """Send lines about events up to ``position``."""
        if self._is_over:
            return
        self.position = position
        if lines:
            if not self._client.unsent:
                self._read_at = time.monotonic()
            self._sent_at = time.monotonic()
            self._client.send(lines)

    def tick(self, now: float) -> None:
        """Show that the stream is alive where nothing else does; leave a client that does not read."""
        if self._is_over:
            return
        if self._client.unsent and now - self._read_at > STALL_SECONDS:
            self._client.abandon()
        elif not self._client.unsent and now - self._sent_at >= ALIVE_SECONDS:
            self.tell([about_stream(ALIVE, self.position)], self.position)

    def stop(self, why: ConnmgrError) -> None:
        """Tell the client why its stream ends, and close (:class:`connmgr.pipes.streams.OpenStream`)."""
        if self._is_over:
            return
        self._client.send([about_stream(ENDED, self.position, code=why.code, message=why.message)])
        self._is_over = True
        self._client.end(GOING_AWAY if isinstance(why, Unavailable) else NORMAL, why.message)

    def _has_room(self) -> None:
        self._read_at = time.monotonic()
        self._listeners.wake()

    def _leave(self) -> None:
        self._is_over = True
        self._listeners.left(self)


class _Batch(NamedTuple):
    """What listeners with the same rights may see of the events up to a number; None where some are lost."""

    seen: Sequence[Happening] | None
    position: int


class _Delivery(NamedTuple):
    """Lines about the events up to a number, for one client."""

    listener: Listener
    lines: Sequence[str]
    position: int


Look = Callable[[frozenset[str], Sequence[Caller]], object]
"""Looks for events of these kinds that nobody reports, on behalf of those who listen; in a thread that may block."""


class Listeners:
    """All who listen for ``events``. Safe to use from several threads, except where the loop is named."""

    def __init__(self, events: Events, streams: Streams, authorisation: Authorisation, look: Look) -> None:
        self._events, self._streams, self._authorisation, self._look = events, streams, authorisation, look
        self._loop = streams.loop
        self._open: dict[Listener, None] = {}
        self._is_due = False
        # Of the loop's thread.
        self._filters = self._looks = self._ticks = self._again = False
        self._lines: dict[str, deque[_Delivery]] = {}
        """What tokens' clients are told next, by the holders of their shares."""

        events.notify = self.wake

    def begin(self, asking: Caller, kinds: Iterable[str], after: int | None, connect: Connect) -> None:
        """Let the client of ``connect`` listen, from now on or ``after`` a number."""
        position = self._events.last
        self._loop.call(partial(self._begin, asking, frozenset(kinds), position, after, connect))

    def wake(self) -> None:
        """Serve the listeners soon: there are events, or one has room again. Takes microseconds."""
        if not self._is_due:
            self._is_due = True
            self._loop.call(self._join)

    # In the loop's thread.

    def _begin(self, asking: Caller, kinds: frozenset[str], position: int, after: int | None, connect: Connect) -> None:
        start = position if after is None else after
        listener = Listener(self, self._loop, asking, kinds, start, connect)
        lines = [about_stream(BEGUN, start)]
        if after is not None and self._events.after(after) is None:
            start = position
            lines.append(about_stream(MISSED, start))
        self._open[listener] = None
        self._events.listens = True
        # Before the client hears that it has begun: its next request must find the stream counted.
        self._streams.add(
            listener,
            token=asking.token,
            session=asking.id if asking.is_page else None,
            holder=asking.holder,
            has_ended=lambda: asking.ended,
        )
        listener.tell(lines, start)
        self.wake()
        if not self._ticks:
            self._ticks = True
            self._tick()

    def left(self, listener: Listener) -> None:
        """Forget a listener that has left."""
        self._open.pop(listener, None)
        self._events.listens = bool(self._open)
        self._streams.discard(listener)

    def _join(self) -> None:
        self._loop.after(JOIN_SECONDS, self._serve)

    def _serve(self) -> None:
        if self._filters:
            self._again = True
            return
        # Before the events are read: what is published from here on wakes this again.
        self._is_due = False
        waiting = [(listener, listener.position) for listener in self._open if not listener.is_full]
        if waiting:
            try:
                self._loop.work(partial(self._filter_all, waiting))
            except RuntimeError:
                # The system has no thread left now.
                self._loop.after(TICK_SECONDS, self.wake)
                raise
            self._filters = True

    def _tell_all(self, deliveries: Sequence[_Delivery]) -> None:
        for delivery in deliveries:
            self._tell(delivery)

    def _tell(self, delivery: _Delivery) -> None:
        """Tell the owner's client at once, and a token's when those of the token before it have been told."""
        holder = delivery.listener.asking.holder
        if holder is None:
            self._tell_now(delivery)
            return
        delivery.listener.is_in_line = True
        line = self._lines.setdefault(holder, deque())
        line.append(delivery)
        if len(line) == 1:
            self._loop.call(partial(self._tell_on, holder))

    def _tell_on(self, holder: str) -> None:
        """Tell the next clients of a token, unless one computes for the owner."""
        line, rests = self._lines[holder], self._streams.rests
        rest = rests.before(holder)
        if not rest:
            began, count = time.thread_time(), 0
            # Between two of them as well: each is a call to the system, after which the owner's request may go on.
            while line and count < TOLD_AT_ONCE and not rest:
                delivery = line.popleft()
                count += 1 + len(delivery.lines)
                delivery.listener.is_in_line = False
                self._tell_now(delivery)
                rest = rests.before(holder)
            if line or count >= TOLD_AT_ONCE:
                rest = max(rest, rests.after(holder, time.thread_time() - began))
        if line:
            self._loop.after(rest, partial(self._tell_on, holder))
        else:
            del self._lines[holder]

    def _tell_now(self, delivery: _Delivery) -> None:
        delivery.listener.tell(delivery.lines, delivery.position)
        if delivery.position < self._events.last:
            self.wake()

    def _served(self) -> None:
        self._filters = False
        if self._again:
            self._again = False
            self._serve()

    def _tick(self) -> None:
        now = time.monotonic()
        for listener in list(self._open):
            listener.tick(now)
        self._ticks = bool(self._open)
        if self._ticks:
            self._loop.after(TICK_SECONDS, self._tick)
        if not self._looks:
            asking = list({listener.asking.id: listener.asking for listener in self._open}.values())
            kinds = frozenset(kind for listener in self._open for kind in listener.kinds)
            self._loop.work(partial(self._look_once, kinds, asking))
            self._looks = True

    # In a thread that may block, one at a time.

    def _look_once(self, kinds: frozenset[str], asking: Sequence[Caller]) -> None:
        try:
            self._look(kinds, asking)
        finally:
            self._loop.call(self._looked)

    def _looked(self) -> None:
        self._looks = False

    def _filter_all(self, waiting: Sequence[tuple[Listener, int]]) -> None:
        try:
            batches: dict[tuple[str | None, int], _Batch | ConnmgrError] = {}
            written: dict[tuple[int, str], str] = {}
            lines: dict[tuple[tuple[str | None, int], frozenset[str]], Sequence[str]] = {}
            told: list[_Delivery] = []
            # The owner first, and then whoever is furthest behind.
            in_order = sorted(waiting, key=lambda pair: (pair[0].asking.token is not None, pair[1]))
            until, of_tokens = time.monotonic() + PASS_SECONDS, 0
            for listener, position in in_order:
                key = listener.asking.token, position
                if key not in batches:
                    told = self._passed_on(told)
                    if key[0] is not None and of_tokens and time.monotonic() > until:
                        # What has happened meanwhile goes to the owner before the others' rest.
                        self._loop.call(self.wake)
                        break
                    of_tokens += key[0] is not None
                    batches[key] = self._filtered(listener.asking, position)
                batch = batches[key]
                if isinstance(batch, ConnmgrError):
                    self._loop.call(partial(listener.stop, batch))
                    continue
                alike = key, listener.kinds
                if alike not in lines:
                    lines[alike] = _lines_of(batch, listener.kinds, written)
                if lines[alike] or batch.position != position:
                    told.append(_Delivery(listener, lines[alike], batch.position))
            self._passed_on(told)
        finally:
            self._loop.call(self._served)

    def _passed_on(self, told: list[_Delivery]) -> list[_Delivery]:
        """Have the loop tell the clients of ``told``, and return a list for the next ones."""
        if told:
            self._loop.call(partial(self._tell_all, told))
        return []

    def _filtered(self, asking: Caller, position: int) -> _Batch | ConnmgrError:
        """Return what ``asking`` may see of the events after ``position``, or why that cannot be told."""
        newest = self._events.last
        happened = self._events.after(position)
        if happened is None:
            return _Batch(None, newest)
        happened = happened[:BATCH]
        try:
            seen = [event for each in happened if (event := seen_by(asking, self._authorisation, each)) is not None]
        except ConnmgrError as error:
            # The vault is out of reach. The client connects again, and reads on from where it was.
            return error
        except Exception:
            logger.exception("Events could not be filtered.")
            return InternalError("The events could not be filtered; the daemon's log says more.")
        return _Batch(seen, happened[-1].number if happened else position)


def about_stream(change: str, number: int, **members: Any) -> str:
    """Return a line about the stream itself."""
    at = datetime.now(timezone.utc)
    return _line(Event(number=number, time=at, kind=STREAM, change=change, **members))


def _lines_of(batch: _Batch, kinds: frozenset[str], written: dict[tuple[int, str], str]) -> Sequence[str]:
    if batch.seen is None:
        return [about_stream(MISSED, batch.position)]
    return [_written(event, written) for event in batch.seen if event.kind in kinds]


def _written(event: Happening, written: dict[tuple[int, str], str]) -> str:
    """Return the line of an event, which is ``written`` once for all who see it alike."""
    key = event.number, event.change
    if key not in written:
        at = datetime.fromtimestamp(event.time, timezone.utc)
        written[key] = _line(
            Event(
                number=event.number,
                time=at,
                kind=event.kind,
                change=event.change,
                connection=event.connection,
                id=event.id,
                token=event.token,
                **event.members,
            )
        )
    return written[key]


def _line(event: Event) -> str:
    return json.dumps(to_json(event), separators=(",", ":"))


class Move(NamedTuple):
    """The facts of an event about a changed connection: what it was before."""

    before: ConnectionFacts | None


def seen_by(asking: Caller, authorisation: Authorisation, event: Happening) -> Happening | None:
    """Return an event as ``asking`` may see it; None if it may not."""
    grant = asking.grant
    if grant is None:
        return event
    if missing(ACTIONS[event.kind], grant.scopes) is not None:
        return None
    if event.kind == CONNECTION:
        return _connection_seen_by(asking, grant, authorisation, event)
    return event if _is_seen(asking, grant, authorisation, event) else None


def _connection_seen_by(
    asking: Caller, grant: Grant, authorisation: Authorisation, event: Happening
) -> Happening | None:
    """Return an event of a connection; a change that brings it into sight adds it, one out of sight removes it."""
    before = event.facts.before if isinstance(event.facts, Move) else None
    saw = before is not None and grant.sees(before)
    if event.change == "removed":
        return event if saw else None
    sees = bool(authorisation.visible(asking, [event.connection or ""]))
    if event.change == "changed" and before is not None and saw != sees:
        # Nothing of what it became, if it is out of sight now.
        return event._replace(change="added") if sees else event._replace(change="removed", members={})
    return event if sees else None


def _is_seen(asking: Caller, grant: Grant, authorisation: Authorisation, event: Happening) -> bool:
    if event.kind in (TOKEN, RUN, SCHEDULE):
        # The tokens above it.
        return grant.id in event.facts
    if event.kind == APPROVAL:
        named = event.members.get("connections") or ()
        return grant.sees_all or (bool(named) and authorisation.knows(asking, named))
    if event.kind == CATEGORY:
        if event.change == "removed":
            # Whether it held a connection in sight is not known any more.
            return grant.sees_all or (
                all(each.connections.is_everything for each in grant.lineage) and grant.may_see_category(event.facts)
            )
        return bool(authorisation.visible_categories(asking, [event.id or ""]))
    if event.kind in (JOB, TERMINAL):
        return any(authorisation.visible_work(asking, [(event, Work(event.connection or "", event.token))]))
    return bool(authorisation.visible(asking, [event.connection or ""]))


class Lookout:
    """Looks for what nobody reports: lost links, commands that take long, lost shells, ends of jobs, work that waits.

    Only while somebody listens for it, and in one thread at a time.
    """

    def __init__(
        self,
        links: LinkTable,
        shells: ShellTable,
        jobs: Jobs,
        stored: StoredJobs,
        terminals: Terminals,
        authorisation: Authorisation,
        publish: Publish,
    ) -> None:
        self._links, self._shells, self._jobs, self._stored = links, shells, jobs, stored
        self._terminals = terminals
        self._authorisation, self._publish = authorisation, publish
        self._states: dict[tuple[str, str | None], str] = {}
        self._watched: dict[str, tuple[str, Callable[[], None]]] = {}
        self._has_failed = False

    def look(self, kinds: frozenset[str], asking: Sequence[Caller]) -> None:
        """Publish what has changed since the last look."""
        try:
            if kinds & {LINK, SHELL}:
                self._links.look()
            self._look_at_shells(active=SHELL in kinds)
            self._watch_jobs(asking if JOB in kinds else ())
            if TERMINAL in kinds:
                self._terminals.look(self._terminals.silent(self._terminals.all()))
        except ConnmgrError as error:
            if not self._has_failed:
                logger.warning(
                    "Events that nobody reports, such as changes by other daemons, cannot be looked for now: %s",
                    error.message,
                )
            self._has_failed = True
        else:
            self._has_failed = False

    def _look_at_shells(self, *, active: bool) -> None:
        states = (
            {(shell.connection, shell.session): _state_of(shell) for shell in self._shells.status()} if active else {}
        )
        before, self._states = self._states, states
        for (connection, session), state in states.items():
            was = before.get((connection, session), "idle")
            # A new one, perhaps in place of a lost one, was published as started.
            if state != was and (was, state) != ("lost", "idle"):
                named = {} if session is None else {"session": session}
                self._publish(SHELL, state, connection, **named)

    def _watch_jobs(self, asking: Sequence[Caller]) -> None:
        """Have the running jobs watched that somebody may see, each on behalf of one who listens."""
        listening = {listener.id for listener in asking}
        for id, (caller, cancel) in list(self._watched.items()):
            if caller not in listening:
                self._watched.pop(id, None)
                cancel()
        if not asking:
            return
        running = [job for job in self._stored.under_way() if job.id not in self._watched]
        if not running:
            return
        # The owner first, who sees all.
        for listener in sorted(asking, key=lambda each: each.grant is not None):
            seen = list(
                self._authorisation.visible_work(listener, ((job, Work(job.connection, job.token)) for job in running))
            )
            for job in seen:
                version = self._jobs.cache(job).last.version
                self._watched[job.id] = listener.id, lambda: None
                cancel = self._jobs.subscribe(job.id, listener.access, version, partial(self._unwatch, job.id))
                if job.id in self._watched:
                    self._watched[job.id] = listener.id, cancel
            running = [job for job in running if job not in seen]

    def _unwatch(self, job: str) -> None:
        self._watched.pop(job, None)


def _state_of(shell: ShellActivity) -> str:
    """Return the state of a shell, ``busy`` only if its command has run for a while: most are over at once."""
    if shell.state != "busy":
        return shell.state
    began = shell.running_since
    return "busy" if began is not None and datetime.now(timezone.utc) - began >= LONG else "idle"
