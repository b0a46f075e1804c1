"""What comes of a command: read to its end, or until nobody waits for that any more."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from connmgr.engine.marks import MarkedStream
from connmgr.errors import CommandCancelled, CommandTimeout
from connmgr.plugin import Channel

POLL = 1.0
"""Seconds between two looks at whether the client is still there."""


@dataclass(frozen=True)
class Result:
    """How a command ended: its exit status (128 + N for signal N) and what it printed, cut where ``truncated``."""

    exit_code: int
    stdout: bytes | bytearray
    stderr: bytes | bytearray
    truncated: bool


class Answer:
    """What a session's ``channel`` brings of one command, whose ends are marked with ``nonce``.

    Of each stream ``max_output`` bytes are kept.
    """

    def __init__(self, channel: Channel, nonce: str, max_output: int) -> None:
        self._channel = channel
        self.stdout, self.stderr = MarkedStream(nonce, max_output), MarkedStream(nonce, max_output, stderr=True)
        self.stderr.ended = channel.merged

    def receive(self, deadline: float, abandoned: Callable[[], bool]) -> str:
        """Read until both streams end, or return why that was not waited for: ``timeout`` or ``abandoned``.

        ``deadline`` is a time of ``time.monotonic``; ``abandoned`` is asked about once a second.
        :raises EOFError: the shell is gone.
        :raises connmgr.engine.marks.UnknownMark: it is in an unknown state.
        """
        next_look = time.monotonic() + POLL
        while not (self.stdout.ended and self.stderr.ended):
            now = time.monotonic()
            if now >= deadline:
                return "timeout"
            if now >= next_look:
                if abandoned():
                    return "abandoned"
                self._raise_if_ended()
                next_look = now + POLL
            out, err = self._channel.recv(min(deadline, next_look) - now)
            self.stdout.feed(out)
            self.stderr.feed(err)
        return ""

    def _raise_if_ended(self) -> None:
        """Notice that the shell is gone where a job of it holds the streams open, so that they do not end."""
        with contextlib.suppress(TimeoutError):
            self._channel.exit_status(0)
            raise EOFError

    def result(self) -> Result:
        """Return what the command, which has ended, has left."""
        status = self.stdout.status
        return Result(
            status if status <= 255 else 128 + (status & 0x7F),  # ksh93 reports signal N as 256 + N
            self.stdout.output,
            self.stderr.output,
            self._truncated,
        )

    def interruption(self, reason: str, timeout: float) -> CommandTimeout | CommandCancelled:
        """Return the error that tells of a command which was killed for a reason of :meth:`receive`."""
        if reason == "abandoned":
            return CommandCancelled("The client went away; the command was killed.")
        return CommandTimeout(
            f"The command ran longer than {timeout:g} s and was killed.",
            self.stdout.output,
            self.stderr.output,
            truncated=self._truncated,
        )

    @property
    def _truncated(self) -> bool:
        return self.stdout.truncated or self.stderr.truncated
