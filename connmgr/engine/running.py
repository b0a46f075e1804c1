"""A running command of a session: its output as it comes, its end, and how it is killed."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from connmgr.cancellation import NEVER, Cancellation
from connmgr.computing import give_way
from connmgr.engine.envelope import Command, MarkedStream, Memory
from connmgr.errors import CommandCancelled, CommandTimeout, ConnmgrError
from connmgr.plugin import Channel, Transport

FIRST_LOOK_SECONDS, LOOK_SECONDS = 0.02, 1.0
"""When a running command is first checked, and the interval of the checks after that.

Only from the first check on is the departure of its client noticed, which costs most commands nothing because they are
shorter. A check also notices a token that has become invalid, and a shell that has ended while a background process
keeps its streams open.
"""

KILL_SECONDS = 20.0
"""Longest wait for the end of a killed command's processes; then the session is abandoned."""

KILL_AGAIN_FIRST_SECONDS, KILL_AGAIN_SECONDS = 0.1, 1.0
"""Interval of attempts to kill a command that still runs: the first, and the longest."""

Room = Callable[[float], bool]
"""Waits up to the given seconds until the reader has read all output; returns whether it has."""

JOIN_SECONDS = 0.02
"""Longest time that output waits for more output to be joined with."""

JOINED_BYTES = 64 << 10
"""Output of this size is sent at once, without waiting for more."""

PIECE_BYTES = 32 << 10
"""Most bytes of a piece."""

Piece = tuple[bytes, bytes]
"""Output of stdout or of stderr; the other one is empty."""


@dataclass(frozen=True)
class Result:
    """The end of a command: its exit status (128 + N for signal N) and its output, cut if ``truncated``."""

    exit_code: int
    stdout: bytes | bytearray
    stderr: bytes | bytearray
    truncated: bool
    memory: Memory | None = field(default=None, compare=False, repr=False)
    """What the output is counted by, for as long as it is here."""


@dataclass(frozen=True)
class Limits:
    """The limits of a command: its seconds, the bytes of output to keep of each stream, and its cancellation."""

    timeout: float
    max_output: int
    cancellation: Cancellation


class CommandHost(Protocol):
    """The session that runs a command."""

    transport: Transport

    def guarded(self) -> AbstractContextManager[None]:
        """Turn the shell's end within the ``with`` block into an error."""

    def kill_tree(self, cookie: str, timeout: float) -> bool:
        """Kill all processes of the command; return whether that succeeded."""

    def kill_shell(self, cookie: str) -> None:
        """Kill the shell and all that it runs, and close its channel: it is lost."""

    def store_state(self, running: RunningCommand) -> None:
        """Store the state that the command left; raise the reason if it did not run."""


def _always(_: float) -> bool:
    return True


