"""The outcomes of a command on many connections, as they come."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Generic, NamedTuple, TypeVar

from connmgr.client.errors import Answer, ClientError, Unreachable, from_member
from connmgr.client.results import RawResult, Result
from connmgr.client.stream import lines_of
from connmgr.client.wire import Response, WireError


class Outcome(NamedTuple):
    """The outcome of a command on one connection: its result, or an error.

    ``name`` is the connection's path, empty if there is no such connection.
    """

    connection: str
    name: tuple[str, ...]
    seconds: float
    result: Result | ClientError

    @classmethod
    def read(cls, line: Mapping[str, Any]) -> Outcome:
        return cls(*_where(line), _error(line) or Result.read(line))


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
    def read(cls, line: Mapping[str, Any]) -> RawOutcome:
        return cls(*_where(line), _error(line) or RawResult.read(line))


def _where(line: Mapping[str, Any]) -> tuple[str, tuple[str, ...], float]:
    return line["connection"], tuple(line["name"] or ()), line["ms"] / 1000


def _error(line: Mapping[str, Any]) -> ClientError | None:
    return from_member(line["error"]) if "error" in line else None


Read = TypeVar("Read", Outcome, RawOutcome)


class Broadcast(Generic[Read]):
    """The outcomes on all connections, iterated as they come.

    It occupies the client's connection until the last outcome or :meth:`close`, for example by a context manager.
    Closing makes the daemon kill commands that still run.
    """

    def __init__(self, response: Response, read: Callable[[Answer], Read], close: Callable[[], None]) -> None:
        self._response = response
        self._lines = lines_of(response)
        self._read: Callable[[Answer], Read] = read
        self._close = close
        self._whole = False

    def __enter__(self) -> Broadcast[Read]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Read]:
        """Yield the outcomes.

        :raises Unreachable: the answer broke off before the end.
        """
        while not self._whole:
            line = self._line()
            if "connection" in line:
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

    def _line(self) -> Answer:
        try:
            found = json.loads(next(self._lines), object_hook=Answer)
        except (OSError, ValueError, EOFError, WireError, StopIteration) as error:
            raise self._broken() from error
        if not isinstance(found, Answer):
            raise self._broken()
        return found

    def _broken(self) -> Unreachable:
        self._close()
        return Unreachable("The connection broke before the last outcome.", sent=True)
