"""The transport of a wrapper: every process is started through the program that wraps it, after that program's login.

A process on a :class:`WrappedTransport` goes through these stages. :class:`Login` adds a line to the process that marks
the end of the login. :class:`ChannelDialogue` lets the wrapper answer the program's prompts until that mark, with
pexpect over a channel instead of a terminal of its own. :class:`ResumedChannel` is the channel from the mark on.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pexpect
from pexpect.expect import searcher_re
from pexpect.spawnbase import SpawnBase

from connmgr.engine.script import Source, new_nonce
from connmgr.errors import AuthFailed, ChannelRefused, ConnectTimeout, ElevationFailed, ShellLost
from connmgr.plugin import BECOME_ARGV, LEAST_SECONDS, Channel, Deadline, Pty, TerminalRequired, Transport, Wrapper
from connmgr.printable import in_one_line

QUOTED_CHARACTERS = 300
"""Longest quotation of a program's output in an error."""

PROMPT_BYTES = 1024
"""Bytes at the end of the output that are searched for prompts: a program waits after its prompt."""

LOGIN_BYTES = 256 << 10
"""Most bytes that a program may print until its login is over."""

REASON_BYTES = 8 << 10
"""Bytes at the end of a program's output that are searched for the reason of its end."""

STDERR_SECONDS = 0.5
"""Longest wait for the end of the login on stderr after its end on stdout: programs relay the streams independently."""

STATUS_SECONDS = 1.0
"""Longest wait for the exit status of a program whose streams have ended."""

ENDED = "The program that logs in ended without giving access."

_STDERR_END = b".\n"
_ANNOUNCE = Source(__package__, "announce")
_ANNOUNCE_RAW = Source(__package__, "announce_raw")
_NEWLINE = re.compile(rb"\r?\n")
_STATUS_LINE = re.compile(rb"\d{1,3}\n\Z")
_RAW = Pty(raw=True)
"""The terminal of a login, for a program that shall have none."""

_ONLY_SETS = re.compile(r'((?:[A-Z_]+=(?:\w|\$\{\w+-\w*\})* )*exec )"\$@"')
"""A script that only sets variables for the program that it becomes, which any shell of POSIX's language does alike."""


