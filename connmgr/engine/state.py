"""What lasts from one command to the next: the working directory and the exported variables.

The subshell of each command prints both when the command has returned; the engine compares them with the last ones and
puts what changed back into the supervisor before the next command. Values are kept as the shell itself quoted them
(``export -p`` prints what the same shell reads back, POSIX.1-2017 *export*), so that no value is decoded on the way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from connmgr.engine.dialects import quote

_WORD = rb"""(?:[^\s'"\\$()]|\\.|'[^']*'|"(?:\\.|[^"\\])*"|\$'(?:\\.|[^'\\])*'|\$)"""
_ARRAY = rb"\((?:" + _WORD + rb"|\s)*\)"  # bash lists exported arrays, which it does not export
_DECLARATION = re.compile(
    rb"(?:export|declare|typeset)(?: -\w+)* (?P<name>[A-Za-z_]\w*)"
    rb"(?:=(?P<value>" + _WORD + rb"*|" + _ARRAY + rb"))?\n",
    re.DOTALL,
)
_NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")

_SHELLS_OWN = frozenset(
    b"""
    _ PWD SHLVL PPID UID EUID GID EGID SHELLOPTS BASHOPTS BASH_VERSINFO BASH_XTRACEFD histchars HISTCHARS
    CONNMGR_COMMAND
    """.split()
)
"""Variables that a shell keeps by itself, refuses to have set, or reads its orders by."""

GONE = b"/dev/null"
"""The working directory of a session whose own is gone: no shell enters it."""


def parse_exports(dump: bytes) -> dict[bytes, bytes] | None:
    """Return for each variable that ``export -p`` printed the statement that sets it; None where it is not that."""
    variables: dict[bytes, bytes] = {}
    position = 0
    while position < len(dump):
        match = _DECLARATION.match(dump, position)
        if match is None:
            return None
        name, value = match["name"], match["value"]
        if value is not None and not value.startswith(b"("):
            variables[name] = b"export " + name + b"=" + value + b";"
        position = match.end()
    return variables


def parse_environment(dump: bytes) -> dict[bytes, bytes]:
    """Return for each variable that ``env -0`` printed the statement that sets it, in the language of sh."""
    pairs = (entry.partition(b"=") for entry in dump.split(b"\0"))
    return {name: b"export " + name + b"=" + quote(value) + b";" for name, _, value in pairs if _NAME.fullmatch(name)}


@dataclass
class State:
    """The state of a session as its last command left it: a directory, and the statement that sets each variable."""

    directory: bytes = b""
    variables: dict[bytes, bytes] = field(default_factory=dict)
    _dump: bytes = b""

    def update(self, directory: bytes, dump: bytes, *, from_env: bool) -> bytes:
        """Take over what a command left, and return the sh text that puts the supervisor's variables right.

        A dump that cannot be read changes no variable; with another beginning than a directory's it changes nothing.
        """
        if directory and not directory.startswith(b"/"):
            return b""
        self.directory = directory or GONE
        if dump == self._dump:
            return b""
        self._dump = dump
        variables = parse_environment(dump) if from_env else parse_exports(dump)
        if not variables:
            return b""
        for name in _SHELLS_OWN:
            variables.pop(name, None)
        changes = [statement for name, statement in variables.items() if self.variables.get(name) != statement]
        changes += [b"unset " + name + b";" for name in self.variables if name not in variables]
        self.variables = variables
        return b"".join(changes)
