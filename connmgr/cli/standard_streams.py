"""This program's standard streams and terminal, lent to a command, shell or stream of a remote host."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import sys
import termios
import tty
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn

from connmgr.client import ClientError
from connmgr.client.pipe import Pipe
from connmgr.streams.endpoints import DescriptorEndpoint, Endpoint, Receiver
from connmgr.streams.escapes import Escapes
from connmgr.streams.frames import DATA, EOF, MAX_SIDE, STDERR
from connmgr.streams.loop import Loop
from connmgr.streams.splice import Splice

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end this program, and the remote program."""


class Signalled(Exception):
    """This program is to end by the signal ``number``, once everything is restored."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


class Session:
    """A pipe on the standard streams; it ``reads`` standard input or not. Without a pipe it only waits for a signal."""

    def __init__(self, pipe: Pipe | None, *, reads: bool = True) -> None:
        self.loop = Loop(foreground=True)
        self.pipe = pipe
        self.local: DescriptorEndpoint | None = None
        """The standard streams as an endpoint, if there is a pipe."""

        self._splice: Splice | None = None
        self._left = False
        self._signalled: signal.Signals | None = None
        # The loop calls them, not a signal handler, which could come in the middle of anything.
        self._calls: dict[signal.Signals, Callable[[], None]] = {number: self._ender(number) for number in ENDING}
        if pipe is not None:
            if not reads:
                pipe.end_input()
            source = sys.stdin.fileno() if reads else None
            self.local = DescriptorEndpoint(self.loop, source, sys.stdout.fileno(), sys.stderr.fileno())

    def run(self) -> int | None:
        """Run to the end of the pipe and return the exit status, None if the person has left before.

        :raises ClientError: the pipe ended early.
        :raises Signalled: a signal came, or the reader of the output is gone.
        """
        splice = None
        with contextlib.ExitStack() as ending:
            ending.callback(self.loop.close)
            ending.enter_context(self.loop.signals(self._calls))
            if self.pipe is not None and self.local is not None:
                splice = self._splice = Splice(self.local, PipeEndpoint(self.loop, self.pipe))
                ending.callback(splice.close)
            self.loop.run(self._is_over)
        if self._signalled is not None:
            raise Signalled(self._signalled)
        if splice is None or self._left:
            return None
        # As a program ends whose reader is gone, such as in `connmgr ssh host cat file | head`.
        if isinstance(splice.outcome, BrokenPipeError):
            raise Signalled(signal.SIGPIPE)
        if isinstance(splice.outcome, Exception):
            raise splice.outcome
        return splice.outcome

    def call(self, number: signal.Signals, function: Callable[[], None]) -> None:
        """Call ``function`` when the signal comes."""
        self._calls[number] = function

    def leave(self) -> None:
        """End the session at once."""
        self._left = True

    def _is_over(self) -> bool:
        return self._signalled is not None or self._left or (self._splice is not None and self._splice.closed)

    def _ender(self, number: signal.Signals) -> Callable[[], None]:
        def end() -> None:
            self._signalled = number

        return end


class PipeEndpoint(Endpoint):
    """A pipe of the daemon; it is over with the exit status, or with the :class:`ClientError` that ended it early.

    Its window bounds what the daemon sends, so it is never paused, and acknowledges what the other endpoint has taken.
    ``failed`` is called with the error at once, even if the other endpoint takes its time to end.
    """

    has_outcome = True

    def __init__(self, loop: Loop, pipe: Pipe, failed: Callable[[ClientError], object] = lambda _: None) -> None:
        self._loop, self._pipe, self._descriptor, self._failed = loop, pipe, pipe.fileno(), failed
        self._pending: deque[memoryview] = deque()
        self._unwritten = 0
        self._events = 0
        self._ends = self._closed = False

    @property
    def unwritten(self) -> int:
        return self._unwritten

    def begin(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self._watch()
        if self._pipe.has_received:
            self._loop.call(self._receive)

    def write(self, data: bytes | memoryview, kind: int = DATA) -> None:
        self._pending.append(memoryview(data))
        self._unwritten += len(data)
        self._attempt(self._send_on)

    def end(self) -> None:
        self._ends = True
        self._attempt(self._send_on)

    def acknowledge(self, size: int) -> None:
        self._attempt(lambda: self._pipe.acknowledge(size))

    def close(self, *, reset: bool = False) -> None:
        if not self._closed:
            self._closed = True
            self._loop.unwatch(self._descriptor)
            self._pipe.close()

    def _watch(self) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._pipe.unsent else 0)
        if events != self._events and not self._closed:
            self._events = events
            self._loop.watch(self._descriptor, events, lambda _: self._receive())

    def _attempt(self, action: Callable[[], object]) -> None:
        """Use the pipe, and report its error; whatever was sent may have to wait for the socket."""
        if self._closed:
            return
        try:
            action()
        except ClientError as error:
            self.close()
            self._failed(error)
            self.receiver.over(error)
        else:
            self._watch()

    def _send_on(self) -> None:
        size = 0
        while self._pending and self._pipe.room:
            piece = self._pending.popleft()
            if len(piece) > self._pipe.room:
                self._pending.appendleft(piece[self._pipe.room :])
                piece = piece[: self._pipe.room]
            self._pipe.write(piece)
            size += len(piece)
        if self._ends and not self._pending:
            self._ends = False
            self._pipe.end_input()
        if size:
            self._unwritten -= size
            self.receiver.taken(size)

    def _receive(self) -> None:
        self._attempt(self._pass_on)
        if not self._closed and self._pipe.exit_status is not None:
            self.close()
            self.receiver.over(self._pipe.exit_status)

    def _pass_on(self) -> None:
        self._pipe.flush()
        for kind, content in self._pipe.events():
            if self._closed:
                return
            if kind == EOF:
                self.receiver.ended()
            elif kind in (DATA, STDERR) and content:
                self.receiver.arrived(content, kind)
        if self._pending:
            self._send_on()


def end_stdout() -> None:
    """Close standard output for its reader; the descriptor number stays taken."""
    # Closing descriptor 1 alone would let the next file that is opened get its number, and then our messages.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def die_by(number: signal.Signals) -> NoReturn:
    """End this process by a signal, as its parent expects after that signal."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    # The signal may be blocked.
    os._exit(128 + number)


