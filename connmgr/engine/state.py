"""The state that lasts between commands: the working directory and the exported variables.

The subshell of each command prints both after the command. The engine compares them with the last ones, and sets what
changed in the supervisor before the next command. Values stay in the shell's own quoting and are not decoded (the same
shell can read the output of ``export -p``, POSIX.1-2017 *export*).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from connmgr.engine.dialects import SH, Dialect, Interpreter
from connmgr.engine.script import quote

_HEAD = re.compile(rb"(?:export|declare|typeset)(?: -\w{1,16}){0,4} (?P<name>[A-Za-z_]\w*)(?P<set>=?)")
# One alternative per first byte, so that no input matches in two ways.
_PIECE = re.compile(
    rb"""[^\s'"\\$()]+ | \\. | '[^']*' | "[^"\\]*(?:\\.[^"\\]*)*" | \$'[^'\\]*(?:\\.[^'\\]*)*' | \$(?!')"""
    rb"| (?P<blanks>\s+) | (?P<end>.)",
    re.DOTALL | re.VERBOSE,
)
_QUOTING = re.compile(rb"""['"\\]""")
_NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")

_OF_EACH_COMMAND = frozenset(b"_ PWD CONNMGR_COMMAND".split())
"""Variables that differ for each command."""

GONE = b"/dev/null"
"""The working directory of a session whose directory was removed: no shell enters it."""


def parse_exports(dump: bytes) -> dict[bytes, bytes] | None:
    """Return, for each variable that ``export -p`` printed, the statement that sets it; None for other text.

    The time is proportional to the size of ``dump``, whatever it contains.
    """
    variables: dict[bytes, bytes] = {}
    position = 0
    while position < len(dump):
        head = _HEAD.match(dump, position)
        if head is None:
            return None
        # bash lists exported arrays, but does not export them.
        array = bool(head["set"]) and dump.startswith(b"(", head.end())
        end = _end_of_value(dump, head.end(), array=array) if head["set"] else head.end()
        if not dump.startswith(b"\n", end):
            return None
        if head["set"] and not array:
            value = dump[head.end() : end]
            variables[head["name"]] = b"export " + head["name"] + b"=" + _unexpanded(value) + b";"
        position = end + 1
    return variables


def _unexpanded(value: bytes) -> bytes:
    """Return ``value``, quoted if it is a bare word with tildes: ksh93 prints those unquoted and expands them."""
    return quote(value) if b"~" in value and not _QUOTING.search(value) else value


def _end_of_value(dump: bytes, start: int, *, array: bool) -> int:
    """Return the end of the value that begins at ``start``: a word, or an ``array`` with its brackets."""
    for piece in _PIECE.finditer(dump, start + array):
        if piece["end"] is not None:
            return piece.start() + (array and piece["end"] == b")")
        if piece["blanks"] is not None and not array:
            return piece.start()
    return len(dump)


def parse_environment(dump: bytes, dialect: Dialect = SH) -> dict[bytes, bytes] | None:
    """Return, for each variable that ``env -0`` printed, the statement that sets it; None for other text."""
    if not dump:
        return None
    pairs = (entry.partition(b"=") for entry in dump.split(b"\0"))
    variables = {name: value for name, _, value in pairs if _NAME.fullmatch(name)}
    return {name: b"export " + name + b"=" + dialect.quoted(value) + b";" for name, value in variables.items()}


@dataclass
class State:
    """A session's state after its last command: a directory, and the statement that sets each variable.

    ``dialect`` is the supervisor's.
    """

    dialect: Dialect = SH
    directory: bytes = b""
    variables: dict[bytes, bytes] = field(default_factory=dict)
    _dump: bytes = b""

    def update(self, directory: bytes, dump: bytes, *, from_env: bool) -> bytes:
        """Store a command's state, and return the sh text that updates the supervisor's variables.

        A malformed dump changes no variable; one that does not begin with a directory changes nothing.
        """
        if directory and not directory.startswith(b"/"):
            return b""
        # An empty name: the shell could not tell its directory, as after the directory was removed.
        self.directory = directory or GONE
        if dump == self._dump:
            return b""
        self._dump = dump
        variables = parse_environment(dump, self.dialect) if from_env else parse_exports(dump)
        if variables is None:
            return b""
        for name in _OF_EACH_COMMAND | self.dialect.controls:
            variables.pop(name, None)
        # bash refuses to assign UID and PPID, and zsh would change its user (zshparam(1), UID): they are only exported.
        variables |= {name: b"export " + name + b";" for name in self.dialect.preset & variables.keys()}
        changes = [statement for name, statement in variables.items() if self.variables.get(name) != statement]
        changes += [b"unset " + name + b";" for name in self.variables.keys() - variables.keys() - self.dialect.preset]
        self.variables = variables
        # Without this word, the shell would exit at a variable that it cannot set or unset.
        return b"".join(self.dialect.builtin.encode() + b" " + statement for statement in changes)


@dataclass(frozen=True)
class ShellSnapshot:
    """A session's shell and its state after the last command, for programs that run beside it.

    ``argv`` starts a shell like the supervisor, which uses ``dialect``; ``interpreter`` is the session's shell if that
    cannot supervise. ``variables`` are the statements that set each variable.
    """

    argv: tuple[str, ...]
    dialect: Dialect
    interpreter: Interpreter | None
    directory: bytes
    variables: Mapping[bytes, bytes]
    start: tuple[bytes, Mapping[bytes, bytes]]
    """The directory and the variables with which the shell started, and those that clients have sent."""
    received: Mapping[bytes, bytes]
    """The statements of the variables that clients have sent of their own environments, and that stay in the shell."""
    state_home: bytes = b""
    """The directory for the state of programs, before any command could change the variables that name it."""
