"""A shell on a channel beside the session's, which carries out the daemon's own short programs one after another.

A :class:`Helper` is such a shell, :class:`Helpers` keeps an idle one, and an :class:`Exchange` is one run of a program:
its answers, its input and its output. Starting a shell for each program would run the remote start-up files, which take
a tenth of a second on many machines.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NoReturn

from connmgr import errors
from connmgr.cancellation import NEVER, Cancellation
from connmgr.engine.kill import kill_helper
from connmgr.engine.script import IN_A_LINE, Source, as_words, new_nonce, quote, script_argv
from connmgr.errors import ConnmgrError
from connmgr.plugin import Channel, Deadline, Transport
from connmgr.printable import in_one_line

logger = logging.getLogger("connmgr.engine")

_LOOP = Source(__package__, "helper")

EXCHANGE = Source(__package__, "exchange")
"""The functions by which programs of all packages answer and read their input."""

OPEN_SECONDS = 30.0

STALL_SECONDS = 60.0
"""Longest time of a transfer without progress."""

KILL_SECONDS = 10.0
"""Longest time for killing what a program that came to no end has left."""

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
"""Gets the question of a program, such as the path that it is about to write, and raises an error to refuse."""

Chunk = tuple[int, Iterable[bytes]]
"""Bytes that are sent together: their number, and their pieces."""


@dataclass(frozen=True)
class RemoteProgram:
    """A function in the language of sh; a helper reads its ``library`` and runs its ``setup`` before the first call.

    A ``fed`` program reads exactly the announced input from the channel; if less comes it fails, and the shell ends.
    What a program that ``opens`` files has left is killed if nothing moves for too long: it may wait for the other end
    of a named pipe. A program that ``goes_on`` still has to end after its answer, and no caller waits for that.
    ``refusals`` are the errors that it may answer, by their codes. These errors name the files that it works on: the
    first ``paths`` of its arguments after the directory.
    """

    name: str
    library: tuple[Source, ...]
    body: tuple[Source, ...]
    setup: Source | None = None
    opening: str = ""
    """The first line of the function."""
    fed: bool = False
    goes_on: bool = False
    refusals: Mapping[str, ConnmgrError] = field(default_factory=dict, hash=False)
    paths: int = 0
    opens: bool = False

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The texts that a helper must have read before a call."""
        body = "".join(source.text for source in self.body)
        prepared = self.setup.text if self.setup else ""
        library = (source.text for source in self.library)
        return *library, prepared, f"{self.name}() {{\n{self.opening}\n{body}}}\n"


