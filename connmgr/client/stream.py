"""A command's output while it runs."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple

from connmgr.client.errors import ClientError, Unreachable, from_answer
from connmgr.client.wire import Response, WireError

LINES = "application/x-ndjson"
READ_BYTES = 256 * 1024
FAILED_STATUS = 500
"""The status of an error in the last line, which comes too late for a status of its own."""


class Piece(NamedTuple):
    """The output of a command since the last piece."""

    stdout: bytes
    stderr: bytes


class Stream:
    """A running command, iterated for its output; ``exit_code`` is None until the end of the iteration.

    Leaving it earlier, by :meth:`close` or a context manager, kills the command.
    """

    exit_code: int | None = None
    restarted = False
    """Whether the shell had been lost, so that directory and variables are new; the first piece is then empty."""

    def __init__(self, response: Response) -> None:
        """Read from ``response``, which must have no other reader.

        :raises ClientError: it does not consist of lines, so it is not from a daemon of this version.
        """
        self._response = response
        if response.headers.content_type != LINES:
            response.close()
            raise ClientError("The answer has no lines, so it is not that of a daemon of this version.", "unknown", 200)

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Piece]:
        """Yield the output as it comes.

        :raises ClientError: the command did not run to its end.
        :raises Unreachable: the connection broke before the end.
        """
        for line in self._lines():
            told = json.loads(line)
            if "exitCode" in told or "error" in told:
                self._await_end()
            if "restarted" in told:
                self.restarted = True
            if "error" in told:
                raise from_answer(FAILED_STATUS, line)
            if "exitCode" in told:
                self.exit_code = told["exitCode"]
                return
            yield Piece(_bytes(told, "stdout"), _bytes(told, "stderr"))

    def close(self) -> None:
        """End the connection, and with it a command that still runs."""
        self._response.close()

    def _await_end(self) -> None:
        # The answer ends when the shell is free again, which the next request may need.
        with suppress(OSError, WireError):
            self._response.read()

    def _lines(self) -> Iterator[bytes]:
        try:
            yield from lines_of(self._response)
        except (OSError, WireError, ValueError, EOFError) as error:
            message = "The answer broke off before the command's end; its exit code is not known."
            raise Unreachable(message, sent=True) from error


def lines_of(response: Response) -> Iterator[bytes]:
    """Yield the lines of an answer as they come.

    :raises OSError | WireError | ValueError | EOFError: the answer ends, or breaks off.
    """
    held = b""
    while data := response.read1(READ_BYTES):
        *lines, held = (held + data).split(b"\n")
        yield from lines
    raise EOFError


def _bytes(told: dict[str, Any], name: str) -> bytes:
    return base64.b64decode(told.get(name, ""))