class RunningCommand:
    """A command that a session has begun. One thread at a time reads its :meth:`events` or its :meth:`result`, once.

    The time of its ``limits`` counts from now. It is killed as soon as it is cancelled.
    """

    def __init__(
        self, session: CommandHost, channel: Channel, command: Command, nonce: str, cookie: str, limits: Limits
    ) -> None:
        self.command = command
        self.cookie = cookie
        self._memory = None if command.memory is None else command.memory()
        self.stdout = MarkedStream(nonce, limits.max_output, self._memory)
        self.stderr = MarkedStream(nonce, limits.max_output, self._memory, stderr=True)
        # A terminal has one stream of output, so no end is to come on a second one.
        self.stderr.ended = channel.merged
        self._session = session
        self._channel = channel
        self._limits = limits
        self._deadline = time.monotonic() + limits.timeout
        self._room: Room = _always
        self._due = math.inf
        self._dropped = False

    @property
    def transport(self) -> Transport:
        """What its session runs over."""
        return self._session.transport

    @property
    def ended(self) -> bool:
        """Whether its output and its exit status were read completely."""
        return self.stdout.ended and self.stderr.ended

    @property
    def exit_code(self) -> int:
        """The exit status of a command that has ended, 128 + N for signal N."""
        status = self.stdout.status
        return status if status <= 255 else 128 + (status & 0x7F)  # ksh93 reports signal N as 256 + N

    def events(self, room: Room = _always) -> Iterator[Piece]:
        """Yield ``(stdout, stderr)``, one of them empty, as output comes, to the end of the command.

        Bursts are joined (:class:`Joined`). While there is no ``room``, nothing is read, so the command waits for its
        reader; its timeout continues. If it is killed meanwhile, unread output is dropped.

        Raises CommandTimeout or CommandCancelled after a kill, NoSuchDirectory or ShellLost.
        """
        self.stdout.limit = self.stderr.limit = sys.maxsize
        self._room = room
        joined = Joined()
        failure = None
        try:
            for _ in self._reads():
                joined.add(self.stdout.take(), self.stderr.take())
                if self._dropped:
                    joined.drop()
                piece = joined.next()
                self._due = joined.due
                if piece:
                    yield piece
        except ConnmgrError as error:
            failure = error
        for piece in joined.rest():
            self._await_room()
            yield piece
        if failure:
            raise failure

    def result(self) -> Result:
        """Read to the end; return the status, and ``max_output`` bytes of each stream; raise as :meth:`events`."""
        for _ in self._reads():
            pass
        return Result(self.exit_code, self.stdout.output, self.stderr.output, self._truncated, self._memory)

    def read(self, seconds: float) -> bool:
        """Read output for up to ``seconds``; return whether the command has ended; raise ShellLost or ShellStopped."""
        # One thread can read several commands in turn. Afterwards any thread may call result(),
        # which does not wait if the command has ended.
        with self._session.guarded():
            self._receive(seconds)
        return self.ended

    def kill(self) -> None:
        """Kill the command, unless it has ended, and drop its output."""
        if self.ended:
            return
        self._drop_output()
        with self._session.guarded():
            for _ in self._killed():
                pass
            self._session.store_state(self)

    def _reads(self) -> Iterator[None]:
        """Read to the end of the command, or kill it; yield after each read."""
        cancellation = self._limits.cancellation
        with self._session.guarded():
            # Most commands end before the first look: they cost neither a watch nor anything that could kill them.
            first_look = min(self._deadline, time.monotonic() + FIRST_LOOK_SECONDS)
            reason = "" if self.ended else (yield from self._until(first_look, cancellation))
            if reason == "timeout" and time.monotonic() < self._deadline:
                reason = yield from self._watched(cancellation)
            if reason and not self.ended:
                yield from self._killed()
            self._session.store_state(self)
        if reason:
            raise self._interruption(reason)

    def _watched(self, cancellation: Cancellation) -> Generator[None, None, str]:
        """Read on until the command ends or its time is over; a cancellation now kills it from another thread."""
        if cancellation.cancelled:
            return "cancelled"
        killer = _Killer(lambda: self._session.kill_tree(self.cookie, KILL_SECONDS / 2))
        try:
            with cancellation.waking(killer.begin):
                reason = yield from self._until(self._deadline, cancellation, LOOK_SECONDS)
        finally:
            killer.end()
        # A command that the killer has ended looks to its reader like one that has ended by itself.
        return "cancelled" if killer.began and not reason else reason

    def _until(
        self, deadline: float, cancellation: Cancellation = NEVER, first_look: float = FIRST_LOOK_SECONDS
    ) -> Generator[None, None, str]:
        """Read until the command ends, and return an empty text; or stop, and return ``timeout`` or ``cancelled``.

        ``deadline`` is a time of ``time.monotonic``; ``first_look`` are seconds from now. Yields after each read.
        :raises EOFError: the shell is gone.
        :raises connmgr.engine.envelope.UnknownMark: it is in an unknown state.
        """
        next_look = time.monotonic() + first_look
        while not self.ended:
            now = time.monotonic()
            if now >= deadline:
                return "timeout"
            if now >= next_look:
                if cancellation.cancelled:
                    return "cancelled"
                self._raise_if_ended()
                next_look = now + LOOK_SECONDS
            if not self._room(min(deadline, next_look) - now):
                # A reader that has left is not waited for.
                if cancellation.cancelled:
                    return "cancelled"
                continue
            now = time.monotonic()
            if self._due > now:
                self._receive(max(0.0, min(deadline, next_look, self._due) - now))
            yield
        return ""

    def _await_room(self) -> None:
        """Wait until there is room, the time is over or the client has gone."""
        while not self._room(LOOK_SECONDS):
            if time.monotonic() >= self._deadline or self._limits.cancellation.cancelled:
                self._room = _always

    def _drop_without(self, room: Room, _: float) -> bool:
        # A killed command must be read to its end, or its processes block on full pipes and do not end. A reader that
        # takes nothing now loses the rest.
        if not room(0.0):
            self._drop_output()
        return True

    def _drop_output(self) -> None:
        self.stdout.limit = self.stderr.limit = 0
        self._dropped = True
        self._due = math.inf

    def _receive(self, seconds: float) -> None:
        # A function of its own, so that no variable keeps the output in memory during the wait for its reader.
        out, err = self._channel.recv(seconds)
        self.stdout.parse(out)
        self.stderr.parse(err)
        give_way()

    def _raise_if_ended(self) -> None:
        """Detect the shell's end even if a background process keeps the streams open."""
        with contextlib.suppress(TimeoutError):
            self._channel.exit_status(0)
            raise EOFError

    def _killed(self) -> Iterator[None]:
        """Kill the command and read the rest of its output; if the shell does not answer then, it is lost."""
        self._room = partial(self._drop_without, self._room)
        deadline = time.monotonic() + KILL_SECONDS
        interval = KILL_AGAIN_FIRST_SECONDS
        while self._session.kill_tree(self.cookie, KILL_SECONDS / 2) and (now := time.monotonic()) < deadline:
            if not (yield from self._until(min(now + interval, deadline))):
                return
            # The shell may have begun the command only after the last kill.
            interval = min(2 * interval, KILL_AGAIN_SECONDS)
        # Either some process cannot be killed, or the shell does not go on: it is given up with all that it runs.
        self._session.kill_shell(self.cookie)
        raise EOFError

    def _interruption(self, reason: str) -> CommandTimeout | CommandCancelled:
        if reason == "cancelled" and self.command.arriving is not None and self.command.arriving.failed:
            return CommandCancelled("The command's input broke off before its end, so the command was killed.")
        if reason == "cancelled":
            return CommandCancelled(f"{self._limits.cancellation.reason}; the command was killed.")
        return CommandTimeout(
            f"The command ran longer than {self._limits.timeout:g} s and was killed.",
            self.stdout.output,
            self.stderr.output,
            truncated=self._truncated,
            memory=self._memory,
        )

    @property
    def _truncated(self) -> bool:
        return self.stdout.truncated or self.stderr.truncated


