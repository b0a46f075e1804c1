"""What somebody may have meant who has written a name that nothing bears."""

from __future__ import annotations

import re
from collections.abc import Mapping

from connmgr.printable import visible

MAX_SUGGESTIONS = 3
LEAST_LIKENESS = 0.6
"""From 0, nothing in common, to 1, equal, as difflib counts it."""

_WILDCARDS = re.compile(r"[*?{}\[\]!]+")


def did_you_mean(word: str, meant: Mapping[str, str]) -> str:
    """Return a sentence, after a blank, with what somebody may have meant by ``word``; nothing if that is unlike all.

    ``meant`` has what ``word`` is compared with, and what is shown for it. Letter case and the wildcards of a GLOB do
    not count.
    """
    # Loading it takes longer than the look.
    from difflib import get_close_matches

    plain = _WILDCARDS.sub("", word).lower()
    folded = {name.lower(): shown for name, shown in meant.items()}
    found = get_close_matches(plain, folded, MAX_SUGGESTIONS, LEAST_LIKENESS)
    told = dict.fromkeys(visible(folded[name]) for name in found)
    return f" Did you mean {', '.join(told)}?" if told else ""
