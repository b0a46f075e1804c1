"""The program of a job, and the script that starts it on the remote host."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final

from connmgr.engine.dialects import SH, Dialect, Interpreted, Interpreter, definition, executed
from connmgr.engine.sandbox import carry, sandboxed, shell_words
from connmgr.engine.script import IN_SINGLE_QUOTES, Source, fill, quote
from connmgr.engine.state import ShellSnapshot

OPEN: Final = None
"""In place of a job's standard input: the input comes later."""

DEFAULT_CAP = 64 << 20
"""Most bytes that are kept of each stream."""

SMALL_INPUT_BYTES = 16 << 10
"""Larger standard input is not sent with the command, but stored before it begins."""

_CHUNK = 8 << 10
_BLANK = re.compile(rb"@(\w+)@")
_READ_SCRIPT = 'eval "$(exec cat <&7)"'
# Without another process.
_SLURP_SCRIPT = f'if [ -r /dev/fd/7 ];then eval "$(</dev/fd/7)";else {_READ_SCRIPT};fi'


@dataclass(frozen=True)
class Launch:
    """A job to start: the command ``text`` in the language of the session's shell, or the program ``argv``.

    ``id`` is a uuid in hexadecimal digits, which names the job's directory. Without ``surroundings`` the job runs in
    the user's home directory and environment, and ``text`` is for sh. It reads ``stdin``, or with :data:`OPEN` later
    input. After ``timeout`` seconds, rounded up to whole ones, it is killed. ``cap`` bytes of each stream are kept.
    With ``tells_directory``, the directory in which ``text`` ends is recorded, unless it has an EXIT trap of its own or
    is for csh.
    """

    id: str
    text: bytes | None = None
    argv: tuple[bytes, ...] = ()
    surroundings: ShellSnapshot | None = None
    cwd: bytes | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes | None = b""
    timeout: float | None = None
    cap: int = DEFAULT_CAP
    tells_directory: bool = False
    sandbox: str = ""
    """Not empty: it may only look, and runs in the sandbox (:mod:`connmgr.engine.sandbox`), with this random mark."""

    @property
    def stored_input(self) -> bytes:
        """The input that is stored on the remote host before the job begins; empty if there is none."""
        return self.stdin if self.stdin is not OPEN and len(self.stdin) > SMALL_INPUT_BYTES else b""

    @property
    def directory(self) -> bytes:
        return self.surroundings.directory if self.surroundings else b""

    @property
    def subdirectory(self) -> bytes:
        """The directory to enter from there, in a form that ``cd`` cannot read as an option."""
        if not self.cwd:
            return b""
        return self.cwd if self.cwd.startswith(b"/") else b"./" + self.cwd

    @property
    def words(self) -> Iterator[bytes]:
        """Yield whether its environment is empty, whether it records its directory, and the argv of its shell."""
        # The shell reads the script on descriptor 7: an argv is limited (ARG_MAX), and `ps` would show it.
        yield b"1" if self.surroundings else b""
        yield b"1" if self._tells else b""
        yield from (word.encode() for word in (self.surroundings.argv if self.surroundings else ["/bin/sh"]))
        yield from (b"-c", (_SLURP_SCRIPT if self._dialect.slurps else _READ_SCRIPT).encode())

    @property
    def setting(self) -> bytes:
        """The text that sets up the session's state; it is the same for all jobs in the same state."""
        return b"".join(step + b"\n" for step in self._state())

    @property
    def script(self) -> tuple[bytes, bytes]:
        """The text before :attr:`setting`, and the text after it, which runs the command."""
        dialect = self._dialect
        steps = [self._subdirectory(dialect), *self._environment(dialect), *self._end(dialect), self._command(dialect)]
        command = b"\n".join(steps)
        if not self.stdin or self.stored_input:
            return b"exec 7<&-\n", command
        # A builtin, so that `ps` does not show these values.
        return b"exec 7<&-\n{ " + b"\n".join(_put(dialect, self.stdin)) + b"\n} | {\n", command + b"\n}"

    @property
    def _dialect(self) -> Dialect:
        return self.surroundings.dialect if self.surroundings else SH

    @property
    def _interpreter(self) -> Interpreter | None:
        return self.surroundings.interpreter if self.surroundings else None

    @property
    def _tells(self) -> bool:
        csh = self._interpreter is not None and self._interpreter.language.program.language == "csh"
        return self.tells_directory and self.text is not None and not csh and not self.sandbox

    def _subdirectory(self, dialect: Dialect) -> bytes:
        # The shell is there already, by the name that getcwd(3) found. This gives it the user's name, with links in it.
        return b"%s cd %s 2>/dev/null||:" % (dialect.builtin.encode(), dialect.quoted(self.subdirectory or b"."))

    def _state(self) -> Iterator[bytes]:
        if self.surroundings is None:
            return
        dialect, variables = self._dialect, self.surroundings.variables
        builtin = dialect.builtin.encode()
        yield dialect.preparation.encode()
        yield b"%s cd %s 2>/dev/null||:" % (builtin, dialect.quoted(self.directory))
        yield from (b"unset " + name for name in (b"OLDPWD", b"PATH") if name not in variables)
        # Without this word, the shell would exit at a variable that it cannot set.
        yield from (builtin + b" " + statement for statement in variables.values())

    def _environment(self, dialect: Dialect) -> Iterator[bytes]:
        # Of one that may only look, under other names until it is inside the sandbox.
        environment = carry((), self.environment)[0] if self.sandbox else self.environment
        for name, value in environment.items():
            yield b"export " + name.encode() + b"=" + dialect.quoted(value.encode())

    def _end(self, dialect: Dialect) -> Iterator[bytes]:
        # fish reads its script itself.
        if self._tells and not self._interpreter:
            yield b"_cm_cwd=$CONNMGR_CWD"
            yield b"unset CONNMGR_CWD"
            yield b"trap '%s pwd -P >\"$_cm_cwd\"' EXIT" % dialect.builtin.encode()

    def _command(self, dialect: Dialect) -> bytes:
        if self.sandbox:
            words = self.argv if self.text is None else shell_words(self.surroundings, self.text)
            argv = sandboxed(carry(words, self.environment)[1], {}, self.sandbox, self.surroundings)
            return definition(dialect).encode() + executed(dialect, argv)
        if self.text is None:
            return definition(dialect).encode() + executed(dialect, self.argv)
        if self._interpreter:
            return _interpreted(self.text, dialect, self._interpreter)
        run = b"eval " + dialect.quoted(self.text)
        # ksh93 reports 256 + N if signal N ended a command; its own exit status would be only N.
        return run + b'\nexit "$(($?>256?$?-128:$?))"' if dialect.fork else run


def _put(dialect: Dialect, data: bytes) -> Iterable[bytes]:
    yield b"_cm_put(){ " + fill(dialect.put, {"builtin": dialect.builtin}).encode() + b"; }"
    for start in range(0, len(data), _CHUNK):
        text = IN_SINGLE_QUOTES.escape(data[start : start + _CHUNK])
        yield b"_cm_put '" + text + b"'"


def _interpreted(text: bytes, dialect: Dialect, interpreter: Interpreter) -> bytes:
    filling = {b"command": quote(text), b"shell": quote(interpreter.shell.encode())}
    template = _for_a_job(interpreter.language).template
    run = _BLANK.sub(lambda blank: filling[blank[1]], template)
    return b"{ " + run.replace(b"\n", dialect.newline) + b"; } 6<&0"


@cache
def _for_a_job(language: Interpreted) -> Interpreted:
    """Return ``language`` with a program that records no state after the command."""
    return replace(language, program=Source(__package__, "command", language.program.language))