ESCAPE = "~"
"""The usual character that begins a key for this program rather than for the remote one, as with ssh."""

SUSPEND = b"\x1a"
_LINE = "\r\n"

Meaning = tuple[str, Callable[[], None]]
"""What a key does: its description for a person, and the action."""

DEFAULT_SIZE = (80, 24)
RESET_MODES = {
    b"1": b"\x1b[?1l",
    b"47": b"\x1b[?47l",
    b"1000": b"\x1b[?1000l",
    b"1002": b"\x1b[?1002l",
    b"1003": b"\x1b[?1003l",
    b"1004": b"\x1b[?1004l",
    b"1005": b"\x1b[?1005l",
    b"1006": b"\x1b[?1006l",
    b"1015": b"\x1b[?1015l",
    b"1047": b"\x1b[?1047l",
    b"1049": b"\x1b[?1049l",
    b"2004": b"\x1b[?2004l",
}
"""The sequence that ends each mode that would hinder a person: other screen, mouse reports, bracketed paste."""

_MODE = re.compile(rb"\x1b\[\?([0-9;]{1,128})([hl])|\x1b([=>])")
_LONGEST = 132
"""Length in bytes of the longest sequence that ``_MODE`` matches."""

CURSOR = b"25"
KEYPAD = b"="


def on_terminal(
    session: Session,
    escape: str | None,
    *,
    more: Mapping[bytes, Meaning] | None = None,
    leave: Meaning | None = None,
    types: bool = True,
) -> int | None:
    """Run ``session`` on this terminal, return the result of its ``run``, and restore the terminal.

    ``escape`` is the character that begins a key for this program at the beginning of a line. ``more`` are such keys
    besides ssh's own, each with its description. ``leave`` is the action of the escape character and a dot, by default
    to leave the session. Unless it ``types``, the remote program gets neither keys nor this terminal's size.
    """
    pipe, local = session.pipe, session.local
    assert pipe is not None and local is not None, "a terminal is lent to a pipe"  # noqa: S101, PT018
    with RawTerminal(sys.stdin.fileno()) as raw:

        def resize() -> None:
            if types and pipe.exit_status is None:
                pipe.resize(*size_of(sys.stdin.fileno()))

        def suspend() -> None:
            with raw.restored():
                # The default handler stops this process, and kill() returns when somebody continues it (fg).
                before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGTSTP)
                signal.signal(signal.SIGTSTP, before)
            resize()

        def go_on() -> None:
            raw.enter()
            resize()

        meanings = {
            b".": leave or ("leave", session.leave),
            SUSPEND: ("suspend this program (Ctrl-Z)", suspend),
            **(more or {}),
        }
        if escape is not None:
            escapes = Escapes(escape, _with_help(escape, meanings))
            local.typed = escapes.typed if types else lambda data: escapes.typed(data)[:0]
        local.shown = raw.modes.see
        session.call(signal.SIGWINCH, resize)
        session.call(signal.SIGTSTP, suspend)
        # The program that stopped this one may have changed the terminal meanwhile.
        session.call(signal.SIGCONT, go_on)
        status = session.run()
    if status is None:
        # The cursor may be anywhere in a line.
        sys.stderr.write("\n")
    return status


