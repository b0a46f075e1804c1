"""How a shell becomes a program: what stands for an argv in the text that it reads."""

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
    """Return the statement by which a shell of ``dialect`` becomes the program ``argv[0]``, as execvp(3) does.

    No builtin and no function is taken for the program. Where there is none the shell says so, and ends with 127; with
    126 where it cannot be executed.
    """
    is_searched = b"/" not in argv[0] and (dialect.by_path or argv[0].startswith(b"-"))
    become = words.EXEC if is_searched else dialect.execute.encode()
    return become + b" " + b" ".join(map(dialect.quoted, argv))


def become() -> str:
    """Return the text that defines ``become``, which does the same with its words in a shell that is not known."""
    return fill(_EXECUTE.text, {"builtin": "", "by_path": "exec"}) + _BECOME.text
