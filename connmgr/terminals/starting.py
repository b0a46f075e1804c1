"""Starts the program of a terminal on the far side."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from connmgr.engine.dialects import become
from connmgr.engine.script import Source, exports, new_nonce, script_argv
from connmgr.engine.state import ShellSnapshot
from connmgr.errors import ConnectTimeout, ShellStartFailed, UnsupportedShell
from connmgr.jobs.launch import Launch
from connmgr.plugin import Channel, Deadline, Pty, Transport

GREETING_BYTES = 256 << 10
"""Most bytes that start-up files may print before the terminal is ready for a session's state."""

LATE = "The shell did not take the state of the session in time."

_LOGIN = Source(__package__, "login")
_SESSION = Source(__package__, "session")
_BECOME = 'exec "$@"'


@dataclass(frozen=True)
class Program:
    """The program of a terminal: the text or argv ``command``, or an interactive shell.

    ``id`` marks it in its environment. With ``surroundings`` it begins in the state of that session, in its shell;
    otherwise as after a login, in the shell started by the words of ``shell``, by default the login shell.
    """

    id: str
    pty: Pty
    command: str | tuple[str, ...] | None = None
    shell: str | None = None
    surroundings: ShellSnapshot | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables to set, in place of those of the login or session."""

    @property
    def _words(self) -> list[str]:
        if isinstance(self.command, tuple):
            return [self.id, "argv", "", *self.command]
        shell = _split(self.shell) if self.surroundings is None else _interactive(self.surroundings)
        return [self.id, "shell" if self.command is None else "command", self.command or "", *shell]

    def _script(self, source: Source) -> str:
        return become() + source.text if isinstance(self.command, tuple) else source.text

    def _login(self) -> str:
        return exports(self.environment).decode() + self._script(_LOGIN)

    def start(self, transport: Transport, timeout: float) -> tuple[Channel, bytes]:
        """Start it within ``timeout`` seconds; return its channel, and its output so far.

        :raises connmgr.errors.OperationError: it could not be started.
        """
        if self.surroundings is None:
            argv = script_argv(self._login(), self._words, own_locale=True)
            return transport.open_channel(argv, pty=self.pty, timeout=timeout), b""
        deadline, mark = Deadline(timeout), new_nonce()
        own = self.surroundings
        words = [*own.argv, "-c", self._script(_SESSION), "sh", mark, *self._words]
        argv = script_argv(_BECOME, words, own_locale=True)
        channel = transport.open_channel(argv, pty=self.pty, timeout=timeout)
        try:
            return channel, _given(channel, own, exports(self.environment), mark.encode(), deadline)
        except BaseException:
            channel.close()
            raise


def _interactive(surroundings: ShellSnapshot) -> Sequence[str]:
    """Return the words that start a session's shell, without the options that skip its start-up files."""
    if surroundings.interpreter:
        return (surroundings.interpreter.shell,)
    return surroundings.argv[: len(surroundings.argv) - len(surroundings.dialect.options)]


def _split(shell: str | None) -> Sequence[str]:
    try:
        return shlex.split(shell or "")
    except ValueError as error:
        raise UnsupportedShell(f"shell: {error}.") from None


def _given(channel: Channel, surroundings: ShellSnapshot, exported: bytes, mark: bytes, deadline: Deadline) -> bytes:
    """Send a session's state, then ``exported``, when the far side is ready for it; return the output after that."""
    try:
        _await(channel, re.compile(rb"\n" + mark + rb"\n"), deadline)
        setting = Launch(id="", surroundings=surroundings).setting + exported
        channel.sendall(setting + mark + b"\n", deadline.left())
        return _await(channel, re.compile(mark + rb"\.\r?\n"), deadline)
    except TimeoutError:
        raise ConnectTimeout(LATE) from None
    except (EOFError, OSError):
        raise ShellStartFailed("The shell ended before it took the state of the session.") from None


def _await(channel: Channel, ready: re.Pattern[bytes], deadline: Deadline) -> bytes:
    """Wait for ``ready``, and return the output after it."""
    printed = b""
    while (found := ready.search(printed)) is None:
        if deadline.passed:
            raise ConnectTimeout(LATE)
        if len(printed) > GREETING_BYTES:
            raise ShellStartFailed(
                "The start-up files of the shell print too much before the session's state could be sent."
            )
        printed += channel.recv(deadline.left())[0]
    return printed[found.end() :]