class Exchange:
    """A program that runs in a helper; the context manager keeps the helper for the next program, or closes it.

    Each method raises :class:`connmgr.errors.TransferFailed` if the link breaks or nothing moves for a minute. Errors
    that the program answers begin with the ``subject``.
    """

    def __init__(
        self,
        transport: Transport,
        helpers: Helpers,
        program: RemoteProgram,
        arguments: Sequence[str | bytes],
        variables: Mapping[str, bytes] | None = None,
        judge: Judge | None = None,
        subject: str = "",
        cancellation: Cancellation = NEVER,
    ) -> None:
        self._transport, self._helpers = transport, helpers
        self._judge = judge
        self._asks = judge is not None
        self._goes_on, self._opens = program.goes_on, program.opens
        self._refusals = program.refusals
        self._subject = f"{subject}: " if subject else ""
        self._helper, self.mark = _called(transport, helpers, program, arguments, variables, cancellation)
        self._channel = self._helper.channel
        self._received = b""
        self._complaint = b""
        self._possible_end = self._status = b""
        self._answered = self._ended = self._over = self._stalled = False

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        if self._answered and self._goes_on and not self._over:
            # Its end takes the remote host some tenths of a millisecond, in which the answer can be on its way. Whoever
            # uses the helper next waits for it.
            self._helper.unfinished = self
            self._helpers.leave(self._helper)
        elif self._over or (self._answered and self.comes_to_its_end()):
            self._helpers.leave(self._helper)
        else:
            # It may still print, or wait for data: the next call would be taken for these.
            if self._stalled and self._opens:
                # Before its channel is closed: that ends no program that waits in open(2), and may end the shell above.
                self._helper.kill(self._transport)
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
        # With a judge, an `ok` without a question before it is not believed: the path that the program has opened was
        # never judged.
        if verdict == b"ok" and not self._asks:
            return facts
        code, _, detail = facts.decode(errors="replace").partition(" ")
        refusal = self._refusals.get(code)
        if verdict != b"no" or refusal is None:
            self._fail("The remote host did not answer as it should.")
        reason = f"{refusal.message} {in_one_line(detail)[:DETAIL_CHARACTERS]}".rstrip()
        raise type(refusal)(self._subject + reason)

    def _decide(self, judge: Judge, question: bytes) -> None:
        try:
            judge(question)
        except Exception:
            # The program has touched nothing yet, and waits for this word; after `no` its helper can be used again.
            self._sent(b"no\n")
            self._answered = True
            raise
        self._asks = False
        self._sent(b"yes\n")

    def _answer_line(self, deadline: Deadline) -> bytes:
        lead, searched = self.mark + b" ", 0
        while True:
            at = self._received.find(lead, searched)
            searched = at if at >= 0 else max(0, len(self._received) - len(lead) + 1)
            start = at + len(lead)
            # A question contains a path, which may contain a newline; its end is the mark, whose nonce no path has.
            last = b" " + self.mark + b"\n" if self._received.startswith(b"ask ", start) else b"\n"
            end = self._received.find(last, start, start + ANSWER_BYTES) if at >= 0 else -1
            if end >= 0:
                line, self._received = self._received[start:end], self._received[end + len(last) :]
                return line
            too_long = at >= 0 and len(self._received) - start >= ANSWER_BYTES
            if too_long or len(self._received) > NOISE_BYTES or not self._more(deadline.left()):
                self._fail("The remote host did not answer as it should." + self._quoted_complaint())

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
            self._stalled = True
            self._fail("The remote host stopped reading the data; try again.")
        except (EOFError, OSError):
            return False
        return True

    def data(self, timeout: float = STALL_SECONDS) -> Iterator[bytes]:
        """Yield the program's output to its end; each piece must come within ``timeout`` seconds."""
        self._answered = False
        while not self._over and (self._received or self._more(timeout)):
            piece, self._received, self._possible_end = self._possible_end + self._received, b"", b""
            if content := self._before_end(piece):
                yield content
        # The helper is gone, so its last output does not mark the end.
        if self._possible_end:
            content, self._possible_end = self._possible_end, b""
            yield content

    def arrives(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds; return whether there is output, or its end has come."""
        deadline = Deadline(timeout)
        while not (self._received or self._ended or self._over):
            if deadline.passed:
                self._stalled = True
                return False
            self._receive(deadline)
        return True

    def end(self) -> None:
        """End the program, from any thread; a reader of its output then finds the end."""
        self._helpers.end(self._helper)

    def expect_end(self) -> None:
        """Note that nothing follows but the program's end, with any status, so that its helper can be reused."""
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
            # The piece may end within the mark: what could be its beginning waits for the next piece.
            size = next((n for n in range(len(end) - 1, 0, -1) if piece.endswith(end[:n])), 0)
            at = len(piece) - size
        if not self._over:
            self._possible_end = piece[at:]
        return piece[:at]

    def comes_to_its_end(self) -> bool:
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
                self._stalled = True
                self._fail("The remote host stopped sending data; try again.")
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
        self._received += stdout
        self._stalled = self._stalled and not stdout
        return bool(stdout)

    def _quoted_complaint(self) -> str:
        printed = in_one_line(self._complaint.decode(errors="replace"))[:DETAIL_CHARACTERS]
        return f" It printed: {printed}" if printed else ""

    def _fail(self, reason: str) -> NoReturn:
        raise errors.TransferFailed(reason)


def _called(
    transport: Transport,
    helpers: Helpers,
    program: RemoteProgram,
    arguments: Sequence[str | bytes],
    variables: Mapping[str, bytes] | None,
    cancellation: Cancellation,
) -> tuple[Helper, bytes]:
    """Write the call to a helper; return the helper and the call's mark.

    :raises connmgr.errors.CommandCancelled: the call was cancelled before that.
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
        raise errors.TransferFailed("The link broke, or the remote host takes no data.") from error


@dataclass(eq=False)
class Helper:
    """A shell that waits for calls on ``channel``.

    ``programs`` are the parts of programs that it has read, ``variables`` the values that earlier calls have set.
    ``unfinished`` is a program that was still running when its caller left.
    """

    channel: Channel
    _word: str
    programs: set[str] = field(default_factory=set)
    variables: dict[str, bytes] = field(default_factory=dict)
    unfinished: Exchange | None = None

    @classmethod
    def start(cls, transport: Transport, program: RemoteProgram, timeout: float) -> Helper:
        """Start a helper that has read ``program``; raise OperationError if that takes longer than ``timeout`` s."""
        word = new_nonce()
        script = f"word={word}\n{''.join(program.parts)}{_LOOP.text}"
        channel = transport.open_channel(script_argv(script), timeout=timeout)
        channel.expect_bulk()
        return cls(channel, word, set(program.parts))

    def call(
        self,
        program: RemoteProgram,
        arguments: Sequence[str | bytes],
        timeout: float,
        variables: Mapping[str, bytes] | None = None,
    ) -> bytes:
        """Run ``program`` with ``arguments``, and return the mark that begins its answers.

        ``variables`` are set for the program; only those that changed since the last call are sent. Its last line is
        the mark, ``over``, and its exit status.
        :raises OSError: the helper is gone, or did not accept the call within ``timeout`` seconds.
        """
        mark = new_nonce()
        unknown = "".join(part for part in program.parts if part not in self.programs).encode()
        # Noted before they are sent: if that fails, nobody uses this helper again.
        self.programs.update(program.parts)
        changed = {name: value for name, value in (variables or {}).items() if self.variables.get(name) != value}
        self.variables.update(changed)
        words = (word.encode() if isinstance(word, str) else word for word in arguments)
        statements = [name.encode() + b"=" + quote(value) for name, value in changed.items()]
        lead = [b"feed" if program.fed else b"run", program.name.encode(), mark.encode()]
        text = b";".join([*statements, b" ".join([*lead, *map(quote, words)])])
        # The remote host can read most calls without starting a process.
        line = None if unknown else as_words(text)
        call = b"as-is " + line if line is not None else IN_A_LINE.escape(unknown + text)
        self.channel.sendall(self._word.encode() + b" " + call + b"\n", timeout)
        return mark.encode()

    def kill(self, transport: Transport) -> None:
        """End its shells and their programs, by another channel of ``transport``."""
        if not kill_helper(transport, self._word, KILL_SECONDS):
            logger.warning("A program that works on files came to no end, and could not be killed on its machine.")

    def is_idle(self) -> bool:
        """Whether it runs and has printed nothing unexpected; an unfinished program may end first."""
        unfinished, self.unfinished = self.unfinished, None
        if unfinished is not None and not unfinished.comes_to_its_end():
            return False
        try:
            if any(self.channel.recv(0)):
                return False
            # A child of a start-up file may keep the streams of a dead shell open.
            self.channel.exit_status(0)
        except TimeoutError:
            return True
        except (EOFError, OSError):
            return False
        return False


class Helpers:
    """Keeps one idle helper for the next caller, in ``pool`` if given, and tracks the helpers of its own callers.

    Safe to use from several threads.
    """

    def __init__(self, pool: Helpers | None = None) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._idle: Helper | None = None
        self._working: set[Helper] = set()
        self._closed = False

    def take(self) -> Helper | None:
        """Return the idle helper or None; the caller owns it until :meth:`leave` or :meth:`end`."""
        helper = self._pool.take() if self._pool else self._taken_idle()
        if helper is not None:
            self._work(helper)
        return helper

    def start(self, transport: Transport, program: RemoteProgram, timeout: float) -> Helper:
        """Start another helper, which the caller then owns; see :meth:`Helper.start`."""
        helper = Helper.start(transport, program, timeout)
        self._work(helper)
        return helper

    def leave(self, helper: Helper) -> None:
        """Keep an idle helper, or close it if one is kept already."""
        with self._lock:
            self._working.discard(helper)
            if not self._pool and self._idle is None and not self._closed:
                self._idle = helper
                return
        if self._pool:
            self._pool.leave(helper)
        else:
            helper.channel.close()

    def end(self, helper: Helper) -> None:
        """Close a helper that cannot be used again."""
        with self._lock:
            self._working.discard(helper)
        if self._pool:
            self._pool.end(helper)
        helper.channel.close()

    def dismiss(self) -> bool:
        """Close the idle helper; return whether there was one."""
        with self._lock:
            helper, self._idle = self._idle, None
        if helper is not None:
            helper.channel.close()
        return helper is not None

    def close(self) -> None:
        """Close all helpers, busy and future ones too, but none of ``pool``."""
        with self._lock:
            self._closed = True
            working = list(self._working)
        for helper in working:
            helper.channel.close()
        self.dismiss()

    def _taken_idle(self) -> Helper | None:
        with self._lock:
            helper, self._idle = self._idle, None
        if helper is None or helper.is_idle():
            return helper
        helper.channel.close()
        return None

    def _work(self, helper: Helper) -> None:
        with self._lock:
            self._working.add(helper)
            closed = self._closed
        # close() ran while this helper was being started, and did not see it; nobody else would close it.
        if closed:
            helper.channel.close()
