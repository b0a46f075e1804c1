"""The outcomes of one command on many connections, as ``/shell/broadcast`` answers them.

Not beside the output of a single command: :mod:`connmgr.client.output` is all that the plainest command line loads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from connmgr.client.errors import Answer, ClientError, Unreachable, from_member, lacking
from connmgr.client.output import RawResult, Result, lines_of
from connmgr.client.wire import Response, WireError

if TYPE_CHECKING:
    from connmgr.contract.shell import BroadcastLine


class Outcome(NamedTuple):
    """The outcome of a command on one connection: its result, or an error.

    ``name`` is the connection's path, empty if there is no such connection.
    """

    connection: str
    name: tuple[str, ...]
    seconds: float
    result: Result | ClientError

    @classmethod
    def of(cls, line: BroadcastLine) -> Outcome:
        """Return the outcome that a line has, with output as text."""
        return cls(*_where(line), Result.of(line) if line.error is None else from_member(line.error))


class RawOutcome(NamedTuple):
    """Like :class:`Outcome`, with output as bytes."""

    connection: str
    name: tuple[str, ...]
    seconds: float
    result: RawResult | ClientError

    @property
    def failure(self) -> ClientError | None:
        """The error, if it is one."""
        return self.result if isinstance(self.result, ClientError) else None

    @classmethod
    def of(cls, line: BroadcastLine) -> RawOutcome:
        """Return the outcome that a line has, with output in base64."""
        return cls(*_where(line), RawResult.of(line) if line.error is None else from_member(line.error))


def _where(line: BroadcastLine) -> tuple[str, tuple[str, ...], float]:
    if line.connection is None or line.ms is None:
        raise lacking("ms")
    return line.connection, tuple(line.name or ()), line.ms / 1000


AnyOutcome = TypeVar("AnyOutcome", Outcome, RawOutcome)


class Broadcast(Generic[AnyOutcome]):
    """The outcomes on all connections, iterated as they come.

    It occupies the client's connection until the last outcome or :meth:`close`, for example by a context manager.
    Closing makes the daemon kill commands that still run.
    """

    def __init__(
        self, response: Response, read: Callable[[BroadcastLine], AnyOutcome], close: Callable[[], None]
    ) -> None:
        self._response = response
        self._lines = lines_of(response)
        self._read: Callable[[BroadcastLine], AnyOutcome] = read
        self._close = close
        self._whole = False

    def __enter__(self) -> Broadcast[AnyOutcome]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[AnyOutcome]:
        """Yield the outcomes.

        :raises Unreachable: the answer broke off before the end.
        """
        while not self._whole:
            line = self._line()
            if line.connection is not None:
                yield self._read(line)
            else:
                self._whole = True
                # Read to the end, so that the next request can use the connection.
                self._response.read()

    def close(self) -> None:
        """Release the connection, and abandon outstanding outcomes."""
        if not self._whole:
            self._close()
        self._response.close()

    def _line(self) -> BroadcastLine:
        try:
            members = json.loads(next(self._lines), object_hook=Answer)
        except (OSError, ValueError, EOFError, WireError, StopIteration) as error:
            raise self._broken() from error
        if not isinstance(members, Answer):
            raise self._broken()
        from connmgr.contract.shell import BroadcastLine

        return BroadcastLine.read(members)

    def _broken(self) -> Unreachable:
        self._close()
        return Unreachable("The connection broke before the last outcome.", sent=True)
