"""The open streams of the daemon, the loop that serves them, and the stream of one process and one client."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol

from connmgr.errors import ConnmgrError, ShellStopped, Stopping, StreamLimit, TokenRevoked
from connmgr.pipes.clients import FRAMES_REST, ClientEndpoint, Opening
from connmgr.pipes.remote import ProcessEndpoint
from connmgr.plugin import Channel
from connmgr.shares import Rests
from connmgr.streams.loop import Loop
from connmgr.streams.splice import Splice
from connmgr.streams.websocket import GOING_AWAY

MAX_STREAMS = 256

TOKEN_STREAMS = 64
"""Most streams of one token, and of those made with it."""

TOKENS_STREAMS = 192
"""Most streams of all tokens together."""

GRACE_SECONDS = 2.0
"""Time for a process to end after HUP, before its streams are closed."""


class OpenStream(Protocol):
    """An open stream, with a client or a process."""

    def stop(self, why: ConnmgrError) -> None:
        """Tell its client the reason, and end; called in the loop's thread."""


class _Held(NamedTuple):
    """The connection and the token's id with which a stream ends, and whose share it is of."""

    connection: str | None
    token: str | None
    holder: str | None
    on: str | None
    """The connection that it shows or uses, even if it does not end with it."""


class Streams:
    """Holds the streams until they end. Safe to use from several threads."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.rests = Rests(FRAMES_REST)
        self._lock = threading.Lock()
        self._open: dict[OpenStream, _Held] = {}
        self._stopping = False
        self._all_ended = threading.Event()

    def require_room(self, holder: str | None) -> None:
        """Return if one more stream may be opened for ``holder`` (:mod:`connmgr.shares`).

        :raises StreamLimit: the limit is reached.
        :raises Stopping: the daemon is stopping.
        """
        with self._lock:
            if self._stopping:
                raise _stopping()
            if len(self._open) >= MAX_STREAMS:
                raise StreamLimit(f"{MAX_STREAMS} streams are open, and no more may be; try again later.")
            if holder is not None:
                of_tokens = [held.holder for held in self._open.values() if held.holder is not None]
                if of_tokens.count(holder) >= TOKEN_STREAMS:
                    raise StreamLimit(f"The token has {TOKEN_STREAMS} streams open; end one first.")
                if len(of_tokens) >= TOKENS_STREAMS:
                    raise StreamLimit(
                        f"Tokens have {TOKENS_STREAMS} streams open, and no more may be; try again later."
                    )

    def add(
        self,
        stream: OpenStream,
        connection: str | None = None,
        *,
        token: str | None = None,
        holder: str | None = None,
        on: str | None = None,
        has_ended: Callable[[], bool] = lambda: False,
    ) -> None:
        """Hold ``stream`` until :meth:`discard`; stop it at once if the daemon is stopping.

        It ends with ``connection``, and if given with ``token``, the id of a token; it counts for ``holder``. ``on`` is
        the connection of a stream that does not end with it.
        ``has_ended`` returns whether that token has become invalid; then the stream is stopped too.
        """
        with self._lock:
            self._open[stream] = _Held(connection, token, holder, on or connection)
            stopping = self._stopping
        if stopping:
            self.loop.call(lambda: stream.stop(_stopping()))
        elif has_ended():
            self.loop.call(lambda: stream.stop(TokenRevoked("The token is not valid any more.")))

    def discard(self, stream: OpenStream) -> None:
        """Release ``stream``."""
        with self._lock:
            self._open.pop(stream, None)
            if self._stopping and not self._open:
                self._all_ended.set()

    def forget(self, connections: Collection[str]) -> None:
        """End the streams of connections that were removed or changed."""
        self._end(lambda held: held.connection in connections, ShellStopped("The connection was changed or removed."))

    def end(self, tokens: Collection[str], why: ConnmgrError, on: Collection[str] | None = None) -> None:
        """End the streams of clients with these tokens, ``on`` these connections or all, and tell them ``why``."""
        self._end(lambda held: held.token in tokens and (on is None or held.on in on), why)

    def _end(self, concerns: Callable[[_Held], bool], why: ConnmgrError) -> None:
        with self._lock:
            ending = [stream for stream, held in self._open.items() if concerns(held)]
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
    """Joins the client of ``opening`` with the process behind ``channel`` on ``connection``.

    ``hang_up`` is called, in a thread that may block, if the client leaves while the process runs; ``when_ended`` once,
    in such a thread and after the process, with its exit status, or None if that is unknown. Belongs to the thread of
    the loop.
    """

    def __init__(
        self,
        streams: Streams,
        opening: Opening,
        channel: Channel,
        connection: str,
        *,
        hang_up: Callable[[], object],
        when_ended: Callable[[int | None], object],
    ) -> None:
        self._streams, self._channel = streams, channel
        self._hang_up, self._when_ended = hang_up, when_ended
        self._is_released = False
        self._process = ProcessEndpoint(streams.loop, channel, hang_up=self._end_process, released=self._released)
        self._client = ClientEndpoint(streams.loop, opening, self._process.resize)
        self._splice = Splice(self._client, self._process, ended=lambda _: self._discard_at_end())
        streams.add(self, connection, token=opening.token, holder=opening.holder, has_ended=opening.has_ended)

    def stop(self, why: ConnmgrError) -> None:
        self._client.fail(why, GOING_AWAY)
        self._process.close()

    def _end_process(self) -> None:
        """Send HUP and give the process time to end by itself; in a thread that may block."""
        self._hang_up()
        with suppress(TimeoutError, EOFError, OSError):
            self._channel.exit_status(GRACE_SECONDS)

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
