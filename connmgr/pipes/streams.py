"""The open streams of the daemon, the loop that serves them, and the stream of one process and one client."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import NamedTuple, Protocol

from connmgr.computing import Computing, Pace, Rests
from connmgr.errors import ConnmgrError, ShellStopped, Stopping, StreamLimit, TokenRevoked
from connmgr.pipes.clients import FRAMES_REST, WaitingClient
from connmgr.pipes.remote import ProcessEndpoint
from connmgr.plugin import Channel, Deadline
from connmgr.streams.loop import Loop
from connmgr.streams.splice import Splice

MAX_STREAMS = 256

TOKEN_STREAMS = 64
"""Most streams of one token and its descendants together."""

TOKENS_STREAMS = 192
"""Most streams of all tokens together."""

GRACE_SECONDS = 2.0
"""Time for a process to end after HUP, before its streams are closed."""

AGAIN_SECONDS, PAUSE_SECONDS = 30.0, 0.5
"""Time in which HUP is tried again where it could not be sent, and the pause between two attempts."""

logger = logging.getLogger("connmgr.streams")


class OpenStream(Protocol):
    """An open stream, with a client or a process."""

    def stop(self, why: ConnmgrError) -> None:
        """Tell its client the reason, and end; called in the loop's thread."""


class _StreamOwner(NamedTuple):
    """The connection and the ids of the token and session with which a stream ends, and whose share it takes."""

    connection: str | None
    token: str | None
    session: str | None
    holder: str | None
    on: str | None
    """The connection that the stream shows or uses, even if it does not end with that connection."""


class Streams:
    """Holds the streams until they end. Safe to use from several threads.

    What it computes for a client outside the loop, it does in the client's turn of ``computing`` and at its ``pace``.
    """

    def __init__(self, computing: Computing, pace: Pace) -> None:
        self._computing, self._pace = computing, pace
        self.loop = Loop()
        self.rests = Rests(computing, FRAMES_REST)
        self._lock = threading.Lock()
        self._open: dict[OpenStream, _StreamOwner] = {}
        self._stopping = False
        self._all_ended = threading.Event()

    @contextmanager
    def turn(self, holder: str | None) -> Iterator[None]:
        """Wait for the turn of ``holder`` to compute in a thread that may block, and have it during the block.

        The owner has no turns: what takes long for the owner must not hold up the tokens.
        """
        with nullcontext() if holder is None else self._computing.turn(holder), self._pace.turn(holder):
            yield

    def require_room(self, holder: str | None) -> None:
        """Return if one more stream may be opened for ``holder`` (:mod:`connmgr.shares`).

        :raises StreamLimit: the limit is reached.
        :raises Stopping: the daemon is stopping.
        """
        with self._lock:
            if self._stopping:
                raise _stopping()
            if len(self._open) >= MAX_STREAMS:
                raise StreamLimit(f"Too many open streams ({MAX_STREAMS}); try again later.")
            if holder is not None:
                of_tokens = [owner.holder for owner in self._open.values() if owner.holder is not None]
                if of_tokens.count(holder) >= TOKEN_STREAMS:
                    raise StreamLimit(f"Too many open streams of this token ({TOKEN_STREAMS}); end one first.")
                if len(of_tokens) >= TOKENS_STREAMS:
                    raise StreamLimit(f"Too many open streams of all tokens ({TOKENS_STREAMS}); try again later.")

    def add(
        self,
        stream: OpenStream,
        connection: str | None = None,
        *,
        token: str | None = None,
        session: str | None = None,
        holder: str | None = None,
        on: str | None = None,
        has_ended: Callable[[], bool] = lambda: False,
    ) -> None:
        """Register ``stream`` until :meth:`discard`; stop it at once if the daemon is stopping.

        The stream ends with its ``connection``, with ``token`` and with ``session``, the ids of a token and of a page's
        session; it counts for ``holder``. ``on`` is the connection of a stream that does not end with that connection.
        ``has_ended`` returns whether one of them has become invalid; then the stream is stopped too.
        """
        with self._lock:
            self._open[stream] = _StreamOwner(connection, token, session, holder, on or connection)
            stopping = self._stopping
        # stop() may have listed the streams before this one was in the table, and end() likewise for the token, which
        # was valid when the request was authorised. Asking again after adding leaves no gap.
        if stopping:
            self.loop.call(lambda: stream.stop(_stopping()))
        elif has_ended():
            self.loop.call(lambda: stream.stop(TokenRevoked("The token is no longer valid.")))

    def discard(self, stream: OpenStream) -> None:
        """Release ``stream``."""
        with self._lock:
            self._open.pop(stream, None)
            if self._stopping and not self._open:
                self._all_ended.set()

    def forget(self, connections: Collection[str]) -> None:
        """End the streams of connections that were removed or changed."""
        self._end(lambda owner: owner.connection in connections, ShellStopped("The connection was changed or removed."))

    def end(self, tokens: Collection[str], why: ConnmgrError, on: Collection[str] | None = None) -> None:
        """End the streams of clients with these tokens, all or those ``on`` certain connections; tell them ``why``."""
        self._end(lambda owner: owner.token in tokens and (on is None or owner.on in on), why)

    def end_session(self, session: str, why: ConnmgrError) -> None:
        """End the streams of a page whose session is over; tell it ``why``."""
        self._end(lambda owner: owner.session == session, why)

    def _end(self, concerns: Callable[[_StreamOwner], bool], why: ConnmgrError) -> None:
        with self._lock:
            ending = [stream for stream, owner in self._open.items() if concerns(owner)]
        for stream in ending:
            self.loop.call(partial(stream.stop, why))

    def stop(self, timeout: float) -> None:
        """Stop all streams, and return when their clients know, at most ``timeout`` seconds later."""
        with self._lock:
            self._stopping = True
            streams = list(self._open)
        for stream in streams:
            self.loop.call(partial(stream.stop, _stopping()))
        if streams:
            self._all_ended.wait(timeout)

    def close(self, timeout: float) -> None:
        """End the thread of the loop."""
        self.loop.close(timeout)


