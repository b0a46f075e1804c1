"""Finds the remote login shell, starts it without its rc files, makes it a supervisor, and describes its system.

In this order: the boot script is the channel's argv, and announces which shell it has found; the greeting is written to
that shell's standard input and makes it a supervisor; the supervisor describes itself.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from connmgr.engine.dialects import DIALECTS, FUNCTION_PREFIX, LETTERS, SH, Dialect, Interpreter, definition, dialect_of
from connmgr.engine.envelope import MarkedStream, UnknownMark
from connmgr.engine.script import Source, fill, new_nonce
from connmgr.errors import ConnectTimeout, ShellLost, ShellStartFailed, UnsupportedShell
from connmgr.plugin import Channel, Deadline, Transport
from connmgr.printable import in_one_line

NUDGE_SECONDS = (1.0, 2.0, 4.0)
"""Times at which a silent shell gets its command on standard input too: its start-up files may wait for a line, or may
have replaced it with another shell."""

ECHO_SECONDS = 0.5
"""Interval at which a nudged shell is asked for an echo; it may have lost its input to an earlier nudge."""

OUTPUT_BYTES = 64 << 10
"""Bytes of output that are kept, to find the announcement and to quote in an error."""

LINE_BYTES = 4200
"""Longest announcement in bytes: a word, a name and a path (PATH_MAX of Linux is 4096)."""

# Protects the channel's output from commands, and from shells that consider themselves interactive on a terminal.
_ASIDE = "8>&1 9>&2 >/dev/null 2>&1"

_BOOT = Source(__package__, "boot")

_GREETING = Source(__package__, "greeting")

_APART = Source(__package__, "apart")

_MERGED = Source(__package__, "merged")

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
class SessionInfo:
    """The description of a session by ``/shell/start``.

    ``shell_dialect`` is the number of the session's shell, ``tty_state`` is ``none``, ``merged`` (stderr arrives within
    stdout) or ``pty``, ``temp`` the remote host's directory for temporary files.
    """

    shell_dialect: int
    os_type: str
    os_name: str
    tty_state: str
    temp: str


@dataclass(frozen=True)
class Supervisor:
    """A shell that is ready for envelopes.

    Its environment contains ``word``. ``pure`` means that it has no functions or aliases, so that every word except its
    own runs a program, and that it waits for all programs. ``dialect`` is that of the actual shell, also for ``sh``.
    ``argv`` starts another shell of the same kind.
    """

    channel: Channel
    argv: tuple[str, ...]
    dialect: Dialect
    interpreter: Interpreter | None
    info: SessionInfo
    pid: int
    word: str
    state_home: bytes
    """The directory for the state of programs, by the variables that every login there has; empty if none say."""

    directory: bytes
    variables: bytes
    pure: bool


def start_supervisor(transport: Transport, shell: str | None, timeout: float) -> Supervisor:
    """Open a channel, start ``shell`` (a path or name, options allowed) or the login shell on it, and greet it.

    :raises UnsupportedShell: the engine does not know the remote shell, or the shell does not run commands.
    :raises connmgr.errors.OperationError: the channel could not be opened.
    """
    deadline = Deadline(timeout)
    nonce = new_nonce()
    argv = _words(shell) if shell else []
    boot = ["/bin/sh", "-c", boot_script(), "sh", nonce, *argv]
    channel = transport.open_channel(boot, timeout=timeout)
    if deadline.passed:
        channel.close()
        raise ConnectTimeout(f"No shell could be started there within {timeout:.0f} s; try again.")
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


@dataclass(frozen=True)
class Announcement:
    """A shell by the last part of its path, and its path; ``nudged`` if its input may still contain nudges.

    ``word`` is the value of CONNMGR_BOOT in its environment.
    """

    name: str
    path: str
    word: str
    nudged: bool


@cache
def boot_script() -> str:
    """Return the ``sh -c`` script that announces the remote shell and becomes the supervisor."""
    interpreted = "|".join(name for dialect in DIALECTS if dialect.interpreter for name in dialect.names)
    branches = (
        "|".join(dialect.names) + ") exec " + " ".join(('"$@"', *dialect.options, _ASIDE)) + ";; "
        for dialect in DIALECTS
        if not dialect.interpreter
    )
    return fill(_BOOT.one_line, {"supervisors": "".join(branches), "interpreted": interpreted, "aside": _ASIDE})


def await_announcement(channel: Channel, nonce: str, boot: Sequence[str], deadline: Deadline) -> Announcement:
    """Return what the boot script announces after ``nonce``; ``boot`` is the channel's argv.

    :raises UnsupportedShell: the remote host ended, or did not run the script by ``deadline``.
    """
    output, mark = _Output(channel), nonce.encode() + b" "
    nudges = [Deadline(seconds) for seconds in NUDGE_SECONDS]
    try:
        while (line := output.line(mark)) is None:
            if deadline.passed:
                reason = "the remote host's login shell does not run commands"
                raise UnsupportedShell(f"No session is possible: {reason}.{output.quoted()}")
            if nudges and nudges[0].passed:
                del nudges[0]
                channel.sendall(b"exec " + shlex.join(boot).encode() + b"\n", deadline.left())
            output.read(min(each.left() for each in (deadline, *nudges[:1])))
    except (EOFError, OSError):
        reason = "the remote host's shell ended without running a command"
        raise UnsupportedShell(f"No session is possible: {reason}.{output.quoted()}") from None
    name, _, path = line.partition(" ")
    return Announcement(name, path, nonce, nudged=len(nudges) < len(NUDGE_SECONDS))


class _Output:
    """The end of a channel's output, which is searched for marks."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._stdout = bytearray()
        self._stderr = bytearray()
        self._searched = 0

    def line(self, mark: bytes) -> str | None:
        """Return the rest of the line that begins with ``mark``, or None until the line is complete."""
        lead = b"\n" + mark
        while (at := self._stdout.find(lead, self._searched)) >= 0:
            self._searched = at
            start = at + len(lead)
            end = self._stdout.find(b"\n", start, start + LINE_BYTES)
            if end >= 0:
                return self._stdout[start:end].decode(errors="replace")
            if len(self._stdout) - start < LINE_BYTES:
                return None
            self._searched = start
        self._searched = max(self._searched, len(self._stdout) - len(lead) + 1)
        return None

    def read(self, timeout: float) -> None:
        stdout, stderr = self._channel.recv(timeout)
        self._stdout += stdout
        self._stderr += stderr
        # Dropping a few bytes with every piece would copy the whole buffer each time.
        if len(self._stdout) > 2 * OUTPUT_BYTES:
            self._searched = max(0, self._searched - len(self._stdout) + OUTPUT_BYTES)
            del self._stdout[:-OUTPUT_BYTES]
        if len(self._stderr) > 2 * OUTPUT_BYTES:
            del self._stderr[:-OUTPUT_BYTES]

    def quoted(self) -> str:
        text = in_one_line((self._stdout + self._stderr).decode(errors="replace"))[:200]
        return f" It printed: {text}" if text else ""


