"""Words that travel as JSON: bytes that are no UTF-8 would arrive as others."""

from __future__ import annotations

import os
from collections.abc import Sequence


def spelled(argv: Sequence[str]) -> list[str]:
    """Return words of UTF-8 alone that run ``argv``: a shell makes those anew that are none."""
    odd = {number: word for number, word in enumerate(argv, 1) if not _is_text(word)}
    if not odd:
        return list(argv)
    # The dot keeps a newline at the end of a word, which a shell drops from what a command prints.
    made = "".join(f"w{number}=$(printf '{_octal(word)}.');" for number, word in odd.items())
    words = (f'"${{w{number}%.}}"' if number in odd else f'"${{{number}}}"' for number in range(1, len(argv) + 1))
    given = ("" if number in odd else word for number, word in enumerate(argv, 1))
    return ["/bin/sh", "-c", f"{made}exec {' '.join(words)}", "sh", *given]


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _octal(word: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in os.fsencode(word))
