"""One client's TCP connection: waitress's channel with time limits, served by one thread from request to request."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol

from waitress.channel import ClientDisconnected
from waitress.task import Task

from connmgr.api.auth import Caller
from connmgr.api.parking import Parked
from connmgr.daemon import parser, receiving
from connmgr.daemon.departures import ClientCancellation, Departures, has_left
from connmgr.daemon.parked_channels import ParkedChannels
from connmgr.daemon.parser import RequestParser
from connmgr.daemon.rejection import RejectTask
from connmgr.daemon.resumable import ResumableTask
from connmgr.errors import Busy
from connmgr.shares import STRANGER

IDLE_SECONDS = 120.0
LINGER_SECONDS = 5.0


class ChannelServer(receiving.ReceivingServer, Protocol):
    """The parts of the server that a channel uses."""

    parked_channels: ParkedChannels
    departures: Departures
    sender_of: Callable[[str], Caller | None]

    def join(self, channel: ClientChannel, holder: str) -> bool: ...
    def leave(self, channel: ClientChannel) -> None: ...

    def crowded(self, holder: str | None) -> bool: ...
    def pull_trigger(self) -> None: ...


class ClientChannel(receiving.ReceivingChannel):
    """Closes a client that is silent for too long, unless it waits for its answer.

    A thread owns the channel while it answers, and :data:`KEEP_ALIVE_SECONDS` longer. At all other times the main
    thread owns it, and polls all clients.
    """

    server: ChannelServer
    rejected = False
    parked: Parked | None = None
    """The event for which the oldest request waits without a thread."""

    queued = False
    """Whether its next request has to wait for a thread."""

    _place = -1
    """The key of this channel in the server's table of waiting requests."""

    peer_uid: int | None = None
    """The user of its client at the Unix socket, by the kernel's word: the daemon's, or root."""

    caller: Caller | None = None
    """The sender of its last request with a valid token."""

    counts_for: str | None = None
    """The token in whose share of the connections it is counted."""

    gives_way = False
    """Whether it is to be closed for another one as soon as it answers nothing."""

    def overdue(self, now: float) -> bool:
        """Whether the client exceeded a time limit at ``now``, in seconds since 1970."""
        if self._lingering_until:
            return now > self._lingering_until
        if self.total_outbufs_len or self._sending:
            return now > self.last_activity + receiving.STALL_SECONDS
        if self.requests:
            return False
        if self.caller is not None and self.caller.ended:
            return not self.keeps_alive
        if self.request is not None:
            stalls = not self.request.is_upload and now > self.last_activity + parser.RECEIVE_SECONDS
            return stalls or now > self.request.overdue_at
        return now > self.last_activity + IDLE_SECONDS

    @property
    def is_idle(self) -> bool:
        """Whether it may be closed for another client: it waits for no answer, and does not send for one either.

        The request of a client that showed no valid token is disregarded until it is whole.
        """
        sends = self.request is not None and self.caller is not None
        return not (sends or self.keeps_alive or self.requests)

    @property
    def rank(self) -> int:
        """Who it belongs to: 0 for a client without a valid token, 1 for one with a token, 2 for the owner."""
        if self.caller is None:
            return 0 if self.peer_uid is None else 2
        return 2 if self.caller.holder is None else 1

    @property
    def holder(self) -> str | None:
        """Whose share of the threads its oldest request uses (:mod:`connmgr.shares`)."""
        asking = self.requests[0].caller if self.requests else self.caller
        if asking is None:
            return STRANGER if self.peer_uid is None else None
        return asking.holder

    def _sender_of(self, authorization: str) -> Caller | None:
        asking = self.server.sender_of(authorization)
        if asking is None:
            return None
        if asking.holder != self.counts_for:
            self.server.leave(self)
            if asking.holder is not None and not self.server.join(self, asking.holder):
                raise Busy("Too many connections of tokens are open; close some first.")
        self.caller = asking
        return asking

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return bool(self.requests or self.total_outbufs_len)

    @property
    def is_alone(self) -> bool:
        """Whether no data has come after the request that is being answered."""
        return len(self.requests) == 1 and self.request is None

    def hand_over(self) -> socket.socket:
        """Return the client's socket, which the caller then reads, writes and closes; nothing more is sent here.

        :raises OSError: the client is gone.
        """
        # The main thread may be about to read it, by a poll from before this request.
        with self._receiving:
            handed = self.socket
            if handed is None:
                raise ConnectionResetError
            self.handed_over = handed.dup()
        return self.handed_over

    @cached_property
    def cancellation(self) -> ClientCancellation:
        """The end of the client's interest in its requests."""
        return ClientCancellation(self.server.departures, lambda: self.handed_over or self.socket)

    def readable(self) -> bool:
        if self.handed_over or (self.rests_until and time.monotonic() < self.rests_until):
            return False
        if self.parked is not None:
            # A leaving client must be noticed, so the socket is read until one more request has come.
            return len(self.requests) == 1
        return bool(self._lingering_until) or not (self.keeps_alive or self.requests or not super().readable())

    def check_client_disconnected(self) -> bool:  # type: ignore[override]
        """Whether the client has gone."""
        return has_left(self.socket)

    def service(self) -> None:
        """Answer the requests received, and those that follow at once, unless other clients wait for a thread."""
        self.keeps_alive = True
        if self.queued:
            self.queued = False
            # Nobody waits for the answer any more, and nothing was begun.
            self.connected = self.connected and not has_left(self.socket)
        try:
            answered = True
            while answered:
                holder = self.holder
                with self.server.computing.turn(holder):
                    answered = self._answer(self.requests[0])
                if answered and (self.server.crowded(holder) or not (self.requests or self._next_arrives())):
                    break
        finally:
            self.last_activity = time.time()
            self.keeps_alive = False
            if self.parked is not None:
                self._wait(self.parked)
            elif self.requests:
                self.server.add_task(self)
            self.server.pull_trigger()

    def _wait(self, parked: Parked) -> None:
        self._place = self.server.parked_channels.park(self, parked)
        parked.begin(lambda: self.resume(parked))

    def resume(self, parked: Parked) -> None:
        """Answer the request that waits as ``parked`` again, if it still waits; safe in any thread, at any time."""
        with self.requests_lock:  # type: ignore[attr-defined]
            if self.parked is not parked:
                return
            self.parked = None
        self.server.parked_channels.leave(self._place)
        parked.end()
        self.server.add_task(self)

    def _answer(self, request: RequestParser) -> bool:
        """Answer ``request``; return False if it waits without a thread instead, or the socket was handed over."""
        kind: Any = RejectTask if request.error else ResumableTask
        task: Task = kind(self, request)
        self._header = None
        self._awaits_reader = False
        task.close_on_finish = not self.connected
        if self.connected:
            self._carry_out(task, request)
        if self.parked is not None:
            return False
        if self.handed_over:
            self.requests = []
            # The main thread closes the original descriptor; the duplicate stays open.
            self.will_close = True
            return False
        self._finish(request, closes=task.close_on_finish)
        return True

    def _carry_out(self, task: Task, request: RequestParser) -> None:
        try:
            task.service()
            self.parked = getattr(task, "parked", None)
            if self.parked is None and not self.handed_over:
                self._send_header()
        except ClientDisconnected:
            task.close_on_finish = True
        except BaseException:
            # The application answers its own errors. This response broke off, and the request must not be answered
            # again.
            self.logger.exception("The response to %s %s broke off", request.command, request.path)
            task.close_on_finish = True

    def _finish(self, request: RequestParser, *, closes: bool) -> None:
        """Release ``request``, which was answered, and if that ``closes`` the connection, those behind it."""
        with self.requests_lock:  # type: ignore[attr-defined]
            request.close()
            self.requests.pop(0)
            if closes:
                self.close_when_flushed = True
                for other in self.requests:
                    other.close()
                self.requests = []
            elif not self.requests and self.request is not None and self._awaits_leave(self.request):
                self.send_continue()

    def _awaits_leave(self, request: RequestParser) -> bool:
        """Whether the client waits for ``100 Continue``, held back by answers to earlier requests."""
        return request.expect_continue and request.headers_finished and not self.sent_continue

    def handle_write(self) -> None:
        # A refused request may still be arriving. Closing now would make the kernel send a reset, and the client would
        # lose the answer. So only the sending half is closed, and arriving data is discarded for a while.
        if not (self.close_when_flushed and self.rejected):
            super().handle_write()
            return
        self.close_when_flushed = False
        super().handle_write()
        if self.total_outbufs_len:
            self.close_when_flushed = True
        elif self.connected:
            self._linger()

    def handle_close(self) -> None:
        if "cancellation" in vars(self):
            self.cancellation.cancel()
        # Frees the received part of an incomplete request.
        if self.request is not None:
            self.request.close()
        if self.parked is not None:
            self.server.parked_channels.leave(self._place)
            self.parked.end()
            for request in self.requests:
                request.close()
        self.server.leave(self)
        super().handle_close()

    def _linger(self) -> None:
        self._lingering_until = time.time() + LINGER_SECONDS
        ended = self.socket
        try:
            if ended is not None:
                ended.shutdown(socket.SHUT_WR)
        except OSError:
            self.handle_close()
