"""The frame: one write that makes a supervisor run one command. :mod:`connmgr.engine.marks` reads the answer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from connmgr.engine import words
from connmgr.engine.dialects import Dialect, Interpreted
from connmgr.engine.execution import executed
from connmgr.engine.plain import BLANKS, is_plain, is_program, is_single
from connmgr.engine.script import IN_SINGLE_QUOTES, quote
from connmgr.engine.stdin_pipe import Input

_PRINTF_CHUNK = 8192
_BLANK = re.compile(rb"@(\w+)@")

_STATUS = b' "$?" '
_DUMP = words.DUMP + _STATUS
_DONE = words.DONE + _STATUS
_END = b";" + words.END + _STATUS
_RENEWED = b")&&" + words.RENEW + b"||" + words.END + _STATUS
_OUTPUT = b">&8 2>&9 8>&- 9>&-"
_REFUSED, _LOST = (words.GONE + b" %c " % letter.encode() for letter in (words.REFUSED, words.LOST))


@dataclass(frozen=True)
class Requester:
    """Who requested a command: the name of its client, and the ids of its token and of the tokens above."""

    client: str
    tokens: tuple[str, ...] = ()
    token_name: str | None = None


@dataclass(frozen=True)
class Command:
    """One command and its options: ``text``, or instead the program and words of ``argv``.

    It reads ``stdin``, or what is ``arriving`` while it runs; a session turns large input into a named pipe,
    ``stdin_pipe``. With ``directory``, ``environment`` or ``argv`` it runs in a copy of the session, and does not
    change the session's state.
    """

    text: bytes = b""
    stdin: bytes = b""
    arriving: Input | None = None
    stdin_pipe: bytes | None = None
    directory: bytes | None = None
    environment: Mapping[str, str] | None = None
    argv: tuple[bytes, ...] = ()
    sent: Mapping[str, str] | None = None
    """Variables of the client's environment, which the session takes over; None if the client sent none."""
    requester: Requester | None = None

    @property
    def source(self) -> bytes | None:
        """The file that it reads, quoted for sh; None if the frame contains its input."""
        if self.stdin_pipe is not None:
            return quote(self.stdin_pipe)
        return None if self.stdin else b"/dev/null"

    @property
    def has_options(self) -> bool:
        return self.source != b"/dev/null" or self.directory is not None or bool(self.environment)

    @property
    def keeps_state(self) -> bool:
        return not self.argv and self.directory is None and not self.environment


@dataclass(frozen=True)
class Interpreter:
    """The shell that runs the commands of a session supervised by ``/bin/sh``.

    ``env`` is the path of env(1).
    """

    shell: str
    language: Interpreted
    env: str = "/usr/bin/env"


def build_frame(
    dialect: Dialect, command: Command, nonce: str, cookie: str, interpreter: Interpreter | None = None
) -> bytes:
    """Return the line that runs ``command`` in a subshell of the supervisor and reports how it ended.

    The subshell becomes the program of an argv; an ``interpreter`` only runs texts. The command is not within ``if``,
    ``&&`` or ``||``, which would disable ``set -e``. ``cookie`` is in the command's environment, and identifies
    processes that left its tree.
    """
    mark = nonce.encode()
    export = _special(dialect) + b"export "
    steps = [export + b"CONNMGR_COMMAND=" + cookie.encode()]
    if command.directory is not None:
        enter = dialect.builtin.encode() + b" cd " + dialect.quoted(_as_path(command.directory))
        steps.insert(0, enter + b"||{ " + _unread(command) + _REFUSED + mark + b";exit;}")
    if command.environment:
        exports = (export + k.encode() + b"=" + dialect.quoted(v.encode()) for k, v in command.environment.items())
        steps.append(b"{ " + b";".join(exports) + b";} 2>&9")  # Some variables cannot be set; the shell prints which.
    if command.argv:
        source = b" " if command.source is None else b" <" + command.source + b" "
        steps.append(executed(dialect, command.argv) + source + _OUTPUT)
    elif interpreter:
        steps.append(_interpreted(dialect, command, mark, interpreter))
    else:
        steps += _evaluated(dialect, command)
        if command.keeps_state:
            steps.append(_DUMP + mark)
    body = b"(" + dialect.fork.encode() + b";".join(steps) + b")"
    if command.stdin:
        body = b"{ " + b";".join(_printf(command.stdin)) + b";}|" + body
    return body + _END + mark + b"\n"


