"""Runs one program over a directory as often as its list of names requires."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from connmgr.engine.rpc import Exchange, RemoteProgram
from connmgr.errors import RequestError
from connmgr.fs.files import Place

CALL_BYTES = 48 << 10
"""Most bytes of names in one call of a program."""


class Calls:
    """The runs of ``program`` over the directory ``path``, for ``names`` in it; without names, one run for everything.

    The first run has begun, and each yields its answer after ``ok``. Close it afterwards.

    With a gate each name has its own run, as the path. ``lead`` is the path of such a run's archive relative to the
    directory, empty for the whole directory; None if names need no prefix. ``missed`` has the failed runs after the
    first.
    """

    lead: bytes | None = None

    def __init__(self, place: Place, program: RemoteProgram, path: bytes, names: Sequence[bytes]) -> None:
        self._place = place
        self._program = program
        self._path = path
        self._lists = _lists(names) if place.gate is None else _single(names)
        self.missed: list[str] = []
        with ExitStack() as cleanup:
            self._exchange = self._begun(cleanup, next(self._lists))
            self._cleanup = cleanup.pop_all()

    def __iter__(self) -> Iterator[Exchange]:
        """Yield each run when the previous one is over."""
        yield self._exchange
        for names in self._lists:
            self._cleanup.close()
            try:
                exchange = self._begun(self._cleanup, names)
            except RequestError as error:
                if self._place.gate is None:
                    raise
                self._cleanup.close()
                self.missed.append(f"{names[0].decode(errors='replace')}: {error.message}")
            else:
                yield exchange

    def close(self) -> None:
        """End the far side's part. Calling it again does nothing."""
        self._cleanup.close()

    def _begun(self, cleanup: ExitStack, names: list[bytes]) -> Exchange:
        arguments: list[bytes] = [self._path, *names]
        if self._place.gate is not None:
            self.lead = b"".join(names)
            arguments = [b"/".join([self._path, self.lead]), b"member"] if names else [self._path]
        exchange = cleanup.enter_context(self._place.run(self._program, arguments))
        exchange.answer()
        return exchange


def _single(names: Sequence[bytes]) -> Iterator[list[bytes]]:
    return iter([[name] for name in names] or [[]])


def _lists(names: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Yield ``names`` in lists that fit into one call; one empty list if there is none."""
    call: list[bytes] = []
    size = 0
    for name in names:
        if call and size + len(name) > CALL_BYTES:
            yield call
            call, size = [], 0
        call.append(name)
        size += len(name) + 3
    yield call
