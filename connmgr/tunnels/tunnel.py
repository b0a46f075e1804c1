"""One tunnel: its local port stays open, while the way behind it is opened, lost and opened again."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial

from connmgr import errors
from connmgr.errors import ConnmgrError, ShellLost
from connmgr.plugin import ByteStream, Channel
from connmgr.streams.loop import Loop, Timer
from connmgr.tunnels.door import Door
from connmgr.tunnels.ends import End, SocketEnd, end_of
from connmgr.tunnels.far_port import FarPort
from connmgr.tunnels.splice import Splice, Traffic
from connmgr.tunnels.status import CONNECTING, FAILED, OPEN, RETRYING, STOPPED, Status
from connmgr.tunnels.waiting import Client, Waiting
from connmgr.tunnels.way import Way

MAX_STREAMS = 2048
"""Most streams of one tunnel; further clients wait at its port."""

MAX_DIALS = 32
"""Most streams of one tunnel that are being opened at a time."""

LEAST_DELAY_SECONDS, MOST_DELAY_SECONDS = 1.0, 60.0
"""Bounds of the pause between attempts to open the way; after a loss the first attempt follows at once."""

FINAL = (
    errors.AuthFailed,
    errors.HostKeyChanged,
    errors.TransportUnsupported,
    errors.UnknownConnection,
    errors.UnknownType,
    errors.ConnectionCycle,
    errors.IntegrityError,
)
"""Errors without another attempt: it could lock an account or help an attacker, or a person must change something."""


class Tunnel:
    """Keeps a tunnel open from :meth:`begin` to :meth:`stop`; each may be called once, in any thread.

    ``open_way`` opens the way, in a thread that may wait. ``make_door`` opens the local port, if the tunnel has one;
    ``to`` is the destination of a tunnel from the far side.
    """

    def __init__(
        self,
        loop: Loop,
        open_way: Callable[[], Way],
        make_door: Callable[[Callable[[Client], None]], Door] | None,
        to: tuple[str, int] | None,
    ) -> None:
        self._loop, self._open_way, self._to = loop, open_way, to
        self._traffic = Traffic()
        self._waiting = Waiting(loop, self._give_up)
        self._streams: dict[Splice, None] = {}
        self._dialling = 0
        self._way: Way | None = None
        self._retry: Timer | None = None
        self._attempting = self._stopped = False
        self._status = Status(CONNECTING, since=_now())
        self.settled = threading.Event()
        """Set when the first attempt to open the way has ended, successful or not."""
        self.failure: ConnmgrError | None = None
        """The error of the last attempt to open the way, None if it succeeded."""
        self._door = None if make_door is None else make_door(self._enter)

    @property
    def status(self) -> Status:
        """Its current state."""
        address = (self._door.host, self._door.port) if self._door is not None else self._status.address
        return replace(
            self._status,
            address=None if self._status.state == FAILED else address,
            streams=len(self._streams),
            waiting=len(self._waiting) + self._dialling,
            bytes_in=self._traffic.bytes_in,
            bytes_out=self._traffic.bytes_out,
        )

    def begin(self) -> None:
        """Accept clients, and open the way."""
        self._loop.call(self._begin)

    def stop(self) -> threading.Event:
        """End the tunnel; return an event that is set when the port and the link are released."""
        done = threading.Event()
        self._loop.call(partial(self._stop, done))
        return done

    def look(self) -> None:
        """Check whether the way is lost; called regularly in the loop's thread."""
        if self._way is not None and not self._way.intact:
            self._lost(ShellLost("The link broke."))

    def try_now(self) -> None:
        """Open the way at once, if the next attempt is waiting."""
        self._loop.call(lambda: self._retry_within(0.0))

    def _begin(self) -> None:
        if self._door is not None:
            self._door.open()
        self._attempt()

    def _stop(self, done: threading.Event) -> None:
        self._stopped = True
        if self._retry is not None:
            self._retry.cancel()
        if self._door is not None:
            self._door.close()
        self._close_streams()
        self._become(STOPPED)
        way, self._way = self._way, None
        self.settled.set()
        self._loop.work(partial(_release, way, done))

    # The way.

    def _attempt(self) -> None:
        if self._stopped or self._attempting or self._way is not None:
            return
        self._attempting = True
        self._retry = None
        self._status = replace(self._status, next_retry=None)
        self._loop.work(self._open)

    def _open(self) -> None:
        """Open the way, in a thread that may block."""
        try:
            way = self._open_way()
        except ConnmgrError as error:
            self._loop.call(partial(self._failed, error))
        except BaseException:
            self._loop.call(partial(self._failed, errors.InternalError("The way could not be opened: see the log.")))
            raise
        else:
            self._loop.call(partial(self._opened, way))

    def _opened(self, way: Way) -> None:
        self._attempting = False
        self.settled.set()
        if self._stopped:
            self._loop.work(way.close)
            return
        self._way, self.failure = way, None
        self._status = Status(OPEN, way.address, _now(), relay=way.relay.program if way.relay else None)
        if way.listener is not None:
            FarPort(self._loop, way.listener, self._to or ("", 0), partial(self._take_here, way))
        self._serve()

    def _failed(self, error: ConnmgrError) -> None:
        self._attempting = False
        told = (error.code, error.message)
        if self._stopped:
            return
        self.failure = error
        if isinstance(error, FINAL):
            if self._door is not None:
                self._door.close()
            self._close_streams()
            self._status = Status(FAILED, since=_now(), retries=self._status.retries, last_error=told)
        else:
            retries = self._status.retries + 1
            since = self._status.since if self._status.state == RETRYING else _now()
            self._status = Status(RETRYING, None, since, retries, last_error=told)
            most = min(MOST_DELAY_SECONDS, LEAST_DELAY_SECONDS * 2 ** min(retries, 10))
            self._retry_after(LEAST_DELAY_SECONDS if self._waiting else random.uniform(LEAST_DELAY_SECONDS, most))  # noqa: S311
        self.settled.set()

    def _lost(self, error: ConnmgrError) -> None:
        """Open the way again, and reset the streams over the lost one."""
        way, self._way = self._way, None
        if way is None:
            return
        way.retire()
        self._loop.work(way.close)
        for stream in list(self._streams):
            stream.close(reset=True)
        self._status = Status(RETRYING, since=_now(), last_error=(error.code, error.message))
        # Randomly delayed, because other tunnels may have lost the same link.
        self._retry_after(random.uniform(0.0, LEAST_DELAY_SECONDS / 4))  # noqa: S311

    def _retry_after(self, seconds: float) -> None:
        if self._retry is not None:
            self._retry.cancel()
        self._retry = self._loop.after(seconds, self._attempt)
        at = datetime.fromtimestamp(time.time() + seconds, timezone.utc)
        self._status = replace(self._status, next_retry=at)

    def _retry_within(self, seconds: float) -> None:
        """Bring the next attempt forward, because a client waits for it."""
        if self._retry is not None and self._retry.at > time.monotonic() + seconds:
            self._retry_after(seconds)

    def _become(self, state: str) -> None:
        self._status = replace(self._status, state=state, since=_now(), next_retry=None)

    # Its clients.

    def _enter(self, client: Client) -> None:
        self._waiting.hold(client)
        self._retry_within(LEAST_DELAY_SECONDS)
        self._serve()

    def _serve(self) -> None:
        """Dial for waiting clients, as many at a time as allowed."""
        if self._way is None:
            return
        for client in self._waiting.take():
            if self._dialling < MAX_DIALS:
                self._dialling += 1
                self._loop.work(partial(self._dial, self._way, client))
            else:
                self._waiting.hold(client)
        if self._door is not None and len(self._streams) + self._dialling + len(self._waiting) >= MAX_STREAMS:
            self._door.shut()

    def _dial(self, way: Way, client: Client) -> None:
        """Open a stream for ``client``, in a thread that may block."""
        try:
            stream = way.dial(*client.to)
        except ConnmgrError as error:
            self._loop.call(partial(self._not_dialled, way, client, error))
        except BaseException:
            told = errors.InternalError("The stream could not be opened: see the log.")
            self._loop.call(partial(self._not_dialled, way, client, told))
            raise
        else:
            self._loop.call(partial(self._dialled, way, client, stream))

    def _not_dialled(self, way: Way, client: Client, error: ConnmgrError) -> None:
        self._dialling -= 1
        lost = isinstance(error, ShellLost) or not way.intact
        if lost and way is self._way:
            self._lost(error)
        if lost and not self._stopped:
            # The client came while the way was being lost, and waits for the rest of its time.
            self._waiting.hold(client)
            self._serve()
            return
        self._status = replace(self._status, last_error=(error.code, error.message))
        self._turn_away(client)
        self._serve()

    def _dialled(self, way: Way, client: Client, stream: ByteStream | Channel) -> None:
        self._dialling -= 1
        far = end_of(self._loop, stream)
        if self._stopped or way is not self._way:
            far.close()
            if self._stopped:
                self._turn_away(client)
            else:
                self._waiting.hold(client)
                self._serve()
            return
        self._waiting.release(client)
        answer = client.answer(True)
        # The send buffer of a new socket is larger than any answer.
        if answer and client.end.write(memoryview(answer)) < len(answer):
            client.end.close(reset=True)
            far.close()
            return
        self._join(client.end, far, client.early, way)
        self._serve()

    def _join(self, near: End, far: End, early: bytes, way: Way) -> None:
        begun = Splice(near, far, self._traffic, early=early, intact=lambda: way.intact, ended=self._ended)
        if not begun.closed:
            self._streams[begun] = None

    def _ended(self, stream: Splice) -> None:
        self._streams.pop(stream, None)
        if self._door is not None and not self._stopped and self._status.state != FAILED:
            self._door.open()

    def _give_up(self, client: Client) -> None:
        self._turn_away(client)

    def _turn_away(self, client: Client) -> None:
        self._waiting.release(client)
        answer = client.answer(False)
        if answer:
            try:
                client.end.write(memoryview(answer))
            except OSError:
                answer = b""
        client.end.close(reset=not answer)

    def _close_streams(self) -> None:
        for stream in list(self._streams):
            stream.close(reset=True)
        for client in self._waiting.take():
            self._turn_away(client)

    # Connections from the far side.

    def _take_here(self, way: Way, connected: socket.socket | None, stream: ByteStream, fault: str) -> None:
        """Join a stream of the far side's port with the connection on this side, if there is one."""
        if connected is None:
            self._status = replace(self._status, last_error=(errors.HostRefused.code, fault))
        elif self._stopped or way is not self._way or len(self._streams) >= MAX_STREAMS:
            connected.close()
        else:
            self._join(SocketEnd(self._loop, connected), end_of(self._loop, stream), b"", way)
            return
        self._loop.work(stream.close)


def _release(way: Way | None, done: threading.Event) -> None:
    try:
        if way is not None:
            way.close()
    finally:
        done.set()


def _now() -> datetime:
    return datetime.now(timezone.utc)