ROOT = b"/"
_STREAMS = b"</dev/null " + _OUTPUT


def build_plain_frame(command: Command, nonce: str, cookie: str) -> bytes | None:
    """Return the line that runs a plain ``command`` in a supervisor without functions; None if it is not plain.

    The command's options are ignored.

    A single program needs no subshell. For several, the subshell reports the end before it exits; if it is killed, the
    supervisor reports the end.
    """
    mark, name = nonce.encode(), b"CONNMGR_COMMAND=" + cookie.encode()
    single = _single(command)
    if single:
        return _STREAMS + b" " + name + b" " + single + _END + mark + b"\n"
    if command.argv or not is_plain(command.text):
        return None
    steps = (b"exec " + _STREAMS, b"export " + name, b"eval " + quote(command.text), _DONE + mark)
    return b"(" + b";".join(steps) + _RENEWED + mark + b"\n"


def _single(command: Command) -> bytes | None:
    """Return ``command`` as one program and its words, or None if a shell might read it differently."""
    if command.argv:
        return b" ".join(map(quote, command.argv)) if is_program(command.argv[0]) else None
    return command.text.strip(BLANKS) if is_single(command.text) else None


def enter_directory(
    dialect: Dialect, directory: bytes, nonce: str, frame: bytes, command: Command, *, anew: bool = False
) -> bytes:
    """Return a line that moves the supervisor into ``directory`` and runs the ``frame`` of ``command`` there, or
    reports that it is gone.

    With ``anew``, it is in the former directory of that name, and leaves it for :data:`ROOT` first. The line has
    ``case``, because a command within ``if`` or after ``||`` would ignore ``set -e``.
    """
    mark, cd = nonce.encode(), dialect.builtin.encode() + b" cd "
    # ksh93 (93u+m/1.0.4) ignores a cd to the name of the directory that it is in, whatever the name leads to now.
    enter = (cd + ROOT + b";" if anew else b"") + cd + dialect.quoted(directory)
    gone = _unread(command) + _LOST + mark + b";" + words.END + b" 1 " + mark
    return enter + b';case "$?" in 0) ' + frame.rstrip(b"\n") + b";;*) " + gone + b";;esac\n"


def _unread(command: Command) -> bytes:
    """Return the statement that opens and closes the pipe of a command that does not run, whose writer waits for it."""
    return b"" if command.stdin_pipe is None else b": <" + quote(command.stdin_pipe) + b";"


def _special(dialect: Dialect) -> bytes:
    """Return the prefix that reaches a special builtin in shells where a function may have its name (POSIX 2.14)."""
    return b"builtin " if dialect.builtin == "builtin" else b""


def _as_path(directory: bytes) -> bytes:
    # cd reads "-" and "-P" differently, and searches CDPATH for a path that begins with a name.
    return directory if directory.startswith(b"/") else b"./" + directory


def _evaluated(dialect: Dialect, command: Command) -> Iterator[bytes]:
    if command.source is not None:
        yield b"exec <" + command.source
    text = command.text
    if dialect.hold:
        yield words.HOLD
        text = words.FREE + b"\n" + text
    yield _special(dialect) + b"eval " + dialect.quoted(text) + b" " + dialect.streams.encode()


def _interpreted(dialect: Dialect, command: Command, mark: bytes, interpreter: Interpreter) -> bytes:
    filling = {
        b"command": quote(command.text),
        b"shell": quote(interpreter.shell.encode()),
        b"env": interpreter.env.encode(),
        b"nonce": mark,
    }
    run = _BLANK.sub(lambda blank: filling[blank[1]], interpreter.language.template)
    source = b"6<" + (command.source or b"&0")
    # All newlines, including those of the command, are within single quotes.
    return b"{ " + run.replace(b"\n", dialect.newline) + b";} " + source + b" " + _OUTPUT


def _printf(data: bytes) -> Iterable[bytes]:
    # Octal escapes carry every byte, NUL included, through `print` and every `printf %b` (POSIX.1-2017 printf).
    for start in range(0, len(data), _PRINTF_CHUNK):
        text = IN_SINGLE_QUOTES.escape(data[start : start + _PRINTF_CHUNK])
        yield words.PUT + b" '" + text + b"'"
