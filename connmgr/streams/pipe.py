"""A process for one client: three raw streams, and the exit status at their end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from wsproto.frame_protocol import CloseReason

from connmgr import frames
from connmgr.errors import ConnmgrError, ShellLost
from connmgr.plugin import Channel
from connmgr.streams.client import Client
from connmgr.streams.opening import Opening
from connmgr.streams.process import Process
from connmgr.streams.streams import Streams

GRACE_SECONDS = 2.0
"""Time for a process to end after HUP, before its streams are closed."""


class Pipe:
    """Connects the client of ``opening`` with the process behind ``channel`` on ``connection``.

    ``hang_up`` is called, in a thread that may block, if the client leaves while the process runs; ``when_ended`` once,
    in such a thread and after the process, with its exit status, or None if that is unknown.
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
        self._streams = streams
        self._channel, self._hang_up = channel, hang_up
        self._has_left = self._is_released = False
        self._when_ended = when_ended
        self._status: int | None = None
        self._client = Client(streams.loop, opening, self)
        self._process = Process(
            streams.loop,
            channel,
            output=self._output,
            taken=self._client.acknowledge,
            ended=self._ended,
            released=self._released,
        )
        streams.add(self, connection, token=opening.token, holder=opening.holder, has_ended=opening.has_ended)

    def receive(self, data: bytes) -> None:
        self._process.write(data)

    def end_input(self) -> None:
        self._process.end_input()

    def resize(self, columns: int, rows: int) -> None:
        self._process.resize(columns, rows)

    def has_room(self) -> None:
        self._process.resume()

    def leave(self) -> None:
        self._has_left = True
        self._process.close(self._end_process)
        self._discard_at_end()

    def _released(self) -> None:
        try:
            self._when_ended(self._status)
        finally:
            self._streams.loop.call(self._note_release)

    def _note_release(self) -> None:
        self._is_released = True
        self._discard_at_end()

    def _discard_at_end(self) -> None:
        # A stopping daemon waits for streams that are held, so the process still gets HUP.
        if self._has_left and self._is_released:
            self._streams.discard(self)

    def _end_process(self) -> None:
        """Send HUP and give the process time to end by itself; in a thread that may block."""
        self._hang_up()
        with suppress(TimeoutError, EOFError, OSError):
            self._channel.exit_status(GRACE_SECONDS)

    def stop(self, why: ConnmgrError) -> None:
        self._client.fail(why, CloseReason.GOING_AWAY)
        self._process.close(self._end_process)

    def _output(self, stdout: bytes, stderr: bytes) -> None:
        self._client.send(stdout)
        self._client.send(stderr, frames.STDERR)
        if self._client.is_full:
            self._process.pause()

    def _ended(self, status: int | None) -> None:
        self._status = status
        if self._has_left:
            return
        if status is None:
            self._client.fail(ShellLost("The link broke; it is unknown how the process ended."))
        else:
            self._client.finish(status)
