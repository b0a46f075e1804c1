"""Standard input as the input of commands: what ``connmgr exec`` passes on, and what it must not drop."""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Iterator
from pathlib import Path

import click

from connmgr.cli.exits import NOT_RUN, Failure
from connmgr.client import ClientError

WORD = "-"
"""Standard input in place of a file."""

SILENT_SECONDS = 0.5
"""Time after which a pipe without input counts as one that nobody writes."""

AT_ONCE_BYTES = 16 << 10
"""Input of up to this size goes with the command, if it has ended when the command is sent."""

PIECE_BYTES = 64 << 10

MAX_WHOLE_BYTES = 11 << 20
"""Most input that is sent with a request: in base64 it fits into the daemon's 16 MiB, beside a command of 1 MiB."""


class StandardInput:
    """The pipe, socket, file or terminal on descriptor 0, after the bytes that were read already."""

    def __init__(self) -> None:
        self._head = b""
        self._ended = False

    def read_what_is_there(self) -> bytes | None:
        """Return all input, if it has ended and is small; None if it goes on. This never waits for a writer."""
        news = select.poll()
        news.register(0, select.POLLIN)
        while not self._ended and len(self._head) <= AT_ONCE_BYTES and news.poll(0):
            self._read()
        return self._head if self._ended and len(self._head) <= AT_ONCE_BYTES else None

    @property
    def has_begun(self) -> bool:
        """Whether there is any input yet."""
        return bool(self._head)

    def read_whole(self, *, why: str, instead: str) -> bytes:
        """Return all input, read to its end.

        :raises Failure: it is larger than a request may be; ``why`` it has to fit there, and what to do ``instead``.
        """
        while not self._ended and len(self._head) <= MAX_WHOLE_BYTES:
            self._read()
        if len(self._head) > MAX_WHOLE_BYTES:
            limit = f"{MAX_WHOLE_BYTES >> 20} MiB"
            raise Failure(f"Nothing was run: standard input has more than {limit}, and {why}. {instead}", NOT_RUN)
        return self._head

    def __iter__(self) -> Iterator[bytes]:
        """Yield the input as it comes."""
        head, self._head = self._head, b""
        if head:
            yield head
        # Not by sys.stdin, whose lock a thread that waits here would hold when the program ends.
        while not self._ended:
            piece = os.read(0, PIECE_BYTES)
            self._ended = not piece
            yield piece

    def _read(self) -> None:
        piece = os.read(0, PIECE_BYTES)
        self._ended = not piece
        self._head += piece


def is_there() -> bool:
    """Whether standard input is something that a command reads without being asked: anything but a terminal, or
    nothing.
    """
    try:
        kind = os.fstat(0)
    except OSError:
        # It is closed.
        return False
    if stat.S_ISCHR(kind.st_mode):
        return not (os.isatty(0) or kind.st_rdev == Path(os.devnull).stat().st_rdev)
    return True


def refuse_unread(option: str) -> None:
    """Make sure that nothing is dropped in silence: with ``option`` standard input is not read unless asked for.

    :raises Failure: there is input.
    """
    if not is_there():
        return
    # The program before a pipe may need a moment; CI and cron leave one open that stays silent.
    news = select.poll()
    news.register(0, select.POLLIN)
    news.poll(SILENT_SECONDS * 1000)
    source = StandardInput()
    if source.read_what_is_there() == b"":
        return
    instead = "Use `connmgr job input`" if option == "--open-input" else "Give --stdin"
    if source.has_begun:
        raise Failure(
            f"Nothing was run: there is standard input, which {option} does not read. "
            f"{instead} to pass it on, or give -n to leave it.",
            NOT_RUN,
        )
    click.echo(f"connmgr: {option} does not read standard input. {instead} to pass it on, or give -n.", err=True)


def add_hint(error: ClientError) -> None:
    """Say in the error of a command that was to have standard input what to do if it needs none."""
    if error.code in ("policy_denied", "channel_refused"):
        error.message += " The command was to get standard input; -n gives it none."
