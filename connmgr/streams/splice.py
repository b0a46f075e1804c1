"""Joins two endpoints: each byte is read and written once, neither side runs ahead, and both ends are passed on."""

from __future__ import annotations

from collections.abc import Callable

from connmgr.streams.endpoints import Endpoint, Outcome
from connmgr.streams.frames import DATA

Count = Callable[[int], object]


class _Direction:
    """The data from ``source`` to ``target``; ``source`` reports to it as to its receiver."""

    back: _Direction
    """The other direction."""

    def __init__(self, splice: Splice, source: Endpoint, target: Endpoint, count: Count) -> None:
        self._splice, self.source, self._target, self._count = splice, source, target, count
        self.is_over = False
        """Whether no more data will come."""

        self.waits = False
        """Whether the source is paused until the target has room."""

    def arrived(self, data: bytes | memoryview, kind: int = DATA) -> None:
        splice, target = self._splice, self._target
        if splice.closed:
            return
        if splice.survivor is not None:
            # Nobody is left to read it. It is acknowledged all the same: a peer that waits for its window would never
            # come to the end of its data, which this splice waits for.
            self.source.acknowledge(len(data))
            return
        self._count(len(data))
        target.write(data, kind)
        if target.is_full and not self.waits and not splice.closed:
            self.waits = True
            self.source.pause()

    def taken(self, size: int) -> None:
        # The source of this direction is the target of the other one.
        self.back.go_on(size)
        if self.is_over or self.back.is_over:
            self._splice.look()

    def go_on(self, size: int) -> None:
        """Let the source send on, after the target has passed on ``size`` bytes."""
        if self._splice.closed or self._splice.survivor is not None:
            return
        self.source.acknowledge(size)
        if self.waits and not self._target.is_full:
            self.release()

    def release(self) -> None:
        """Read on."""
        if self.waits:
            self.waits = False
            if not self.is_over:
                self.source.resume()

    def ended(self) -> None:
        self.is_over = True
        self._splice.has_ended(self)
        # Only this direction ends. `sort` has read all of its input before it prints anything: closing the other
        # direction with this one would lose its output.
        if self._splice.survivor is None and not self._splice.closed:
            self._target.end()
        self._splice.look()

    def over(self, outcome: Outcome) -> None:
        self.is_over = True
        self._splice.is_over(self, outcome)


class Splice:
    """Joins ``near``, the client's endpoint, and ``far``, its peer's, until both directions or one endpoint are over.

    When one endpoint ends its output, the other gets that end after all data, and may go on sending. When one endpoint
    is over, the other gets the outcome after all data, and later data from it is dropped. All calls belong to the
    thread of the loop.

    ``early`` was already read from ``near``. ``came`` and ``went`` count the bytes from and to ``far``. ``is_intact``
    is called at the end of ``far``; if it returns that this end is not real, such as that of a lost link, ``near`` is
    reset. ``ended`` is called once, when both are closed; ``outcome`` is then 0 if both directions have ended, or the
    outcome of the endpoint that was over first.
    """

    def __init__(
        self,
        near: Endpoint,
        far: Endpoint,
        *,
        early: bytes = b"",
        came: Count = lambda _: None,
        went: Count = lambda _: None,
        is_intact: Callable[[], bool] = lambda: True,
        ended: Callable[[Splice], object] = lambda _: None,
    ) -> None:
        self._near, self._far = near, far
        self._is_intact, self._ended = is_intact, ended
        self._has_outcome = near.has_outcome or far.has_outcome
        self.closed = False
        self.outcome: Outcome | None = None
        self.survivor: Endpoint | None = None
        """The endpoint that is left when the other one is over."""

        self._out, self._in = _Direction(self, near, far, went), _Direction(self, far, near, came)
        self._out.back, self._in.back = self._in, self._out
        # Both have a receiver before either reads, for each may be written to at once.
        near.receiver = self._out
        far.begin(self._in)
        if early and not self.closed:
            self._out.arrived(early)
        if not self.closed:
            near.begin(self._out)
            if self._out.waits:
                near.pause()

    def has_ended(self, direction: _Direction) -> None:
        """Reset ``near`` if the end of ``far`` is that of a broken link and not the peer's own."""
        if direction is self._in and not self._is_intact():
            self.close(reset=True)

    def is_over(self, direction: _Direction, outcome: Outcome) -> None:
        """Handle that the source of ``direction`` is over: the other endpoint gets the outcome."""
        if self.survivor is not None:
            self.close()
        if direction is self._in and outcome == 0:
            self.has_ended(direction)
        if self.closed:
            return
        self.outcome = outcome
        self.survivor = direction.back.source
        direction.source.close()
        # Its data has no target any more, and is dropped; but it must be read, or the survivor's end is never seen.
        direction.back.release()
        self.survivor.finish(outcome)
        self.look()

    def look(self) -> None:
        """Close both once both directions have ended and everything is written."""
        if self.closed or self._near.unwritten or self._far.unwritten:
            return
        if self.survivor is not None:
            last = self._out if self.survivor is self._near else self._in
            if last.is_over and not (self.survivor.has_outcome or self.survivor.awaits_outcome):
                self.close()
        elif self._out.is_over and self._in.is_over and not self._has_outcome:
            # Nothing has failed, so whoever waits for an outcome gets the status of success.
            (self._in if self._near.awaits_outcome else self._out).over(0)

    def close(self, *, reset: bool = False) -> None:
        """Close both; ``reset`` signals the near peer that data was lost. Calling it again does nothing."""
        if self.closed:
            return
        self.closed = True
        self._near.close(reset=reset)
        self._far.close(reset=reset)
        self._ended(self)
