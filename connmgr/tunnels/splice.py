"""Joins the two ends of a stream: each byte is read and written once, and neither end runs ahead."""

from __future__ import annotations

from collections.abc import Callable

from connmgr.tunnels.ends import READ_BYTES, End

READS_AT_ONCE = 4
"""Most reads of one direction before other streams get their turn."""


class Traffic:
    """The number of bytes that came from the far side and went to it."""

    def __init__(self) -> None:
        self.bytes_in = self.bytes_out = 0

    def came(self, size: int) -> None:
        """Count bytes from the far side."""
        self.bytes_in += size

    def went(self, size: int) -> None:
        """Count bytes to the far side."""
        self.bytes_out += size


class _Direction:
    """The data from one end to the other."""

    def __init__(self, source: End, target: End, count: Callable[[int], None]) -> None:
        self._source, self._target, self._count = source, target, count
        self._pending: memoryview | None = None
        self.over = False

    @property
    def reads(self) -> bool:
        """Whether it waits for its source."""
        return not self.over and self._pending is None

    @property
    def writes(self) -> bool:
        """Whether it waits for its target."""
        return self._pending is not None

    def carry(self, data: bytes) -> None:
        """Write ``data`` before any data that is read."""
        self._pending = memoryview(data) if data else None

    def go_on(self) -> None:
        """Pass on available data.

        :raises OSError: an end is broken.
        """
        for _ in range(READS_AT_ONCE):
            if self._pending is not None and not self._flush():
                return
            if self.over:
                return
            data = self._source.read()
            if data is None:
                return
            if not data:
                self.over = True
                self._target.end()
                return
            self._count(len(data))
            self._pending = memoryview(data)
            if not self._flush() or len(data) < READ_BYTES:
                # A short read has taken all available data.
                return

    def _flush(self) -> bool:
        """Write pending data; return whether all of it was accepted."""
        rest = self._pending
        while rest:
            size = self._target.write(rest)
            if not size:
                self._pending = rest
                return False
            rest = rest[size:]
        self._pending = None
        return True


class Splice:
    """Joins ``near`` and ``far`` until both directions have ended. Belongs to the thread of the loop.

    ``early`` was already read from ``near``. ``intact`` returns, at the end of ``far``, whether the link still works,
    so that the end is real. ``ended`` is called once.
    """

    def __init__(
        self,
        near: End,
        far: End,
        traffic: Traffic,
        *,
        early: bytes,
        intact: Callable[[], bool],
        ended: Callable[[Splice], None],
    ) -> None:
        self._near, self._far = near, far
        self._out = _Direction(near, far, traffic.went)
        self._in = _Direction(far, near, traffic.came)
        self._intact, self._ended = intact, ended
        self._closed = self._going_on = False
        self._due: set[End] = set()
        traffic.went(len(early))
        self._out.carry(early)
        near.begin(lambda: self._go_on(near))
        far.begin(lambda: self._go_on(far))
        self._go_on(near, far)

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._closed

    def _go_on(self, *ready: End) -> None:
        # An end may call this while it is being read or written; the event is handled afterwards.
        self._due.update(ready)
        if self._going_on:
            return
        self._going_on = True
        while self._due and not self._closed:
            due, self._due = self._due, set()
            self._pass_on(due)
        self._going_on = False

    def _pass_on(self, due: set[End]) -> None:
        try:
            # In this order, because a read without data clears the news that writing may go on.
            if self._far in due or self._in.writes:
                self._in.go_on()
            if self._near in due or self._out.writes:
                self._out.go_on()
        except (OSError, EOFError):
            self.close(reset=True)
            return
        if self._in.over and not self._intact():
            self.close(reset=True)
        elif self._in.over and self._out.over and not (self._in.writes or self._out.writes):
            self.close()
        else:
            self._near.watch(readable=self._out.reads, writable=self._in.writes)
            self._far.watch(readable=self._in.reads, writable=self._out.writes)

    def close(self, *, reset: bool = False) -> None:
        """End both; ``reset`` signals the near side that data was lost. Calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        self._near.close(reset=reset)
        self._far.close(reset=reset)
        self._ended(self)