class WrappedTransport(Transport):
    """The transport of a connection whose type is a :class:`Wrapper`: every process is started through it."""

    def __init__(self, wrapper: Wrapper, data: Mapping[str, Any], inner: Transport) -> None:
        self.runs_locally = inner.runs_locally
        self._wrapper = wrapper
        self._data = data
        self._inner = inner
        self._terminal = False

    @property
    def alive(self) -> bool:
        return self._inner.alive

    def answers(self, timeout: float) -> bool:
        return self._inner.answers(timeout)

    @property
    def can_learn_language(self) -> bool:
        return self._inner.can_learn_language

    def learn_language(self, timeout: float) -> None:
        self._inner.learn_language(timeout)

    @property
    def outer(self) -> Transport:
        """The transport over which its programs are started."""
        return self._inner

    def words(self, argv: Sequence[str]) -> list[str]:
        """Return the argv that runs ``argv`` without a login when it is started over :attr:`outer`."""
        return self._wrapper.wrap(argv, self._data, Login(self._wrapper, self._data, Deadline(0)).prompt, pty=False)

    @property
    def on_terminal(self) -> bool:
        """Whether this login, or one below it, is known to need a terminal."""
        over = isinstance(self._inner, WrappedTransport) and self._inner.on_terminal
        return over or self._terminal or self._wrapper.needs_pty(self._data)

    def open_channel(self, argv: Sequence[str], *, pty: Pty | None = None, timeout: float) -> Channel:
        deadline = Deadline(timeout)
        terminal = pty or (_RAW if self.on_terminal else None)
        try:
            return self._start(argv, deadline, terminal, raw=terminal is _RAW)
        except TerminalRequired as error:
            if terminal:
                raise ElevationFailed("The login asks for a terminal, although it already has one.") from error
        # sudo with `requiretty` (sudoers(5)) says so only after it was started without a terminal. That is remembered,
        # so that only the first process of a link is started twice.
        self._terminal = True
        return self._start(argv, deadline, _RAW, raw=True)

    def _start(self, argv: Sequence[str], deadline: Deadline, pty: Pty | None, *, raw: bool) -> Channel:
        """Start ``argv`` through all logins, on one terminal or none; only the last login makes it ``raw``."""
        login = Login(self._wrapper, self._data, deadline)
        holds_login = raw or self._wrapper.needs_login(self._data)
        # Each login has a mark of its own. With sudo within doas, the dialogue of doas ends before sudo is started, so
        # the `hold` below gets a channel that begins with sudo's output.
        announced = login.announcing(argv, raw=raw) if holds_login else argv
        wrapped = self._wrapper.wrap(announced, self._data, login.prompt, pty=pty is not None)
        if isinstance(self._inner, WrappedTransport):
            channel = self._inner._start(wrapped, deadline, pty, raw=False)
        else:
            channel = self._begin(wrapped, deadline, pty)
        if not holds_login:
            return channel
        try:
            return login.hold(channel)
        except (AuthFailed, ElevationFailed) as error:
            if not self.alive:
                # The end of output is the same for a refused password and a broken link; only the link tells them
                # apart. A client may repeat the latter.
                raise ShellLost("The link broke during the login; try again.") from error
            raise

    def _begin(self, argv: Sequence[str], deadline: Deadline, pty: Pty | None) -> Channel:
        """Start the wrapping program: by a line of the login shell if that can be, which saves a shell before it."""
        timeout = deadline.left(LEAST_SECONDS)
        if pty is None:
            # What a full chain refuses is tried again by open_channel(), which makes room.
            with suppress(ChannelRefused):
                channel = self._inner.open_line(_line_of(argv), timeout=timeout)
                if channel is not None:
                    return channel
        return self._inner.open_channel(argv, pty=pty, timeout=timeout)

    def close(self) -> None:
        """Do nothing: the chain closes the inner transport."""


def _line_of(argv: Sequence[str]) -> str:
    """Return the line that starts ``argv`` in a shell of POSIX's language."""
    if argv[:2] == ["/bin/sh", "-c"] and (script := _ONLY_SETS.fullmatch(argv[2])):
        return script[1] + shlex.join(argv[4:])
    return shlex.join(argv)


class Login:
    """One login, with the marks of its stages and its deadline."""

    def __init__(self, wrapper: Wrapper, data: Mapping[str, Any], deadline: Deadline) -> None:
        # Both are random for each login: neither a message of the day nor a program that is run can imitate the prompt
        # and be sent the password, or imitate the end of the login.
        self.prompt = f"connmgr-{new_nonce()}:"
        self._mark = new_nonce()
        self._wrapper = wrapper
        self._data = data
        self._deadline = deadline

    def announcing(self, argv: Sequence[str], *, raw: bool) -> list[str]:
        """Return the argv that makes its terminal ``raw``, prints the mark of a login's end, and runs ``argv``."""
        script = f"{(_ANNOUNCE_RAW if raw else _ANNOUNCE).one_line}; {BECOME_ARGV}"
        return ["/bin/sh", "-c", script, "sh", self._mark, *argv]

    def hold(self, channel: Channel) -> Channel:
        """Let the wrapper answer the prompts on ``channel`` until the login is over; return the channel from that
        point.

        Closes the channel when the login fails.
        :raises connmgr.errors.OperationError: it failed, or was not over by the deadline.
        :raises connmgr.plugin.TerminalRequired: it must be tried on a terminal.
        """
        mark = self._mark.encode()
        dialogue = ChannelDialogue(channel, re.escape(self.prompt.encode()), mark, self._deadline)
        try:
            self._wrapper.login(dialogue, self._data)
            if dialogue.matched != dialogue.ready:
                dialogue.expect([dialogue.ready], self._deadline.left())
            if not channel.merged:
                dialogue.await_stderr(mark + _STDERR_END, self._deadline.within(STDERR_SECONDS))
        except BaseException:
            channel.close()
            raise
        last_line = self._wrapper.last_line
        return ResumedChannel(channel, dialogue.rest, dialogue.stderr, mark + _STDERR_END, last_line)


