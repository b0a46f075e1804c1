"""The open streams, and the loop that serves them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple, Protocol

from connmgr.errors import ConnmgrError, ShellStopped, Stopping, StreamLimit, TokenRevoked
from connmgr.streams.loop import Loop

MAX_STREAMS = 256

TOKEN_STREAMS = 64
"""Most streams of one token, and of those made with it."""

TOKENS_STREAMS = 192
"""Most streams of all tokens together."""


class Stream(Protocol):
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
        self._lock = threading.Lock()
        self._open: dict[Stream, _Held] = {}
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
        stream: Stream,
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

    def discard(self, stream: Stream) -> None:
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
