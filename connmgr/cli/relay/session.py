"""A command, shell or stream of the far side on this program's standard streams."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from connmgr.cli.relay.ends import Sink, Source
from connmgr.cli.relay.loop import Loop, Signals, Task
from connmgr.cli.relay.relay import Relay
from connmgr.client.pipe import Pipe

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end this program, and the program on the far side."""


class Signalled(Exception):
    """This program is to end by the signal ``number``, once everything is restored."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


class Session:
    """A pipe on the standard streams; it ``reads`` standard input or not. Without a pipe it only waits for a signal."""

    def __init__(self, pipe: Pipe | None, *, reads: bool = True) -> None:
        self.loop = Loop()
        self.relay: Relay | None = None
        self._left = False
        self._signalled: signal.Signals | None = None
        self._calls: dict[signal.Signals, Callable[[], None]] = {one: self._ender(one) for one in ENDING}
        if pipe is not None:
            if not reads:
                pipe.end_input()
            source = Source(sys.stdin.fileno()) if reads else None
            self.relay = Relay(pipe, source, Sink(sys.stdout.fileno()), Sink(sys.stderr.fileno()))

    def run(self, *others: Task) -> int | None:
        """Run to the end of the pipe and return the exit status, None if the person has left before.

        :raises ClientError: the pipe ended early.
        :raises Signalled: a signal came, or the reader of the output is gone.
        """
        relay = self.relay
        with Signals(self._calls).caught() as signals:
            self.loop.tasks += [signals, *others, *([relay] if relay else [])]
            if relay is not None and relay.pipe.has_received:
                relay.ready(relay.pipe.fileno())
            self.loop.run(self._is_over)
        if relay is not None:
            relay.close()
        if self._signalled is not None:
            raise Signalled(self._signalled)
        if relay is None or self._left:
            return None
        if isinstance(relay.error, BrokenPipeError):
            raise Signalled(signal.SIGPIPE)
        if relay.error is not None:
            raise relay.error
        return relay.pipe.exit_status

    def call(self, number: signal.Signals, function: Callable[[], None]) -> None:
        """Call ``function`` when the signal comes."""
        self._calls[number] = function

    def leave(self) -> None:
        """End the session at once."""
        self._left = True

    def _is_over(self) -> bool:
        return self._signalled is not None or self._left or (self.relay is not None and self.relay.over)

    def _ender(self, number: signal.Signals) -> Callable[[], None]:
        def end() -> None:
            self._signalled = number

        return end


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
