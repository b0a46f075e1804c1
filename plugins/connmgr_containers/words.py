"""Words that reach a runtime's server as JSON, which would change bytes that are not UTF-8."""

from __future__ import annotations

import os
from collections.abc import Sequence


def spelled(argv: Sequence[str]) -> list[str]:
    """Return an argv of UTF-8 words that runs ``argv``; a shell restores the words that are not UTF-8."""
    odd = {number: word for number, word in enumerate(argv, 1) if not _is_text(word)}
    if not odd:
        return list(argv)
    # A shell drops newlines from the end of a command's output; the dot keeps those of the word.
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
