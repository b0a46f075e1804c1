"""Finds the far side's shell, starts it without its rc files, and describes its system."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from connmgr.engine.boot import Announcement, await_announcement, await_reader, boot_script
from connmgr.engine.dialects import SH, Dialect, dialect_of
from connmgr.engine.frame import Interpreter
from connmgr.engine.greeting import greeting
from connmgr.engine.marks import MarkedStream, UnknownMark
from connmgr.engine.nonce import new_nonce
from connmgr.engine.words import FUNCTION_PREFIX
from connmgr.errors import ConnectTimeout, ShellLost, ShellStartFailed, UnsupportedShell
from connmgr.plugin import Channel, Deadline, Transport
from connmgr.printable import in_one_line

FACTS_BYTES = 64 << 10
PATH_BYTES = 4096
"""Bytes of a path with its final NUL (PATH_MAX of Linux)."""

NAME_CHARACTERS = 200
"""Longest name of a system, and longest quotation of a path, in characters."""

_PID = re.compile("[1-9][0-9]{0,9}")

_OS_TYPES = {
    "Linux": "linux",
    "Darwin": "macos",
    "FreeBSD": "bsd",
    "NetBSD": "bsd",
    "OpenBSD": "bsd",
    "DragonFly": "bsd",
    "SunOS": "solaris",
    "AIX": "aix",
}


@dataclass(frozen=True)
class ShellInfo:
    """The description of a session by ``/shell/start``.

    ``shell_dialect`` is the number of the session's shell, ``tty_state`` is ``none``, ``merged`` (stderr arrives within
    stdout) or ``pty``, ``temp`` the far side's directory for temporary files.
    """

    shell_dialect: int
    os_type: str
    os_name: str
    tty_state: str
    temp: str


@dataclass(frozen=True)
class Supervisor:
    """A shell that is ready for frames.

    Its environment contains ``word``. ``pure`` means that it has no functions or aliases, so that every word except its
    own runs a program, and that it waits for all programs. ``dialect`` is that of the actual shell, also for ``sh``.
    ``argv`` starts another shell of the same kind.
    """

    channel: Channel
    argv: tuple[str, ...]
    dialect: Dialect
    interpreter: Interpreter | None
    info: ShellInfo
    pid: int
    word: str
    directory: bytes
    variables: bytes
    pure: bool


def start_supervisor(transport: Transport, shell: str | None, timeout: float) -> Supervisor:
    """Open a channel, start ``shell`` (a path or name, options allowed) or the login shell on it, and greet it.

    :raises UnsupportedShell: the engine does not know the far side's shell, or the shell does not run commands.
    :raises connmgr.errors.OperationError: the channel could not be opened.
    """
    deadline = Deadline(timeout)
    nonce = new_nonce()
    argv = _words(shell) if shell else []
    boot = ["/bin/sh", "-c", boot_script(), "sh", nonce, *argv]
    channel = transport.open_channel(boot, timeout=timeout)
    if deadline.passed:
        channel.close()
        raise ConnectTimeout(f"No shell could be started there within {timeout:.0f} s.")
    try:
        return _greet(channel, await_announcement(channel, nonce, boot, deadline), argv, deadline)
    except (ShellStartFailed, UnsupportedShell) as error:
        channel.close()
        if not transport.alive:
            raise ShellLost("The link broke while the shell was started; try again.") from error
        raise
    except BaseException:
        channel.close()
        raise


def _words(shell: str) -> Sequence[str]:
    try:
        return shlex.split(shell)
    except ValueError as error:
        raise UnsupportedShell(f"shell: {error}.") from None


def _greet(channel: Channel, shell: Announcement, wanted: Sequence[str], deadline: Deadline) -> Supervisor:
    if shell.name == "missing":
        name = in_one_line(wanted[0])[:NAME_CHARACTERS]
        raise UnsupportedShell(f"{name}: shell not found on the machine; change the field shell of the connection.")
    dialect, path = dialect_of(shell.name), in_one_line(shell.path)[:NAME_CHARACTERS]
    supervising = SH if dialect.interpreter else dialect
    word = new_nonce()
    stdout, stderr = MarkedStream(word, FACTS_BYTES), MarkedStream(word, FACTS_BYTES, stderr=True)
    stderr.ended = channel.merged
    try:
        if shell.nudged:
            await_reader(channel, deadline)
        channel.sendall(greeting(supervising, word, merged=channel.merged), deadline.left())
        while not (stdout.ended and stderr.ended):
            if deadline.passed:
                raise UnsupportedShell(f"The shell {path} does not answer.")
            out, err = channel.recv(deadline.left())
            stdout.parse(out)
            stderr.parse(err)
    except (EOFError, OSError) as error:
        raise UnsupportedShell(f"The shell {path} ended at once.") from error
    except UnknownMark as error:
        raise _undescribed(shell) from error
    own = (shell.path, *wanted[1:], *dialect.options)
    return _described(channel, word, stdout, dialect, supervising, shell, ("/bin/sh",) if dialect.interpreter else own)


def _undescribed(shell: Announcement) -> ShellStartFailed:
    path = in_one_line(shell.path)[:NAME_CHARACTERS]
    return ShellStartFailed(f"The shell {path} did not describe itself as a shell does.")


def _described(
    channel: Channel,
    word: str,
    stdout: MarkedStream,
    dialect: Dialect,
    supervising: Dialect,
    shell: Announcement,
    argv: tuple[str, ...],
) -> Supervisor:
    # Earlier output of the shell may come first. A nonce at the beginning of a line would be a mark.
    facts = stdout.output.decode(errors="replace").rpartition(f"facts {word} ")[2].split("\n")
    if stdout.state is None or len(facts) < 5 or not _PID.fullmatch(facts[0]) or len(facts[4]) >= PATH_BYTES:
        raise _undescribed(shell)
    pid, kernel, system, name, temp = facts[:5]
    family = dialect_of(name) if name else supervising
    own = supervising.behind(family, dialect.kept)
    directory, variables = stdout.state
    return Supervisor(
        channel=channel,
        argv=argv,
        dialect=own,
        interpreter=Interpreter(shell.path, dialect.interpreter) if dialect.interpreter else None,
        info=ShellInfo(
            dialect.number,
            _OS_TYPES.get(kernel, "unix"),
            in_one_line(system or kernel)[:NAME_CHARACTERS],
            "merged" if channel.merged else "none",
            temp,
        ),
        pid=int(pid),
        word=shell.word,
        directory=directory,
        variables=variables,
        # ksh93 waits only for the last program of a pipeline.
        pure=not dialect.interpreter and not own.fork and all(FUNCTION_PREFIX in line for line in facts[5:-1]),
    )
