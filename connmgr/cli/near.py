"""Suggestions for a name that does not exist."""

from __future__ import annotations

import re
from collections.abc import Mapping

from connmgr.printable import visible

MAX_SUGGESTIONS = 3
MIN_LIKENESS = 0.6
"""A ratio of difflib: 0 for nothing in common, 1 for equal."""

_WILDCARDS = re.compile(r"[*?{}\[\]!]+")


def did_you_mean(word: str, meant: Mapping[str, str]) -> str:
    """Return a sentence, after a blank, with suggestions for ``word``; ``""`` if no name is like it.

    ``meant`` maps each name to what is shown for it. Letter case and the wildcards of a GLOB do not count.
    """
    # Importing it takes longer than the comparison.
    from difflib import get_close_matches

    plain = _WILDCARDS.sub("", word).lower()
    folded = {name.lower(): shown for name, shown in meant.items()}
    found = get_close_matches(plain, folded, MAX_SUGGESTIONS, MIN_LIKENESS)
    told = dict.fromkeys(visible(folded[name]) for name in found)
    return f" Did you mean {', '.join(told)}?" if told else ""