class _Killer:
    """Kills a cancelled command from a thread of its own, by ``kill``.

    The thread that reads the command's output may be blocked in a plugin's ``recv``, which nothing else can end: the
    output's end does, whatever the plugin.
    """

    def __init__(self, kill: Callable[[], object]) -> None:
        self._kill = kill
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def began(self) -> bool:
        """Whether the command was cancelled in time."""
        return self._thread is not None

    def begin(self) -> None:
        """Start killing, unless the command has ended."""
        with self._lock:
            if self._over.is_set() or self._thread is not None:
                return
            thread = threading.Thread(target=self._run, name="kill", daemon=True)
            # If the system allows no further thread, the reader kills at its next check.
            with contextlib.suppress(RuntimeError):
                thread.start()
                self._thread = thread

    def end(self) -> None:
        """Wait for the killing to end: it must not hit the next command of the shell."""
        with self._lock:
            self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        interval = KILL_AGAIN_FIRST_SECONDS
        while not self._over.is_set() and self._kill():
            # The shell may have begun the command only after the kill.
            self._over.wait(interval)
            interval = min(2 * interval, KILL_AGAIN_SECONDS)


class Joined:
    """Output on its way to a reader that takes piece after piece.

    The first piece after a pause is not delayed. Output of one stream is not joined across output of the other, so that
    the reader sees the order in which they were read.
    """

    def __init__(self) -> None:
        # Stream numbers, 0 for stdout, each with the output that came before output of the other stream.
        self._runs: deque[tuple[int, bytearray]] = deque()
        self._bytes = 0
        self._leaving = False
        # The time of time.monotonic until which output waits for more.
        self._joining_until = -math.inf

    @property
    def due(self) -> float:
        """The time of ``time.monotonic`` when the next piece must be sent; infinity if nothing is held."""
        if not self._runs:
            return math.inf
        return -math.inf if self._leaving else self._joining_until

    def add(self, *streams: bytes) -> None:
        """Add output, possibly none, of stdout and of stderr."""
        for number, data in enumerate(streams):
            if not data:
                continue
            if not self._runs or self._runs[-1][0] != number:
                self._runs.append((number, bytearray()))
            self._runs[-1][1].extend(data)
            self._bytes += len(data)

    def next(self) -> Piece | None:
        """Return the piece to send now, or None if there is none or it still waits for more."""
        if not self._runs:
            return None
        now = time.monotonic()
        self._leaving = self._leaving or self._bytes >= JOINED_BYTES or now >= self._joining_until
        if not self._leaving:
            return None
        piece = self._first()
        if not self._runs:
            self._leaving, self._joining_until = False, now + JOIN_SECONDS
        return piece

    def rest(self) -> Iterator[Piece]:
        """Yield all held output, at the end."""
        while self._runs:
            yield self._first()

    def drop(self) -> None:
        """Drop all held output."""
        self._runs.clear()
        self._bytes = 0

    def _first(self) -> Piece:
        number, data = self._runs[0]
        piece = bytes(data[:PIECE_BYTES])
        del data[:PIECE_BYTES]
        if not data:
            self._runs.popleft()
        self._bytes -= len(piece)
        return (piece, b"") if number == 0 else (b"", piece)
