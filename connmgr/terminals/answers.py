"""Answers a program's queries to its terminal while no attached client's terminal would answer."""

from __future__ import annotations

import re
from collections.abc import Callable

from connmgr.streams.loop import Loop
from connmgr.terminals.output import Output

_QUESTION = re.compile(rb"\x1b\[(?:0?(?P<identity>c)|(?P<status>5n)|(?P<place>6n))")

IDENTITY = b"\x1b[?62;22c"
"""A terminal of DEC's second level with colours (DA1)."""

FINE = b"\x1b[0n"


def answers(printed: bytes, output: Output, loop: Loop, answer: Callable[[bytes], None]) -> None:
    """Call ``answer`` in the loop, once for each query in ``printed``, the end of ``output``."""
    if b"\x1b[" not in printed:
        return
    asked = {question.lastgroup for question in _QUESTION.finditer(printed)}
    if "identity" in asked:
        answer(IDENTITY)
    if "status" in asked:
        answer(FINE)
    if "place" in asked:

        def look() -> None:
            with output.look() as (screen, _):
                place = f"\x1b[{screen.y + 1};{screen.column + 1}R".encode()
            loop.call(lambda: answer(place))

        loop.work(look)
