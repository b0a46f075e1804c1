"""A command's output while it runs."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple

from connmgr.client.errors import ClientError, Unreachable, from_answer
from connmgr.client.results import RawResult
from connmgr.client.wire import BodySender, Response, SendError, WireError

LINES = "application/x-ndjson"
READ_BYTES = 256 * 1024
FAILED_STATUS = 500
"""The status of an error in the last line, which comes too late for a status of its own."""


class Piece(NamedTuple):
    """The output of a command since the last piece."""

    stdout: bytes
    stderr: bytes


class Feeding:
    """Sends ``pieces`` as a command's input in a thread of its own, from the command's beginning to its end.

    The thread may outlive the command: nothing wakes it from waiting for a piece. ``error`` is what ``pieces`` raised.
    """

    def __init__(self, sender: BodySender, pieces: Iterable[bytes]) -> None:
        self.error: Exception | None = None
        self._sender, self._pieces = sender, pieces
        self._lock = threading.Lock()
        self._sends = self._over = False

    def begin(self) -> None:
        """Begin to read and send."""
        self._sends = True
        threading.Thread(target=self._run, name="command input", daemon=True).start()

    def end(self) -> None:
        """Send no more. Calling it again does nothing."""
        with self._lock:
            if self._over:
                return
            self._over = True
            if self._sends:
                self._sender.leave()
            else:
                self._sender.close()

    def _run(self) -> None:
        try:
            for piece in self._pieces:
                if self._over:
                    return
                self._sender.send(piece)
            self._sender.end()
        except SendError:
            # The daemon needs no more; its answer says why.
            return
        except Exception as error:  # noqa: BLE001 - of the caller's iterator, and raised by the iteration of the output
            self.error = error
            # Without the end of the body the daemon kills the command, which must not take a part for the whole.
            self._sender.leave()
        finally:
            with self._lock:
                self._sends = False
                if self._over:
                    self._sender.close()


class Stream:
    """A running command, iterated for its output; ``exit_code`` is None until the end of the iteration.

    Leaving it earlier, by :meth:`close` or a context manager, kills the command. ``feeding`` sends its input.
    """

    exit_code: int | None = None
    restarted = False
    """Whether the shell had been lost, so that directory and variables are new; the first piece is then empty."""

    def __init__(self, response: Response, feeding: Feeding | None = None) -> None:
        """Read from ``response``, which must have no other reader.

        :raises ClientError: it does not consist of lines, so it is not from a daemon of this version.
        """
        self._response = response
        self._feeding = feeding
        if response.headers.content_type != LINES:
            self.close()
            raise ClientError("The answer has no lines, so it is not that of a daemon of this version.", "unknown", 200)

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Piece]:
        """Yield the output as it comes. What the source of the input raises, this raises too.

        :raises ClientError: the command did not run to its end.
        :raises Unreachable: the connection broke before the end.
        """
        for line in self._lines():
            told = json.loads(line)
            if "begun" in told and self._feeding is not None:
                self._feeding.begin()
                continue
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

    def collected(self) -> RawResult:
        """Iterate to the end, and return the whole output; an error of the command has it among its details."""
        printed = (bytearray(), bytearray())
        try:
            for piece in self:
                for kept, new in zip(printed, piece, strict=True):
                    kept += new
        except ClientError as error:
            stdout, stderr = (base64.b64encode(one).decode() for one in printed)
            error.details = {"stdout": stdout, "stderr": stderr, **error.details}
            raise
        assert self.exit_code is not None, "the iteration has come to its end"  # noqa: S101
        return RawResult(self.exit_code, bytes(printed[0]), bytes(printed[1]), False, self.restarted)

    def close(self) -> None:
        """End the connection, and with it a command that still runs."""
        if self._feeding is not None:
            self._feeding.end()
        self._response.close()

    def _await_end(self) -> None:
        if self._feeding is not None:
            self._feeding.end()
            return
        # The answer ends when the shell is free again, which the next request may need.
        with suppress(OSError, WireError):
            self._response.read()

    def _lines(self) -> Iterator[bytes]:
        try:
            yield from lines_of(self._response)
        except (OSError, WireError, ValueError, EOFError) as error:
            if self._feeding is not None and self._feeding.error is not None:
                raise self._feeding.error from None
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
