"""A command's envelope: the line that makes a supervisor run one command, and the marks that delimit its answer.

The line is written at once. It opens a subshell, runs the command there by ``eval``, and prints the state that the
command leaves; the supervisor then prints the end on both streams. ``exit``, ``exec``, ``set -e``, an unbalanced quote
or a redirection of the command end only the subshell.

**The marks.** A marker is a colon, a random nonce of 128 bits that only this envelope contains, a tag and a newline.
Output cannot imitate it, and when the shell prints the envelope (``set -x``), no colon precedes the nonce. A marker has
one newline, because bash writes line by line.

Tags on stdout, after the output, in this order and each at most once: ``c`` begins the working directory; ``p`` means
that the command moved to another directory, and begins that name if it differs; ``v`` begins the exported variables,
``x`` the output of an EXIT trap. ``g`` means that the requested directory cannot be entered, ``l`` that the session's
own is lost. A blank and a number end the command with that status. On stderr the bare nonce is the only mark, and the
end. If anything else follows a nonce, the shell's state is unknown, and :class:`UnknownMark` is raised.

**Plain commands** cannot change their session's state, and so run with less effort. They consist of programs with words
and redirections: programs cannot change the shell that runs them; only the shell's builtins and functions can.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from connmgr.engine.dialects import (
    DIRECTORY,
    DONE,
    DUMP,
    END,
    FREE,
    GONE,
    HOLD,
    LOST,
    MOVED,
    PUT,
    REFUSED,
    RENEW,
    REST,
    VARIABLES,
    Dialect,
    Interpreter,
    executed,
)
from connmgr.engine.script import IN_SINGLE_QUOTES, quote
from connmgr.engine.stdin_pipe import Input

_PRINTF_CHUNK = 8192
"""Bytes of input in one word: shells without a printf of their own pass it in an argv, whose words are limited."""

_BLANK = re.compile(rb"@(\w+)@")

_STATUS = b' "$?" '
_DUMP = DUMP + _STATUS
_DONE = DONE + _STATUS
_END = b";" + END + _STATUS
# The subshell reports its end itself. If it was killed before that, its status is not 0, and the supervisor reports.
_RENEWED = b")&&" + RENEW + b"||" + END + _STATUS
_OUTPUT = b">&8 2>&9 8>&- 9>&-"
# _cm_gone joins its two words: `_cm_gone c NONCE` prints ":NONCEc", and this text of the shell is not a mark itself.
_REFUSED, _LOST = (GONE + b" %c " % letter.encode() for letter in (REFUSED, LOST))


@dataclass(frozen=True)
class Requester:
    """Who requested a command: the name of its client, and the ids of its token and of the tokens above."""

    client: str
    tokens: tuple[str, ...] = ()
    token_name: str | None = None


class Memory(Protocol):
    """The memory that the output of a command takes (:class:`connmgr.shares.Held`)."""

    def take(self, size: int) -> bool:
        """Count ``size`` further bytes, and return whether there is room for them."""


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
    memory: Callable[[], Memory] | None = field(default=None, compare=False, repr=False)
    """Makes what its output is counted by in one session; None if it need not be."""

    sandbox: str = ""
    """Not empty: it may only look, and runs in the sandbox (:mod:`connmgr.engine.sandbox`), with this random mark."""

    @property
    def source(self) -> bytes | None:
        """The file that it reads, quoted for sh; None if the envelope contains its input."""
        if self.stdin_pipe is not None:
            return quote(self.stdin_pipe)
        return None if self.stdin else b"/dev/null"

    @property
    def has_options(self) -> bool:
        return self.source != b"/dev/null" or self.directory is not None or bool(self.environment)

    @property
    def keeps_state(self) -> bool:
        return not self.argv and self.directory is None and not self.environment

    @cached_property
    def single(self) -> bytes | None:
        """The command as one program and its words, or None if a shell might read it differently."""
        # Looked at once, because a run has the same command for thousands of connections.
        if self.argv:
            return b" ".join(map(quote, self.argv)) if is_program(self.argv[0]) else None
        return self.text.strip(BLANKS) if is_single(self.text) else None


def build_envelope(
    dialect: Dialect, command: Command, nonce: str, cookie: str, interpreter: Interpreter | None
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
        # Behind the output, so that the requester is told of input that cannot be opened.
        source = b"" if command.source is None else b" <" + command.source
        steps.append(executed(dialect, command.argv) + b" " + _OUTPUT + source)
    elif interpreter:
        steps.append(_interpreted(dialect, command, mark, interpreter))
    else:
        steps += _evaluated(dialect, command)
        if command.keeps_state:
            steps.append(_DUMP + mark)
    # The statements are on one line: a supervisor reads no further than the line before it runs it, so whatever the
    # command does to its standard input, nothing of the envelope is left for it to read.
    body = b"(" + dialect.fork.encode() + b";".join(steps) + b")"
    if command.stdin:
        body = b"{ " + b";".join(_printf(command.stdin)) + b";}|" + body
    return body + _END + mark + b"\n"


ROOT = b"/"
_STREAMS = b"</dev/null " + _OUTPUT


def build_plain_envelope(command: Command, nonce: str, cookie: str) -> bytes | None:
    """Return the line that runs a plain ``command`` in a supervisor without functions; None if it is not plain.

    The command's options are ignored.

    A single program needs no subshell. For several, the subshell reports the end before it exits; if it is killed, the
    supervisor reports the end.
    """
    mark, name = nonce.encode(), b"CONNMGR_COMMAND=" + cookie.encode()
    if single := command.single:
        # The assignment is in the environment of this program alone. Before a special builtin it would stay in the
        # shell (POSIX.1-2017, 2.14); is_program and is_single exclude those.
        return _STREAMS + b" " + name + b" " + single + _END + mark + b"\n"
    if command.argv or not is_plain(command.text):
        return None
    steps = (b"exec " + _STREAMS, b"export " + name, b"eval " + quote(command.text), _DONE + mark)
    return b"(" + b";".join(steps) + _RENEWED + mark + b"\n"


def enter_directory(
    dialect: Dialect, directory: bytes, nonce: str, envelope: bytes, command: Command, *, anew: bool
) -> bytes:
    """Return a line that moves the supervisor into ``directory`` and runs the ``envelope`` of ``command`` there, or
    reports that it is gone.

    With ``anew``, it is in the former directory of that name, and leaves it for :data:`ROOT` first. The line has
    ``case``, because a command within ``if`` or after ``||`` would ignore ``set -e``.
    """
    mark, cd = nonce.encode(), dialect.builtin.encode() + b" cd "
    # ksh93 (93u+m/1.0.4) ignores a cd to the name of the directory that it is in, whatever the name leads to now.
    enter = (cd + ROOT + b";" if anew else b"") + cd + dialect.quoted(directory)
    gone = _unread(command) + _LOST + mark + b";" + END + b" 1 " + mark
    return enter + b';case "$?" in 0) ' + envelope.rstrip(b"\n") + b";;*) " + gone + b";;esac\n"


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
    if command.stdin_pipe is not None:
        # Without it, the command would read the supervisor's own input. Not every shell exits by itself.
        yield b"{ exec <" + quote(command.stdin_pipe) + b";} 2>&9||exit 126"
    elif command.source is not None:
        yield b"exec <" + command.source
    text = command.text
    if dialect.hold:
        yield HOLD
        # FREE is within `eval`: the shell saves the descriptors that it replaces when it redirects `eval`, and until
        # then HOLD keeps it away from the numbers that scripts use.
        text = FREE + b"\n" + text
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
        yield PUT + b" '" + text + b"'"


MAX_COMMAND_BYTES = 400
"""Longest command that is checked for being plain, in bytes: checking takes longer than a subshell beyond that."""

MAX_SINGLE_BYTES = 8 << 10
"""The same for a command of one program: its words are matched in one piece, which stops all other threads."""

BLANKS = b" \t\n"
"""Blanks around a command."""

HARMLESS = frozenset(b"[ basename cat cp cut dirname echo false getconf ln mktemp mv pwd sleep test true".split())
"""Builtins that change nothing in their shell."""

INSTANT = frozenset(b"echo false pwd true".split())
"""Builtins that also never wait."""

SHELLS_OWN = frozenset(
    b"""
    ! - . : [[ ]] { }
    alias autoload bg bind bindkey break builtin bye caller case cd chdir command compadd comparguments compcall compctl
    compdescribe compfiles compgen compgroups complete compopt compound compquote compset comptags comptry compvalues
    continue coproc declare dirs disable disown do done echotc echoti elif else emulate enable end enum esac eval exec
    exit export fc fg fi float for foreach function functions getln getopts global hash help hist history if in integer
    jobs kill let limit local log login logout mapfile nameref namespace nocorrect noglob nohup popd print printf
    private pushd pushln r read readarray readonly realpath redirect rehash rename repeat return sched select set setopt
    shift shopt source stop suspend then time times trap ttyctl type typeset ulimit umask unalias unfunction unhash
    unlimit unset unsetopt until vared wait whence where which while zcompile zformat zle zmodload zparseopts
    zregexparse zstyle
    """.split()
)
"""The other words of the supervising shells: keywords, builtins, and predefined aliases."""

_PROGRAM = rb"(?P<program>[A-Za-z0-9_.:/+\[-]+)(?![^\s|&;])"
# zsh reads a bracket after a variable as arithmetic, which may assign.
_VARIABLE = rb"\$[A-Za-z_]\w*(?![\w\[])"
_WORD = rb"""(?:[\w./:@%+,=*?~\[\]-]|VARIABLE|'[ -&(-~]*'|"(?:[ !#%-\[\]^_a-~]|VARIABLE)*")+"""
_WORD = _WORD.replace(b"VARIABLE", _VARIABLE)
_REDIRECTION = rb"[0-9]?(?:[<>]|>>)[ \t]*" + _WORD + rb"|[0-9]?>&[0-9]"
_SIMPLE = _PROGRAM + rb"(?:[ \t]+(?:" + _WORD + rb"|" + _REDIRECTION + rb"))*"
# Excludes words that a shell could reject, as zsh rejects a pattern without a match.
_SINGLE = re.compile(_PROGRAM + rb"(?:[ \t]+[\w./:@%+,-][\w./:@%+,=-]*)*")
_NAME = re.compile(rb"\w[\w.+-]*")
_PATH = re.compile(rb"[\w./][\w./+-]*")
_NEXT = re.compile(rb"[ \t\n]*" + _SIMPLE + rb"[ \t]*(?P<joint>\|\||&&|[|;\n]|\Z)")


# Built once: to unite the sets costs more than all else that a short command is looked at for.
_NO_PROGRAMS = SHELLS_OWN | HARMLESS
# `sleep` is a builtin of ksh93 (93u+m/1.0.4): run by the supervisor itself, it could only be killed with it.
_NO_SINGLES = SHELLS_OWN | HARMLESS - INSTANT
# What these print, or take as options, differs from one shell, and from the program of the name, to the next.
_NOT_ALIKE = SHELLS_OWN | frozenset(b"[ echo pwd test".split())


def is_single(text: bytes) -> bool:
    """Whether ``text`` is one program with simple words, which the supervisor may run without a subshell."""
    match = _as_single(text)
    return match is not None and match["program"] not in _NO_SINGLES


def words_alike(text: bytes) -> list[bytes] | None:
    """Return the words of ``text`` if it is one program with simple words, which ash, bash, dash and sh all run alike,
    without a difference between builtin and program but for ``true`` and ``false``; None otherwise.
    """
    match = _as_single(text)
    if match is None or match["program"] in _NOT_ALIKE or not _PATH.fullmatch(match["program"]):
        return None
    return match[0].split()


def _as_single(text: bytes) -> re.Match[bytes] | None:
    return _SINGLE.fullmatch(text.strip(BLANKS)) if len(text) <= MAX_SINGLE_BYTES else None


def is_program(name: bytes) -> bool:
    """Whether the quoted word ``name`` is a program for every supervising shell without functions."""
    return b"/" in name or (_NAME.fullmatch(name) is not None and name not in _NO_PROGRAMS)


def is_plain(text: bytes) -> bool:
    """Whether the command ``text`` cannot change directory, variables or traps of the shell that runs it."""
    command, position = text.strip(BLANKS), 0
    if len(command) > MAX_COMMAND_BYTES:
        return False
    while True:
        match = _NEXT.match(command, position)
        if match is None or match["program"] in SHELLS_OWN:
            return False
        position = match.end()
        if position == len(command):
            return match["joint"] in {b"", b";"}


UNCOUNTED_BYTES = 256 << 10
COUNTED_BYTES = 1 << 20
"""Output of a stream beyond the first is counted in steps of the second."""

STATE_BYTES = 512 << 10
"""Most bytes of working directory, and of variables; a larger state is not carried over."""

TAG_BYTES = len(" 65535\r")
"""Most bytes between a nonce and its newline."""

_BEFORE = ""  # the section before the first letter: the output
_TAG = re.compile(rb"(?P<status> [0-9]{1,5})?(?P<letter>[a-z])?(?P<translated>\r?)")
_FOLLOWING = {
    "": (DIRECTORY, REFUSED, LOST),
    DIRECTORY: (MOVED, VARIABLES),
    MOVED: (VARIABLES,),
    VARIABLES: (REST,),
}
"""The letters that may follow each letter on stdout."""


class UnknownMark(Exception):
    """A nonce is followed by no mark, or by one that is not allowed there."""


class MarkedStream:
    """Separates one stream of a command into output, state and end.

    At most ``limit`` bytes of output are kept, as far as the ``memory`` has room; ``truncated`` is set if more came.
    The end of ``stderr`` is bare.
    """

    def __init__(self, nonce: str, limit: int, memory: Memory | None = None, *, stderr: bool = False) -> None:
        self._memory, self._counted = memory, UNCOUNTED_BYTES
        self._stderr = stderr
        self._letter = ""
        self._marker = b":" + nonce.encode()
        self.limit = limit
        self._pending = b""
        self._section = _BEFORE
        self._state_complete = False
        self._translated = False
        self._sections = defaultdict[str, bytearray](bytearray)
        self.truncated = False
        self.moved = False
        self.directory_refused = False
        self.directory_lost = False
        self.ended = False
        self.status = 0

    @property
    def output(self) -> bytearray:
        return self._sections[_BEFORE]

    def take(self) -> bytes:
        """Return the output kept so far, and drop it."""
        output, self._sections[_BEFORE] = bytes(self._sections[_BEFORE]), bytearray()
        return output

    @property
    def state(self) -> tuple[bytes, bytes] | None:
        """The working directory and the variables as printed, or None if the command printed neither."""
        sections = self._sections
        directory, variables = sections[MOVED] or sections[DIRECTORY], sections[VARIABLES]
        if not self._state_complete or max(len(directory), len(variables)) >= STATE_BYTES:
            return None
        if self._translated:
            directory, variables = (part.replace(b"\r\n", b"\n") for part in (directory, variables))
        return bytes(directory.removesuffix(b"\n")), bytes(variables)

    def parse(self, data: bytes) -> None:
        """Process the next bytes of the stream; those after its end are dropped.

        :raises UnknownMark: the shell is in an unknown state.
        """
        if self.ended or not data:
            return
        data = self._pending + data
        marker, start = self._marker, 0
        while True:
            at = data.find(marker, start)
            if at < 0:
                # The end may be the beginning of a marker whose rest comes with the next bytes.
                rest = self._possible_marker(data, start)
                self._keep(data, start, len(data) - rest)
                self._pending = data[len(data) - rest :]
                return
            tag = at + len(marker)
            line_end = data.find(b"\n", tag, tag + TAG_BYTES + 1)
            # Without a bound, a remote host that sends a nonce and never a newline would have everything kept here.
            if line_end < 0 and len(data) - tag > TAG_BYTES:
                raise UnknownMark
            self._keep(data, start, at)
            if line_end < 0:
                self._pending = data[at:]
                return
            self._enter(data[tag:line_end])
            start = line_end + 1
            if self.ended:
                return

    def _possible_marker(self, data: bytes, start: int) -> int:
        # The last colon is the only candidate: a nonce has none, so a marker has one, its first byte.
        at = data.rfind(b":", max(start, len(data) - len(self._marker) + 1))
        return len(data) - at if at >= 0 and self._marker.startswith(data[at:]) else 0

    def _enter(self, tag: bytes) -> None:
        match = _TAG.fullmatch(tag)
        if match is None or (match["status"] and match["letter"]):
            raise UnknownMark
        if match["translated"]:
            # The command has made the terminal translate newlines (ONLCR of termios(3)), in the state below as well.
            self._translated = True
        if match["letter"]:
            self._begin(match["letter"].decode())
        elif (match["status"] is None) != self._stderr:
            raise UnknownMark
        else:
            self.ended = True
            self.status = int(match["status"] or 0)

    def _begin(self, letter: str) -> None:
        if self._stderr or letter not in _FOLLOWING.get(self._letter, ()):
            raise UnknownMark
        self._letter = letter
        if letter == REFUSED:
            self.directory_refused = True
        elif letter == LOST:
            self.directory_lost = True
        else:
            self._section = _BEFORE if letter == REST else letter
            self.moved = self.moved or letter == MOVED
            self._state_complete = letter == REST

    def _limit(self, size: int) -> int:
        """Return how many bytes of output may be kept, if there are ``size``."""
        while self._memory is not None and self._counted < min(size, self.limit):
            if not self._memory.take(COUNTED_BYTES):
                return self._counted
            self._counted += COUNTED_BYTES
        return self.limit

    def _keep(self, data: bytes, start: int, end: int) -> None:
        if start >= end:
            return
        section = self._sections[self._section]
        limit = self._limit(len(section) + end - start) if self._section == _BEFORE else STATE_BYTES
        room = max(0, limit - len(section))
        if end - start > room:
            self.truncated = self.truncated or self._section == _BEFORE
            end = start + room
        section += memoryview(data)[start:end]
