"""The shell text that replaces a shell by the program of an argv."""

from __future__ import annotations

from collections.abc import Sequence

from connmgr.engine import words
from connmgr.engine.dialects import Dialect
from connmgr.engine.script import Source, fill

_EXECUTE = Source(__package__, "execute")
_BECOME = Source(__package__, "become")


def definition(dialect: Dialect) -> str:
    """Return the text that defines the function which :func:`executed` may call."""
    return fill(_EXECUTE.text, {"builtin": dialect.builtin, "by_path": dialect.by_path or dialect.execute})


def executed(dialect: Dialect, argv: Sequence[bytes]) -> bytes:
    """Return the statement that replaces a shell of ``dialect`` by the program ``argv[0]``, as execvp(3) does.

    Builtins and functions do not count as programs. If there is no such program the shell says so and exits with 127;
    with 126 if it cannot be executed.
    """
    is_searched = b"/" not in argv[0] and (dialect.by_path or argv[0].startswith(b"-"))
    become = words.EXEC if is_searched else dialect.execute.encode()
    # On a terminal, ksh93 loses the beginning of a word at byte 65,536 of a line.
    between = b" " if dialect.newline == b"\n" else b" \\\n"
    return become + b" " + between.join(map(dialect.quoted, argv))


def become() -> str:
    """Return the text that defines ``become``, which does the same with its words in an unknown shell."""
    return fill(_EXECUTE.text, {"builtin": "", "by_path": "exec"}) + _BECOME.text