if TYPE_CHECKING:
    _BytesSpawn = SpawnBase[bytes]
    _BytesSearcher = searcher_re[bytes]
else:
    _BytesSpawn = SpawnBase
    _BytesSearcher = searcher_re


class _OutputLimit(Exception):
    """The program has printed more than any login should."""


class _ChannelSpawn(_BytesSpawn):
    """pexpect's matching over a channel's two streams, read as one."""

    def __init__(self, channel: Channel, mark: bytes) -> None:
        super().__init__(encoding=None, maxread=65536)
        self.delayafterread = None  # None, because a channel is waited for
        self._channel = channel
        self._mark = b"\n" + mark
        self.out = bytearray()
        self.err = bytearray()
        self.answered = 0, 0
        """How much of :attr:`out` and :attr:`err` had come when the last prompt was found."""
        self.closed = False

    def read_nonblocking(self, size: int = 1, timeout: float | None = -1) -> bytes:
        if len(self.out) + len(self.err) > LOGIN_BYTES:
            raise _OutputLimit
        deadline = Deadline(timeout or 0.0)
        while True:
            try:
                stdout, stderr = self._channel.recv(deadline.left())
            except (EOFError, OSError) as error:
                self.flag_eof = True
                raise pexpect.EOF(str(error)) from error
            if stdout or stderr:
                self.out += stdout
                self.err += stderr
                return stderr + stdout
            if deadline.passed:
                raise pexpect.TIMEOUT("nothing came")

    def find_ready(self, start: int = 0) -> re.Match[bytes] | None:
        """Return the end of the line with the mark of the login's end, if it is in the output on stdout."""
        while (start := self.out.find(self._mark, start)) >= 0:
            start += len(self._mark)
            # A terminal that is not raw yet prints a carriage return before the newline.
            if end := _NEWLINE.match(self.out, start):
                return end
        return None


class _Searcher(_BytesSearcher):
    """pexpect's search with limits: for ``ready`` in the output on stdout, for prompts at the end of both streams.

    The line at the login's end arrives in two pieces, and output on stderr may come between them.
    """

    longest_string = PROMPT_BYTES  # the part of earlier output that pexpect keeps in front of new output

    def __init__(self, patterns: Sequence[bytes], ready: bytes, spawn: _ChannelSpawn) -> None:
        super().__init__([])
        self._patterns = patterns
        self._ready = patterns.index(ready) if ready in patterns else None
        self._spawn = spawn

    @cached_property
    def _expressions(self) -> list[re.Pattern[bytes]]:
        # Most logins without a question never need them, and each login's are its own: they have its random words.
        return [re.compile(pattern, re.DOTALL) for pattern in self._patterns]

    def search(self, buffer: bytes, freshlen: int, searchwindowsize: int | None = None) -> int:
        out, err = self._spawn.out, self._spawn.err
        if self._ready is not None:
            end = self._spawn.find_ready(max(0, len(out) - freshlen - PROMPT_BYTES))
            if end is not None:
                self.match, self.start, self.end = end, len(buffer), len(buffer)
                return self._ready
        found = self._prompt(buffer)
        if found is not None:
            index, self.match = found
            self.start, self.end = self.match.span()
        else:
            # One stream may bring much between a prompt on the other and now; the prompt still waits for its answer.
            found = next(filter(None, map(self._prompt, (out, err), self._spawn.answered)), None)
            if found is None:
                return -1
            index, self.match = found
            self.start = self.end = len(buffer)
        self._spawn.answered = len(out), len(err)
        return index

    def _prompt(self, text: bytes | bytearray, start: int = 0) -> tuple[int, re.Match[bytes]] | None:
        """Return the first prompt at the end of ``text`` and the index of its pattern."""
        start = max(start, len(text) - PROMPT_BYTES)
        if start >= len(text):
            return None
        matches = [(index, pattern.search(text, start)) for index, pattern in enumerate(self._expressions)]
        prompts = [(match.start(), index, match) for index, match in matches if match and index != self._ready]
        return min(prompts, key=lambda prompt: prompt[:2])[1:] if prompts else None


