"""A shell beside the session's, which runs the daemon's own small programs one after another.

Starting a shell for each would run the far side's start-up files, which take a tenth of a second on many machines.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from connmgr.engine.nonce import new_nonce
from connmgr.engine.script import IN_A_LINE, Source, as_words, quote, script_argv
from connmgr.errors import ConnmgrError
from connmgr.plugin import Channel, Transport

_LOOP = Source(__package__, "helper")

EXCHANGE = Source(__package__, "exchange")
"""The functions by which programs of all packages answer and read their input."""


@dataclass(frozen=True)
class Program:
    """A function in the language of sh; a helper reads its ``library`` and runs its ``setup`` before the first call.

    A ``fed`` program reads exactly the announced input from the channel; otherwise it fails, and the shell ends.
    ``refusals`` are the errors that it may answer, by their codes. The first ``paths`` of its arguments after the
    directory are what it works on, and named in these errors.
    """

    name: str
    library: tuple[Source, ...]
    body: tuple[Source, ...]
    setup: Source | None = None
    opening: str = ""
    """The first line of the function."""
    fed: bool = False
    refusals: Mapping[str, ConnmgrError] = field(default_factory=dict, hash=False)
    paths: int = 0

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The texts that a helper must have read before a call."""
        body = "".join(source.text for source in self.body)
        prepared = self.setup.text if self.setup else ""
        library = (source.text for source in self.library)
        return *library, prepared, f"{self.name}() {{\n{self.opening}\n{body}}}\n"


@dataclass(eq=False)
class Helper:
    """A shell that waits for calls on ``channel``.

    ``known`` are the parts of programs that it has read, and ``kept`` the values of variables that it has been given.
    """

    channel: Channel
    _word: str
    known: set[str] = field(default_factory=set)
    kept: dict[str, bytes] = field(default_factory=dict)

    @classmethod
    def start(cls, transport: Transport, program: Program, timeout: float) -> Helper:
        """Start one that knows ``program``; raise OperationError if it takes longer than ``timeout`` seconds."""
        word = new_nonce()
        script = f"word={word}\n{''.join(program.parts)}{_LOOP.text}"
        channel = transport.open_channel(script_argv(script), timeout=timeout)
        channel.expect_bulk()
        return cls(channel, word, set(program.parts))

    def call(
        self,
        program: Program,
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
        unknown = "".join(part for part in program.parts if part not in self.known).encode()
        self.known.update(program.parts)
        changed = {name: value for name, value in (variables or {}).items() if self.kept.get(name) != value}
        self.kept.update(changed)
        words = (word.encode() if isinstance(word, str) else word for word in arguments)
        statements = [name.encode() + b"=" + quote(value) for name, value in changed.items()]
        lead = [b"feed" if program.fed else b"run", program.name.encode(), mark.encode()]
        text = b";".join([*statements, b" ".join([*lead, *map(quote, words)])])
        # The far side can read most calls without starting a process.
        line = None if unknown else as_words(text)
        told = b"as-is " + line if line is not None else IN_A_LINE.escape(unknown + text)
        self.channel.sendall(self._word.encode() + b" " + told + b"\n", timeout)
        return mark.encode()

    @property
    def idle(self) -> bool:
        """Whether it runs and has printed nothing unexpected."""
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

    def start(self, transport: Transport, program: Program, timeout: float) -> Helper:
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
        if helper is None or helper.idle:
            return helper
        helper.channel.close()
        return None

    def _work(self, helper: Helper) -> None:
        with self._lock:
            self._working.add(helper)
            closed = self._closed
        if closed:
            helper.channel.close()
