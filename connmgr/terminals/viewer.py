"""One attached client of a terminal: it gets the screen, and then further output, as fast as it reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from connmgr.errors import ConnmgrError
from connmgr.pipes.clients import Client, Opening
from connmgr.pipes.streams import Streams
from connmgr.shares import give_way
from connmgr.streams import frames
from connmgr.streams.websocket import GOING_AWAY
from connmgr.terminals.emulator.drawing import draw
from connmgr.terminals.emulator.screen import MAX_CELLS
from connmgr.terminals.output import TerminalOutput

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