def _greet(channel: Channel, shell: Announcement, names: Sequence[str], deadline: Deadline) -> Supervisor:
    if shell.name == "missing":
        name = in_one_line(names[0])[:NAME_CHARACTERS]
        raise UnsupportedShell(f"{name}: shell not found on the machine; change the field shell of the connection.")
    dialect, path = dialect_of(shell.name), in_one_line(shell.path)[:NAME_CHARACTERS]
    supervising = SH if dialect.interpreter else dialect
    word = new_nonce()
    stdout, stderr = MarkedStream(word, FACTS_BYTES), MarkedStream(word, FACTS_BYTES, stderr=True)
    stderr.ended = channel.merged
    try:
        # A start-up file may have read the first nudge as its answer, or a second shell may have run it.
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
    own = (shell.path, *names[1:], *dialect.options)
    return _described(channel, word, stdout, dialect, supervising, shell, ("/bin/sh",) if dialect.interpreter else own)


def greeting(dialect: Dialect, nonce: str, *, merged: bool) -> bytes:
    """Return the text that makes a shell of ``dialect`` a supervisor, which then describes itself after ``nonce``.

    If the channel has only one stream of output (``merged``), both descriptors use it.
    """
    blanks = LETTERS | {"builtin": dialect.builtin, "nonce": nonce, "fork": dialect.fork}
    streams = _MERGED.text if merged else fill(_APART.text, {"renewal": dialect.renewal})
    parts = {
        "preparation": dialect.preparation,
        "hold": dialect.hold.text.rstrip() if dialect.hold else ":",
        "plainly": dialect.plainly,
        "untrap": dialect.untrap,
        "raw": "_cm_raw <&8" if merged else ":",
        "exports": dialect.exports,
        "put": dialect.put,
        "streams": streams.rstrip(),
        "execute": definition(dialect).rstrip(),
        "family": dialect.family,
        "functions": dialect.functions,
        "unknown": dialect.unknown,
    }
    return fill(fill(_GREETING.text, parts), blanks).encode()


def await_reader(channel: Channel, deadline: Deadline) -> None:
    """Return when the supervisor has read all earlier input; drop its output until then.

    A nudge starts a new supervisor, and input that the previous one had read ahead is lost.
    """
    output, mark = _Output(channel), new_nonce().encode()
    # Again and again, because the shell that gets the first echo may be one that a nudge is about to replace.
    while output.line(mark) is None and not deadline.passed:
        channel.sendall(b"echo >&8;echo " + mark + b" >&8\n", ECHO_SECONDS)
        output.read(deadline.within(ECHO_SECONDS).left())


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
    if stdout.state is None or len(facts) < 6 or not _PID.fullmatch(facts[0]) or len(facts[4]) >= PATH_BYTES:
        raise _undescribed(shell)
    pid, kernel, system, name, temp, state_home = facts[:6]
    family = dialect_of(name) if name else supervising
    own = supervising.behind(family, dialect.preset)
    directory, variables = stdout.state
    return Supervisor(
        channel=channel,
        argv=argv,
        dialect=own,
        interpreter=Interpreter(shell.path, dialect.interpreter) if dialect.interpreter else None,
        info=SessionInfo(
            dialect.number,
            _OS_TYPES.get(kernel, "unix"),
            in_one_line(system or kernel)[:NAME_CHARACTERS],
            "merged" if channel.merged else "none",
            temp,
        ),
        pid=int(pid),
        word=shell.word,
        state_home=state_home.encode(errors="surrogateescape"),
        directory=directory,
        variables=variables,
        # ksh93 waits only for the last program of a pipeline.
        pure=not dialect.interpreter and not own.fork and all(FUNCTION_PREFIX in line for line in facts[6:-1]),
    )


def _undescribed(shell: Announcement) -> ShellStartFailed:
    path = in_one_line(shell.path)[:NAME_CHARACTERS]
    return ShellStartFailed(f"The shell {path} did not describe itself as a shell does.")
