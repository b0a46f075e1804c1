"""Holds the login dialogue of a wrapper, with pexpect over a channel instead of a terminal of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pexpect
from pexpect.expect import searcher_re
from pexpect.spawnbase import SpawnBase

from connmgr.engine.script import Source, new_nonce
from connmgr.errors import ConnectTimeout, ElevationFailed
from connmgr.links.resumed import ResumedChannel
from connmgr.plugin import LEAST_SECONDS, Channel, Deadline, Wrapper
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

ENDED = "The login ended without access."

_STDERR_END = b".\n"
_ANNOUNCE = Source(__package__, "announce")
_ANNOUNCE_RAW = Source(__package__, "announce_raw")


class Login:
    """One login, with the marks of its stages and its deadline."""

    def __init__(self, wrapper: Wrapper, data: Mapping[str, Any], deadline: Deadline) -> None:
        self.prompt = f"connmgr-{new_nonce()}:"
        self._mark = new_nonce()
        self._wrapper = wrapper
        self._data = data
        self._deadline = deadline

    def announcing(self, argv: Sequence[str], *, raw: bool) -> list[str]:
        """Return the argv that makes its terminal ``raw``, prints the mark of a login's end, and runs ``argv``."""
        return ["/bin/sh", "-c", (_ANNOUNCE_RAW if raw else _ANNOUNCE).one_line, self._mark, *argv]

    def hold(self, channel: Channel) -> Channel:
        """Let the wrapper answer the prompts on ``channel`` until the login is over; return the channel from that
        point.

        Closes the channel when the login fails.
        :raises connmgr.errors.OperationError: it failed, or was not over by the deadline.
        :raises connmgr.plugin.TerminalRequired: it must be tried on a terminal.
        """
        mark = self._mark.encode()
        ready = rb"\n" + mark + rb"\r?\n"
        dialogue = ChannelDialogue(channel, re.escape(self.prompt.encode()), ready, self._deadline)
        try:
            self._wrapper.login(dialogue, self._data)
            if dialogue.matched != ready:
                dialogue.expect([ready], self._deadline.left())
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


class _ChannelSpawn(_BytesSpawn):
    """pexpect's matching over a channel's two streams, read as one."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(encoding=None, maxread=65536)
        self.delayafterread = None  # None, because a channel is waited for
        self._channel = channel
        self.out = bytearray()
        self.err = bytearray()
        self.closed = False

    def read_nonblocking(self, size: int = 1, timeout: float | None = -1) -> bytes:
        if len(self.out) + len(self.err) > LOGIN_BYTES:
            raise _TalksOn
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


class _TalksOn(Exception):
    """The program has printed more than a login does."""


class _Searcher(_BytesSearcher):
    """pexpect's search with limits: for ``ready`` in the output on stdout, for prompts at the end of both streams.

    The line at the login's end arrives in two pieces, and output on stderr may come between them.
    """

    longest_string = PROMPT_BYTES  # the part of earlier output that pexpect keeps in front of new output

    def __init__(self, patterns: Sequence[bytes], ready: bytes, stdout: bytearray) -> None:
        self._expressions = [re.compile(pattern, re.DOTALL) for pattern in patterns]
        super().__init__(self._expressions)
        self._ready = patterns.index(ready) if ready in patterns else None
        self._stdout = stdout

    def search(self, buffer: bytes, freshlen: int, searchwindowsize: int | None = None) -> int:
        if self._ready is not None:
            start = max(0, len(self._stdout) - freshlen - PROMPT_BYTES)
            end = self._expressions[self._ready].search(self._stdout, start)
            if end is not None:
                self.match, self.start, self.end = end, len(buffer), len(buffer)
                return self._ready
        start = max(0, len(buffer) - PROMPT_BYTES)
        matches = [(index, pattern.search(buffer, start)) for index, pattern in enumerate(self._expressions)]
        found = [(match.start(), index, match) for index, match in matches if match and index != self._ready]
        if not found:
            return -1
        self.start, index, self.match = min(found, key=lambda match: match[:2])
        self.end = self.match.end()
        return index


class ChannelDialogue:
    """A :class:`connmgr.plugin.Dialogue` on a channel."""

    def __init__(self, channel: Channel, prompt: bytes, ready: bytes, deadline: Deadline) -> None:
        self.prompt = prompt
        self.ready = ready
        self.matched: bytes | None = None
        self._secrets: list[str] = []
        self._channel = channel
        self._deadline = deadline
        self._spawn = _ChannelSpawn(channel)

    @property
    def rest(self) -> bytes:
        """Output on stdout after the end of the login."""
        end = re.search(self.ready, self._spawn.out)
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
            index = int(self._spawn.expect_loop(_Searcher(patterns, self.ready, self._spawn.out), timeout=seconds))
        except pexpect.TIMEOUT:
            raise ConnectTimeout(self._failure(f"The login did not continue within {seconds:.0f} s.")) from None
        except pexpect.EOF:
            raise ElevationFailed(self._failure(ENDED)) from None
        except _TalksOn:
            size = f"{LOGIN_BYTES >> 10} KiB"
            raise ElevationFailed(self._failure(f"The login printed more than {size} and was given up.")) from None
        self.matched = patterns[index]
        return index

    def await_stderr(self, mark: bytes, deadline: Deadline) -> None:
        """Read and keep output until stderr contains ``mark`` or the ``deadline`` has passed."""
        with suppress(pexpect.EOF, pexpect.TIMEOUT, _TalksOn):
            while mark not in self._spawn.err:
                self._spawn.read_nonblocking(timeout=deadline.left())

    def send_secret(self, secret: str) -> None:
        self._secrets.append(secret)
        try:
            self._channel.sendall(secret.encode() + b"\n", self._deadline.left(LEAST_SECONDS))
        except TimeoutError:
            raise ConnectTimeout(self._failure("The login does not take its answer.")) from None
        except (EOFError, OSError):
            raise ElevationFailed(self._failure(ENDED)) from None

    def _failure(self, reason: str) -> str:
        return f"{reason} It printed: {self.printed[-QUOTED_CHARACTERS:]}" if self.printed else reason
