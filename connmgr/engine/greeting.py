"""The greeting: the text that turns a freshly started shell into a supervisor, filled in for its dialect."""

from __future__ import annotations

from connmgr.engine.dialects import Dialect
from connmgr.engine.execution import definition
from connmgr.engine.script import Source, fill
from connmgr.engine.words import LETTERS

_GREETING = Source(__package__, "greeting")
_APART = Source(__package__, "apart")
_MERGED = Source(__package__, "merged")


def greeting(dialect: Dialect, nonce: str, *, merged: bool) -> bytes:
    """Return the text that makes a shell of ``dialect`` a supervisor, which then describes itself after ``nonce``.

    If the channel has only one stream of output (``merged``), both descriptors use it.
    """
    words = LETTERS | {"builtin": dialect.builtin, "nonce": nonce, "fork": dialect.fork}
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
    }
    return fill(fill(_GREETING.text, parts), words).encode()
