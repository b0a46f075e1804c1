"""Couples a pipe of the daemon with local descriptors."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from connmgr.cli.relay.ends import Sink, Source
from connmgr.cli.relay.loop import READABLE, WRITABLE
from connmgr.client import ClientError
from connmgr.client.pipe import Pipe
from connmgr.streams.frames import DATA, EOF, RESIZE, STDERR

SPARE_BYTES = 64
"""Room for bytes that ``typed`` has held back and adds to later input."""


class Relay:
    """A task that carries ``source`` to ``pipe``, and the pipe's output to ``out`` and ``err``, until the pipe's end.

    Back-pressure works both ways: the far side is not asked for more than a sink accepts. ``typed`` gets all input and
    returns what to send. ``shown`` gets output before it is written, ``resized`` the size that another client has set.
    ``output_ended`` is called when all output is written. ``error`` is why the relay ended early: a
    :class:`ClientError`, or the :class:`OSError` of ``out``.
    """

    def __init__(self, pipe: Pipe, source: Source | None, out: Sink, err: Sink | None = None) -> None:
        self.pipe = pipe
        self.over = False
        self.error: ClientError | OSError | None = None
        self.typed: Callable[[bytes], bytes] | None = None
        self.shown: Callable[[memoryview], object] | None = None
        self.output_ended: Callable[[], None] | None = None
        self.resized: Callable[[memoryview], None] | None = None
        self._source = source
        self._out = out
        self._sinks = {out.descriptor: out} | ({err.descriptor: err} if err else {})
        self._by_kind = {DATA: out, STDERR: err or out}
        self._output_is_over = False

    def wanted(self) -> Iterable[tuple[int, int]]:
        if self._goes_on:
            yield self.pipe.fileno(), READABLE | (WRITABLE if self.pipe.unsent else 0)
            if self._source is not None and not self._source.ended and self.pipe.room > SPARE_BYTES:
                yield self._source.descriptor, READABLE
        for descriptor, sink in self._sinks.items():
            if sink.unwritten:
                yield descriptor, WRITABLE

    def ready(self, descriptor: int) -> None:
        try:
            if descriptor in self._sinks:
                self._write(self._sinks[descriptor], None)
            elif descriptor == self.pipe.fileno():
                self.pipe.flush()
                self.receive()
            elif self._source is not None:
                self._send(self._source)
        except ClientError as error:
            self._fail(error)
        self._settle()

    def receive(self) -> None:
        """Handle what has come from the pipe.

        :raises ClientError: the pipe ended early.
        """
        for kind, content in self.pipe.events():
            if kind == EOF:
                self._output_is_over = True
            elif kind == RESIZE and self.resized is not None:
                self.resized(content)
            elif kind in self._by_kind:
                if self.shown is not None:
                    self.shown(content)
                self._write(self._by_kind[kind], content)

    def close(self) -> None:
        """Close the pipe, and discard unwritten output."""
        self.over = True
        self.pipe.close()
        for sink in self._sinks.values():
            sink.close()

    @property
    def _goes_on(self) -> bool:
        return self.pipe.exit_status is None and self.error is None

    def _send(self, source: Source) -> None:
        data = source.read(self.pipe.room - SPARE_BYTES)
        if data and self.typed is not None:
            data = self.typed(data)
        if data:
            self.pipe.write(data)
        elif source.ended:
            self.pipe.end_input()

    def _write(self, sink: Sink, content: memoryview | None) -> None:
        try:
            done = sink.flush() if content is None else sink.write(content)
        except OSError as error:
            done = sink.drop()
            # A closed stderr does not end the relay.
            if sink is self._out:
                self._fail(error)
        if self._goes_on:
            self.pipe.taken(done)

    def _fail(self, error: ClientError | OSError) -> None:
        self.error = self.error or error

    def _settle(self) -> None:
        if any(sink.unwritten for sink in self._sinks.values()):
            return
        if self._output_is_over and self.output_ended is not None:
            self.output_ended()
            self.output_ended = None
        if not self._goes_on:
            self.close()