def _stopping() -> Stopping:
    return Stopping("The daemon is stopping.")


class Pipe:
    """Joins the client of ``opening``, which waits for that, with the process behind ``channel`` on ``connection``.

    ``forwards_agent`` says whether the link forwards an ssh-agent to the process.
    ``hang_up`` is called, in a thread that may block, if the client leaves while the process runs, and again with True
    if it returns False. ``when_ended`` is called once, in such a thread and after the process, with its exit status, or
    None if that is unknown. Belongs to the thread of the loop.
    """

    def __init__(
        self,
        streams: Streams,
        opening: WaitingClient,
        channel: Channel,
        connection: str,
        *,
        forwards_agent: bool,
        hang_up: Callable[[bool], bool],
        when_ended: Callable[[int | None], object],
    ) -> None:
        self._streams, self._channel, self._connection = streams, channel, connection
        self._hang_up, self._when_ended = hang_up, when_ended
        self._is_released = False
        self._process = ProcessEndpoint(streams.loop, channel, hang_up=self._end_process, released=self._released)
        self._client = opening.join(streams.loop, self._process.resize, forwards_agent=forwards_agent)
        self._splice = Splice(self._client, self._process, ended=lambda _: self._discard_at_end())
        streams.add(
            self,
            connection,
            token=opening.token,
            session=opening.session,
            holder=opening.holder,
            has_ended=opening.has_ended,
        )

    def stop(self, why: ConnmgrError) -> None:
        self._client.stop(why)
        self._process.close()

    def _end_process(self) -> None:
        """Send HUP and give the process time to end by itself; in a thread that may block."""
        if self._hang_up(False):
            with suppress(TimeoutError, EOFError, OSError):
                self._channel.exit_status(GRACE_SECONDS)
            return
        # Such as where the server opens no further session (MaxSessions), and no second login is possible. To close
        # this one takes HUP along where the server passes it on (sshd not for root), and makes room if the process
        # ends; so does the end of another one.
        self._channel.close()
        deadline = Deadline(AGAIN_SECONDS)
        while not self._hang_up(True):
            if deadline.passed:
                logger.warning(
                    "The processes of a client that left may run on, because HUP could not be sent: the machine of %s "
                    "takes no further session.",
                    self._connection,
                )
                return
            time.sleep(PAUSE_SECONDS)

    def _released(self) -> None:
        try:
            self._when_ended(self._process.status)
        finally:
            self._streams.loop.call(self._note_release)

    def _note_release(self) -> None:
        self._is_released = True
        self._discard_at_end()

    def _discard_at_end(self) -> None:
        # A stopping daemon waits for streams that are held, so the process still gets HUP.
        if self._splice.closed and self._is_released:
            self._streams.discard(self)