class ChannelDialogue:
    """A :class:`connmgr.plugin.Dialogue` on a channel."""

    def __init__(self, channel: Channel, prompt: bytes, mark: bytes, deadline: Deadline) -> None:
        self.prompt = prompt
        self.ready = rb"\n" + mark + rb"\r?\n"
        self.matched: bytes | None = None
        self._secrets: list[str] = []
        self._channel = channel
        self._deadline = deadline
        self._spawn = _ChannelSpawn(channel, mark)

    @property
    def rest(self) -> bytes:
        """Output on stdout after the end of the login."""
        end = self._spawn.find_ready()
        return bytes(self._spawn.out[end.end() :]) if end else b""

    @property
    def stderr(self) -> bytes:
        """All output on stderr so far."""
        return bytes(self._spawn.err)

    @property
    def printed(self) -> str:
        before = bytes(self._spawn.before or b"")
        # The cut may fall within a secret; the rest of the secret could not be recognised and replaced.
        partial = max((len(secret.encode()) for secret in self._secrets), default=0)
        text = before[-REASON_BYTES:][partial if len(before) > REASON_BYTES else 0 :].decode(errors="replace")
        for secret in self._secrets:
            text = text.replace(secret, "***")  # a program that asks with echo on repeats the answer
        return in_one_line(text)

    def expect(self, patterns: Sequence[bytes], timeout: float) -> int:
        seconds = max(0.0, min(timeout, self._deadline.left()))
        try:
            index = int(self._spawn.expect_loop(_Searcher(patterns, self.ready, self._spawn), timeout=seconds))
        except pexpect.TIMEOUT:
            raise ConnectTimeout(self._failure(f"The login made no progress for {seconds:.0f} s.")) from None
        except pexpect.EOF:
            raise ElevationFailed(self._failure(ENDED)) from None
        except _OutputLimit:
            size = f"{LOGIN_BYTES >> 10} KiB"
            raise ElevationFailed(self._failure(f"The login printed more than {size} and was stopped.")) from None
        self.matched = patterns[index]
        return index

    def await_stderr(self, mark: bytes, deadline: Deadline) -> None:
        """Read and keep output until stderr contains ``mark`` or the ``deadline`` has passed."""
        with suppress(pexpect.EOF, pexpect.TIMEOUT, _OutputLimit):
            while mark not in self._spawn.err:
                self._spawn.read_nonblocking(timeout=deadline.left())

    def send_secret(self, secret: str) -> None:
        self._secrets.append(secret)
        try:
            self._channel.sendall(secret.encode() + b"\n", self._deadline.left(LEAST_SECONDS))
        except TimeoutError:
            raise ConnectTimeout(
                self._failure("The program that logs in does not read the answer to its question.")
            ) from None
        except (EOFError, OSError):
            raise ElevationFailed(self._failure(ENDED)) from None

    def _failure(self, reason: str) -> str:
        return f"{reason} It printed: {self.printed[-QUOTED_CHARACTERS:]}" if self.printed else reason


