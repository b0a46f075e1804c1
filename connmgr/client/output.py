"""What a command has printed: at once, and while it runs."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeGuard

from connmgr.client.errors import ClientError, Unreachable, from_answer, lacking
from connmgr.client.wire import BodySender, Closeable, Response, SendError, WireError

if TYPE_CHECKING:
    from connmgr.client.http import HttpSession
    from connmgr.contract.shell import BroadcastLine, ExecResponse

LINES = "application/x-ndjson"
WHOLE_BYTES = 1 << 20
"""Most input that is sent with the request; more is streamed."""

PIECE_BYTES = 64 << 10

Input = bytes | IO[bytes] | Iterable[bytes]
"""The input of a command: all of it, a file, or pieces."""

READ_BYTES = 256 * 1024
FAILED_STATUS = 500
"""The status of an error in the last line, which comes too late for a status of its own."""


class Result(NamedTuple):
    """Output of a command as text without the final newline; ``truncated`` if some was dropped.

    ``restarted`` says that the shell was lost before, so that directory and variables are new.
    """

    exit_code: int
    stdout: str
    stderr: str
    truncated: bool
    restarted: bool = False

    @classmethod
    def of(cls, answer: ExecResponse | BroadcastLine) -> Result:
        """Return the result that an answer has as text."""
        stdout, stderr = answer.stdout or "", answer.stderr or ""
        return cls(_exit_code(answer), stdout, stderr, bool(answer.truncated), bool(answer.restarted))


class RawResult(NamedTuple):
    """Output of a command as bytes; ``truncated`` if some was dropped.

    ``restarted`` says that the shell was lost before, so that directory and variables are new.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    truncated: bool
    restarted: bool = False

    @classmethod
    def of(cls, answer: ExecResponse | BroadcastLine) -> RawResult:
        """Return the result that an answer has in base64."""
        stdout, stderr = (base64.b64decode(text or "") for text in (answer.stdout, answer.stderr))
        return cls(_exit_code(answer), stdout, stderr, bool(answer.truncated), bool(answer.restarted))

    @property
    def as_text(self) -> Result:
        """The same as text, undecodable bytes as U+FFFD."""
        stdout, stderr = (content.decode(errors="replace").removesuffix("\n") for content in (self.stdout, self.stderr))
        return Result(self.exit_code, stdout, stderr, self.truncated, self.restarted)


def _exit_code(answer: ExecResponse | BroadcastLine) -> int:
    if answer.exit_code is None:
        raise lacking("exitCode")
    return answer.exit_code


class Piece(NamedTuple):
    """The output of a command since the last piece."""

    stdout: bytes
    stderr: bytes


class Feeding:
    """Sends ``pieces`` as a command's input in a thread of its own, from the command's beginning to its end.

    The thread may outlive the command: nothing wakes it from waiting for a piece. ``error`` is what ``pieces`` raised.
    """

    def __init__(self, sender: BodySender, pieces: Iterable[bytes]) -> None:
        # Few commands have input that is not sent with them.
        import threading

        self.error: Exception | None = None
        self._sender, self._pieces = sender, pieces
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="command input", daemon=True)
        self._sends = self._over = False

    def begin(self) -> None:
        """Begin to read and send."""
        self._sends = True
        self._thread.start()

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


class Stream(Closeable):
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

    def __iter__(self) -> Iterator[Piece]:
        """Yield the output as it comes. What the source of the input raises, this raises too.

        :raises ClientError: the command did not run to its end.
        :raises Unreachable: the connection broke before the end.
        """
        for line in self._lines():
            # The members of ``ExecLine``; loading the contract takes longer than most commands.
            members: dict[str, Any] = json.loads(line)
            if members.get("begun") and self._feeding is not None:
                self._feeding.begin()
                continue
            # Not before: a reader that stops here leaves a connection that the next request would find in the middle
            # of this answer.
            if "exitCode" in members or "error" in members:
                self._await_end()
            if members.get("restarted"):
                self.restarted = True
            if "error" in members:
                raise from_answer(FAILED_STATUS, line)
            if "exitCode" in members:
                self.exit_code = members["exitCode"]
                return
            yield Piece(base64.b64decode(members.get("stdout", "")), base64.b64decode(members.get("stderr", "")))

    def collect(self) -> RawResult:
        """Iterate to the end, and return the whole output; an error of the command has it among its details."""
        outputs = (bytearray(), bytearray())
        try:
            for piece in self:
                for output, new in zip(outputs, piece, strict=True):
                    output += new
        except ClientError as error:
            stdout, stderr = (base64.b64encode(output).decode() for output in outputs)
            error.details = {"stdout": stdout, "stderr": stderr, **error.details}
            raise
        assert self.exit_code is not None, "the iteration has come to its end"  # noqa: S101
        return RawResult(self.exit_code, bytes(outputs[0]), bytes(outputs[1]), False, self.restarted)

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


def run(http: HttpSession, members: dict[str, Any], stdin: Input | None) -> Stream:
    """Send ``members`` to ``/shell/exec``, and return the output as it comes, in bytes without a limit.

    ``stdin`` is bytes, a file or an iterator of bytes, of any size. A file or iterator is read in another thread while
    the output is iterated, from the time that the command has begun until it ends, as fast as the command reads; what
    it raises, the iteration raises.
    """
    # It returns after the first output, or when a command with input has begun. Errors of a command that has begun are
    # raised by the iteration.
    fields = {**members, "encoding": "base64"}
    if not is_whole(stdin):
        assert stdin is not None, "no input is whole"  # noqa: S101
        response, sender = http.open_body("/shell/exec", http.encode(**fields) + b"\n", accept=LINES)
        return Stream(response, Feeding(sender, _pieces(stdin)))
    if stdin is not None:
        fields["stdin"] = base64.b64encode(stdin).decode()
    return Stream(http.open("/shell/exec", http.encode(**fields), accept=LINES))


def is_whole(stdin: Input | None) -> TypeGuard[bytes | None]:
    """Whether input can be sent with the request."""
    return stdin is None or (isinstance(stdin, bytes) and len(stdin) <= WHOLE_BYTES)


def _pieces(stdin: Input) -> Iterator[bytes]:
    if isinstance(stdin, bytes):
        return (stdin[start : start + PIECE_BYTES] for start in range(0, len(stdin), PIECE_BYTES))
    # A buffered reader's read1 returns what a pipe has, where read would wait for more.
    read = getattr(stdin, "read1", None) or getattr(stdin, "read", None)
    return iter(stdin) if read is None else iter(lambda: read(PIECE_BYTES), b"")


def lines_of(response: Response) -> Iterator[bytes]:
    """Yield the lines of an answer as they come.

    :raises OSError | WireError | ValueError | EOFError: the answer ends, or breaks off.
    """
    incomplete = b""
    while data := response.read1(READ_BYTES):
        *lines, incomplete = (incomplete + data).split(b"\n")
        yield from lines
    raise EOFError