def _with_help(escape: str, meanings: Mapping[bytes, Meaning]) -> dict[bytes, Callable[[], None]]:
    lines = [f" {escape}{'^Z' if key == SUSPEND else key.decode()}  {text}" for key, (text, _) in meanings.items()]
    lines += [f" {escape}?  this list", f" {escape}{escape}  send {escape}"]

    def show() -> None:
        sys.stderr.write(_LINE + _LINE.join([f"{escape} is heard at the beginning of a line.", *lines, ""]))
        sys.stderr.flush()

    return {key: call for key, (_, call) in meanings.items()} | {b"?": show}


class Modes:
    """The modes that output has left a terminal in."""

    def __init__(self) -> None:
        self._on: dict[bytes, bytes] = {}
        self._tail = b""

    def see(self, output: bytes | memoryview) -> None:
        """Note the modes that ``output`` sets; it may come in pieces of any size."""
        if not self._tail and b"\x1b" not in (whole := bytes(output)):
            return
        whole = self._tail + bytes(output)
        # Only what hinders a person afterwards is noted; the program's own reset may have been cut off with its link.
        for match in _MODE.finditer(whole):
            if match[3]:
                self._set(KEYPAD, b"\x1b>", on=match[3] == KEYPAD)
            for mode in (match[1] or b"").split(b";"):
                if mode == CURSOR:
                    self._set(mode, b"\x1b[?25h", on=match[2] == b"l")
                elif mode in RESET_MODES:
                    self._set(mode, RESET_MODES[mode], on=match[2] == b"h")
        # A sequence may be cut between two pieces: keep the piece's end from its last escape on.
        start = whole.rfind(b"\x1b", -_LONGEST)
        self._tail = whole[start:] if start >= 0 and not _MODE.match(whole, start) else b""

    def ending(self) -> bytes:
        """Return the sequences that end all modes and colours; empty if none is on."""
        return b"".join([*self._on.values(), b"\x1b[0m"]) if self._on else b""

    def _set(self, mode: bytes, ending: bytes, *, on: bool) -> None:
        if on:
            self._on[mode] = ending
        else:
            self._on.pop(mode, None)


class RawTerminal:
    """The terminal of standard input: raw within the block, restored afterwards, whatever happens."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._before = termios.tcgetattr(descriptor)
        self.modes = Modes()

    def __enter__(self) -> RawTerminal:
        self.enter()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def enter(self) -> None:
        """Switch to raw mode: every key is passed on."""
        # TCSADRAIN would wait for output that may never be read.
        tty.setraw(self._descriptor, termios.TCSANOW)

    def leave(self) -> None:
        """Restore the terminal, and end the modes that the remote program has left on."""
        # The terminal may be gone, for example after a hang-up.
        with contextlib.suppress(termios.error):
            termios.tcsetattr(self._descriptor, termios.TCSANOW, self._before)
        with contextlib.suppress(OSError):
            os.write(sys.stdout.fileno(), self.modes.ending())

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Restore the terminal within the block."""
        self.leave()
        try:
            yield
        finally:
            self.enter()


def size_of(descriptor: int) -> tuple[int, int]:
    """Return columns and rows of the terminal, or a usual size if it reports none."""
    try:
        columns, rows = os.get_terminal_size(descriptor)
    except OSError:
        return DEFAULT_SIZE
    if not columns or not rows:
        return DEFAULT_SIZE
    return min(columns, MAX_SIDE), min(rows, MAX_SIDE)
