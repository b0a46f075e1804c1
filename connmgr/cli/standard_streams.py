"""A command, shell or stream of a remote host on this program's standard streams."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
from collections import deque
from collections.abc import Callable
from typing import NoReturn

from connmgr.client import ClientError
from connmgr.client.pipe import Pipe
from connmgr.streams.endpoints import DescriptorEndpoint, Endpoint, Receiver
from connmgr.streams.frames import DATA, EOF, STDERR
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
        self._held: deque[memoryview] = deque()
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
        self._held.append(memoryview(data))
        self._unwritten += len(data)
        self._attempt(self._send_on)

    def end(self) -> None:
        self._ends = True
        self._attempt(self._send_on)

    def acknowledge(self, size: int) -> None:
        self._attempt(lambda: self._pipe.taken(size))

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
        taken = 0
        while self._held and self._pipe.room:
            piece = self._held.popleft()
            if len(piece) > self._pipe.room:
                self._held.appendleft(piece[self._pipe.room :])
                piece = piece[: self._pipe.room]
            self._pipe.write(piece)
            taken += len(piece)
        if self._ends and not self._held:
            self._ends = False
            self._pipe.end_input()
        if taken:
            self._unwritten -= taken
            self.receiver.taken(taken)

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
        if self._held:
            self._send_on()


def end_stdout() -> None:
    """Close standard output for its reader; the descriptor number stays taken."""
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