class ResumedChannel(Channel):
    """A channel whose first output was already read: ``stdout`` and ``stderr`` come again before the rest.

    Output on stderr up to and including ``mark`` is dropped, and at its end a ``last_line``
    (:attr:`connmgr.plugin.Wrapper.last_line`).
    """

    def __init__(self, channel: Channel, stdout: bytes, stderr: bytes, mark: bytes, last_line: bytes = b"") -> None:
        self.merged = channel.merged
        self._channel = channel
        self._early = stdout, stderr
        self._mark = b"" if channel.merged else mark
        self._login = b""
        self._last_line = LastLine(last_line) if last_line and not channel.merged else None

    def recv(self, timeout: float) -> tuple[bytes, bytes]:
        deadline = Deadline(timeout)
        while self._mark or self._last_line or any(self._early):
            early, self._early = self._early, (b"", b"")
            try:
                # Read even if there is early output: the descriptor may stay readable until the channel is read, and a
                # loop that waits for it would spin.
                stdout, stderr = self._channel.recv(0 if any(early) else deadline.left())
            except (EOFError, OSError) as error:
                if any(early):
                    # The next call raises it again.
                    stdout, stderr = b"", b""
                elif isinstance(error, EOFError) and (rest := self._rest()):
                    return b"", rest
                else:
                    raise
            stdout, stderr = early[0] + stdout, self._past_login(early[1] + stderr)
            if (last_line := self._last_line) is not None:
                stderr = last_line.passed(stderr)
            if stdout or stderr or deadline.passed:
                return stdout, stderr
        return self._channel.recv(deadline.left())

    def _rest(self) -> bytes:
        """Return the held-back output of stderr, at its end."""
        last_line = self._last_line
        if last_line is None:
            return b""
        try:
            status = self._channel.exit_status(STATUS_SECONDS)
        except (TimeoutError, EOFError, OSError):
            status = None
        return last_line.rest(status)

    def _past_login(self, stderr: bytes) -> bytes:
        if not self._mark:
            return stderr
        before, mark, rest = (self._login + stderr).partition(self._mark)
        if mark:
            self._mark = self._login = b""
        else:
            self._login = before[-len(self._mark) :]
        return rest

    def sendall(self, data: bytes, timeout: float) -> None:
        self._channel.sendall(data, timeout)

    def send_now(self, data: bytes) -> int:
        return self._channel.send_now(data)

    def shutdown_write(self) -> None:
        self._channel.shutdown_write()

    def fileno(self) -> int | None:
        return self._channel.fileno()

    def expect_bulk(self) -> None:
        self._channel.expect_bulk()

    def resize(self, columns: int, rows: int) -> None:
        self._channel.resize(columns, rows)

    def exit_status(self, timeout: float) -> int:
        return self._channel.exit_status(timeout)

    def when_ended(self, call: Callable[[], object]) -> bool:
        return self._channel.when_ended(call)

    def close(self) -> None:
        self._mark, self._early, self._last_line = b"", (b"", b""), None
        self._channel.close()


class LastLine:
    """Passes stderr on, without a last line of ``beginning``, the exit status and a newline.

    Output that may be the beginning of that line is held back until it is known not to be.
    """

    def __init__(self, beginning: bytes) -> None:
        self._beginning = beginning
        self._possible_line = b""
        self._at_start = True

    def passed(self, data: bytes) -> bytes:
        """Add ``data``, and return the output that may be passed on."""
        data = self._possible_line + data
        # Up to the last byte but one: a newline at the very end does not begin a line yet, and may end the last line.
        line = data.rfind(b"\n", 0, -1) + 1
        if not (line or self._at_start) or not self._may_be_it(data[line:]):
            line = len(data)
        data, self._possible_line = data[:line], data[line:]
        if data:
            self._at_start = data.endswith(b"\n")
        return data

    def rest(self, status: int | None) -> bytes:
        """Return the rest of the output at the stream's end; ``status`` is the program's."""
        line, self._possible_line = self._possible_line, b""
        number = _STATUS_LINE.match(line[len(self._beginning) :]) if line.startswith(self._beginning) else None
        # A program that prints such a line itself is believed unless the number is its exit status.
        return b"" if number and int(number[0]) == status else line

    def _may_be_it(self, line: bytes) -> bool:
        if not line.startswith(self._beginning):
            return bool(line) and self._beginning.startswith(line)
        number = line[len(self._beginning) :]
        return not number.rstrip(b"\n") or number.removesuffix(b"\n").isdigit()
