"""Holds the login dialogue of a wrapper, with pexpect over a channel instead of a terminal of its own."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pexpect
from pexpect.spawnbase import SpawnBase

from connmgr.errors import ConnectTimeout, ElevationFailed
from connmgr.plugin import Channel, Wrapper
from connmgr.shell.frame import new_nonce

# A terminal in its usual mode echoes, translates newlines and drops lines of 4,096 bytes and more (termios(3)). Its
# stderr must not be a terminal too, or the shell would take itself for an interactive one.
_ON_TERMINAL = 'stty raw -echo; echo; echo "$0"; exec "$@" 2>/dev/null'
_ON_PIPES = 'echo; echo "$0"; exec "$@"'


def wrapped_argv(argv: Sequence[str], *, pty: bool) -> tuple[bytes, list[str]]:
    """Return a mark and the argv that prints it on a line of its own and then becomes ``argv``."""
    mark = new_nonce()
    return mark.encode(), ["/bin/sh", "-c", _ON_TERMINAL if pty else _ON_PIPES, mark, *argv]


def log_in(channel: Channel, wrapper: Wrapper, data: Mapping[str, Any], mark: bytes, deadline: float) -> Channel:
    """Let ``wrapper`` answer the prompts on ``channel`` until ``mark`` comes, and return the channel from there on.

    Closes the channel when the login fails.
    :raises connmgr.errors.OperationError: it failed, or was not over by ``deadline`` (of ``time.monotonic``).
    """
    ready = rb"\n" + re.escape(mark) + rb"\r?\n"
    dialogue = ChannelDialogue(channel, deadline)
    try:
        wrapper.login(dialogue, ready, data)
        if dialogue.matched != ready:
            dialogue.expect([ready], max(0.0, deadline - time.monotonic()))
    except BaseException:
        channel.close()
        raise
    return ResumedChannel(channel, dialogue.rest)


class _ChannelSpawn(SpawnBase[bytes]):
    """pexpect's matching over a channel's two streams, read as one."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(encoding=None, maxread=65536, searchwindowsize=None)
        self._channel = channel
        self.closed = False

    def read_nonblocking(self, size: int = 1, timeout: float | None = -1) -> bytes:
        try:
            stdout, stderr = self._channel.recv(max(0.0, timeout or 0.0))
        except (EOFError, OSError) as error:
            self.flag_eof = True
            raise pexpect.EOF(str(error)) from error
        if not stdout and not stderr:
            raise pexpect.TIMEOUT("nothing came")
        return stderr + stdout


class ChannelDialogue:
    """A :class:`connmgr.plugin.Dialogue` on a channel."""

    def __init__(self, channel: Channel, deadline: float) -> None:
        self._channel = channel
        self._deadline = deadline
        self._spawn = _ChannelSpawn(channel)
        self.matched: bytes | None = None

    @property
    def rest(self) -> bytes:
        """What came after the last match."""
        return bytes(self._spawn.buffer)

    def expect(self, patterns: Sequence[bytes], timeout: float) -> int:
        """See :meth:`connmgr.plugin.Dialogue.expect`; never waits beyond the login's deadline."""
        seconds = max(0.0, min(timeout, self._deadline - time.monotonic()))
        try:
            index = int(self._spawn.expect(list(patterns), timeout=seconds))
        except pexpect.TIMEOUT:
            raise ConnectTimeout(f"The login did not go on within {seconds:.0f} s.{self._printed()}") from None
        except pexpect.EOF:
            raise ElevationFailed(f"The login ended without access.{self._printed()}") from None
        self.matched = patterns[index]
        return index

    def send_secret(self, secret: str) -> None:
        """See :meth:`connmgr.plugin.Dialogue.send_secret`."""
        self._channel.sendall(secret.encode() + b"\n", max(0.1, self._deadline - time.monotonic()))

    def _printed(self) -> str:
        text = " ".join(bytes(self._spawn.before or b"").decode(errors="replace").split())[-200:]
        return f" It printed: {text}" if text else ""


class ResumedChannel(Channel):
    """A channel of which some output was already read."""

    def __init__(self, channel: Channel, rest: bytes) -> None:
        self._channel = channel
        self._rest = rest

    def recv(self, timeout: float) -> tuple[bytes, bytes]:
        if self._rest:
            rest, self._rest = self._rest, b""
            return rest, b""
        return self._channel.recv(timeout)

    def sendall(self, data: bytes, timeout: float) -> None:
        self._channel.sendall(data, timeout)

    def shutdown_write(self) -> None:
        self._channel.shutdown_write()

    def exit_status(self, timeout: float) -> int:
        return self._channel.exit_status(timeout)

    def close(self) -> None:
        self._channel.close()
