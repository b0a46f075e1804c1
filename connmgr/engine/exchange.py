"""One run of a program on the far side: its answers, its input and its output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NoReturn

from connmgr import errors
from connmgr.cancellation import NEVER, Cancellation
from connmgr.engine.helper import Helper, Helpers, Program
from connmgr.plugin import Deadline, Transport
from connmgr.printable import in_one_line

OPEN_SECONDS = 30.0
STALL_SECONDS = 60.0
"""Longest time of a transfer without progress."""

END_SECONDS = 2.0
"""Longest wait for the end of a program after its answer, so that its helper can be reused."""

STATUS_BYTES = len("255\n")

SEND_BYTES = 192 << 10
"""Bytes sent at once; each acceptance counts as progress."""

NOISE_BYTES = 64 << 10
"""Most bytes that start-up files may print before the program's answer."""

DETAIL_CHARACTERS = 200

ANSWER_BYTES = 8 << 10
"""Longest answer line in bytes: a word and at most a path."""

NOT_WHOLE = "The data did not arrive whole; repeat the transfer."


Judge = Callable[[bytes], None]
"""Decides about a program's question, and raises an error to refuse."""

Chunk = tuple[int, Iterable[bytes]]
"""Bytes that are sent together: their number, and their pieces."""


class Exchange:
    """A program that runs in a helper; the context manager keeps the helper for the next program, or closes it.

    Each method raises :class:`connmgr.errors.TransferFailed` if the link breaks or nothing moves for a minute. Errors
    that the program answers begin with the ``subject``.
    """

    def __init__(
        self,
        transport: Transport,
        helpers: Helpers,
        program: Program,
        arguments: Sequence[str | bytes],
        variables: Mapping[str, bytes] | None = None,
        judge: Judge | None = None,
        subject: str = "",
        cancellation: Cancellation = NEVER,
    ) -> None:
        self._helpers = helpers
        self._judge = judge
        self._asks = judge is not None
        self._refusals = program.refusals
        self._subject = f"{subject}: " if subject else ""
        self._helper, self.mark = _called(transport, helpers, program, arguments, variables, cancellation)
        self._channel = self._helper.channel
        self._seen = bytearray()
        self._complaint = b""
        self._held = self._status = b""
        self._answered = self._ended = self._over = False

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        if self._over or (self._answered and self._comes_to_its_end()):
            self._helpers.leave(self._helper)
        else:
            self._helpers.end(self._helper)

    def answer(self, timeout: float = STALL_SECONDS) -> bytes:
        """Return the rest of the program's next line after ``ok``, and drop earlier output.

        Before that, the judge decides about the program's questions. With a judge the program must ask, without one it
        must not.

        :raises connmgr.errors.ConnmgrError: the program answered ``no`` with a code, or the judge refuses.
        """
        deadline = Deadline(timeout)
        while (line := self._answer_line(deadline)).startswith(b"ask ") and self._judge is not None:
            self._decide(self._judge, line.removeprefix(b"ask "))
        self._answered = True
        verdict, _, facts = line.rstrip(b"\r").partition(b" ")
        if verdict == b"ok" and not self._asks:
            return facts
        code, _, detail = facts.decode(errors="replace").partition(" ")
        refusal = self._refusals.get(code)
        if verdict != b"no" or refusal is None:
            self._fail("The far side did not answer as it should.")
        reason = f"{refusal.message} {in_one_line(detail)[:DETAIL_CHARACTERS]}".rstrip()
        raise type(refusal)(self._subject + reason)

    def _decide(self, judge: Judge, question: bytes) -> None:
        try:
            judge(question)
        except Exception:
            self._sent(b"no\n")
            self._answered = True
            raise
        self._asks = False
        self._sent(b"yes\n")

    def _answer_line(self, deadline: Deadline) -> bytes:
        lead, looked = self.mark + b" ", 0
        while True:
            at = self._seen.find(lead, looked)
            looked = at if at >= 0 else max(0, len(self._seen) - len(lead) + 1)
            start = at + len(lead)
            # A question contains a path, which may contain a newline.
            last = b" " + self.mark + b"\n" if self._seen.startswith(b"ask ", start) else b"\n"
            end = self._seen.find(last, start, start + ANSWER_BYTES) if at >= 0 else -1
            if end >= 0:
                line = bytes(self._seen[start:end])
                del self._seen[: end + len(last)]
                return line
            too_long = at >= 0 and len(self._seen) - start >= ANSWER_BYTES
            if too_long or len(self._seen) > NOISE_BYTES or not self._more(deadline.left()):
                self._fail("The far side did not answer as it should." + self._quoted_complaint())

    def send(self, pieces: Iterable[bytes], size: int) -> bool:
        """Write ``pieces`` of ``size`` bytes to the program; return False if it has ended: its next answer says why.

        :raises connmgr.errors.TransferFailed: they have another size; the program is ended.
        """
        self._answered = False
        left = size
        for piece in pieces:
            left -= len(piece)
            if left < 0:
                break
            if not self._sent(piece):
                return False
        if left:
            self._fail(NOT_WHOLE)
        return True

    def stream(
        self, chunks: Iterable[Chunk], last: Callable[[], bytes] = lambda: b"end", *, acknowledged: bool = False
    ) -> None:
        """Write ``chunks``, each after a line with its size, then ``0`` and the line that ``last`` returns.

        If they are ``acknowledged``, each waits until the program has taken the previous one. If ``chunks`` or ``last``
        raise an exception, ``no`` replaces the last line, and the program drops the data. If the program has ended, its
        next answer says why.
        :raises connmgr.errors.TransferFailed: a chunk is not of its size; the program is ended.
        """
        chunks = iter(chunks)
        while True:
            self._answered = True
            try:
                chunk = next(chunks, None)
                end = b"0\n%b\n" % last() if chunk is None else b""
            except Exception:
                self._sent(b"0\nno\n")
                raise
            self._answered = False
            if chunk is None:
                self._sent(end)
                return
            size, pieces = chunk
            # An empty chunk would look like the last line.
            if size and not (self._sent(b"%d\n" % size) and self.send(pieces, size)):
                return
            if size and acknowledged:
                self.answer()

    def _sent(self, data: bytes) -> bool:
        """Write ``data``; return False if the program has ended."""
        try:
            for start in range(0, len(data), SEND_BYTES):
                self._channel.sendall(data[start : start + SEND_BYTES], STALL_SECONDS)
        except TimeoutError:
            self._fail("The far side takes no more data.")
        except (EOFError, OSError):
            return False
        return True

    def data(self, timeout: float = STALL_SECONDS) -> Iterator[bytes]:
        """Yield the program's output to its end; each piece must come within ``timeout`` seconds."""
        self._answered = False
        while not self._over and (self._seen or self._more(timeout)):
            piece, self._seen, self._held = self._held + self._seen, bytearray(), b""
            if content := self._before_end(piece):
                yield content
        # The helper is gone, so its last output does not mark the end.
        if self._held:
            content, self._held = self._held, b""
            yield content

    def arrives(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds; return whether there is output, or its end has come."""
        deadline = Deadline(timeout)
        while not (self._seen or self._ended or self._over):
            if deadline.passed:
                return False
            self._receive(deadline)
        return True

    def settle(self) -> None:
        """Expect no more output except the program's end, with any status."""
        self._answered = True

    def succeeded(self) -> bool:
        """Whether the program, whose output has ended, exited with 0."""
        return self._status == b"0"

    def _before_end(self, piece: bytes) -> bytes:
        """Return ``piece`` without the program's last line, and keep back a possible beginning of that line."""
        end = self.mark + b" over "
        at = piece.rfind(end, max(0, len(piece) - len(end) - STATUS_BYTES))
        status, newline, rest = piece[at + len(end) :].partition(b"\n") if at >= 0 else (b"", b"", b"")
        if newline and status.isdigit() and not rest:
            self._over, self._status = True, status
        elif at < 0:
            size = next((n for n in range(len(end) - 1, 0, -1) if piece.endswith(end[:n])), 0)
            at = len(piece) - size
        if not self._over:
            self._held = piece[at:]
        return piece[:at]

    def _comes_to_its_end(self) -> bool:
        """Whether the helper is idle again, or becomes so within :data:`END_SECONDS`."""
        extra = 0
        try:
            for piece in self.data(END_SECONDS):
                extra += len(piece)
                if extra > NOISE_BYTES:
                    return False
        except errors.TransferFailed:
            return False
        return self._over

    def _more(self, timeout: float) -> bool:
        """Wait for more output; return False at its end."""
        deadline = Deadline(timeout)
        while not self._ended:
            if deadline.passed:
                self._fail("The far side sends nothing any more.")
            if self._receive(deadline):
                return True
        return False

    def _receive(self, deadline: Deadline) -> bool:
        """Wait for output until ``deadline`` at most; return whether some came."""
        try:
            stdout, stderr = self._channel.recv(deadline.left())
        except EOFError:
            self._ended = True
            return False
        except OSError as error:
            raise errors.TransferFailed("The link broke during the transfer.") from error
        self._complaint = (self._complaint + stderr)[-DETAIL_CHARACTERS:]
        self._seen += stdout
        return bool(stdout)

    def _quoted_complaint(self) -> str:
        said = in_one_line(self._complaint.decode(errors="replace"))[:DETAIL_CHARACTERS]
        return f" It printed: {said}" if said else ""

    def _fail(self, reason: str) -> NoReturn:
        raise errors.TransferFailed(reason)


def _called(
    transport: Transport,
    helpers: Helpers,
    program: Program,
    arguments: Sequence[str | bytes],
    variables: Mapping[str, bytes] | None,
    cancellation: Cancellation,
) -> tuple[Helper, bytes]:
    """Return a helper with the call written to it, and the call's mark.

    :raises connmgr.errors.CommandCancelled: it was cancelled before that.
    """
    cancellation.require()
    helper = helpers.take()
    if helper is not None:
        try:
            return helper, helper.call(program, arguments, STALL_SECONDS, variables)
        except (EOFError, OSError):
            # The helper ended meanwhile; it does not run an incomplete call.
            helpers.end(helper)
    helper = helpers.start(transport, program, OPEN_SECONDS)
    if cancellation.cancelled:
        # Starting it may have waited for a server's only channel.
        helpers.leave(helper)
        cancellation.require()
    try:
        return helper, helper.call(program, arguments, STALL_SECONDS, variables)
    except (EOFError, OSError) as error:
        helpers.end(helper)
        raise errors.TransferFailed("The link broke, or the far side takes no data.") from error
