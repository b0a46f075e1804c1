"""A compiled filter as patterns of SQLite and PostgreSQL; see :mod:`connmgr.vault.glob`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import combinations, pairwise, takewhile

from connmgr.vault.glob import ACROSS, ANY, Alternative, Many, OneOf, Token
from connmgr.vault.path import SEPARATOR

Range = tuple[str, str]

_SPECIAL = "*?["
_SPECIAL_IN_LIKE = "%_\\"
_LAST = chr(sys.maxunicode)


def globs(alternative: Alternative, deepest: int) -> Iterator[tuple[int | None, str]]:
    """Yield patterns of SQLite's GLOB that together match exactly ``alternative``, for paths down to ``deepest``.

    Each comes with the number of segments that a path must have, or None for any number. GLOB's wildcards cross
    separators, but not in a path with no more separators than the pattern.
    """
    if impossible(alternative):
        return
    separators = alternative.count(SEPARATOR)
    across = alternative.count(ACROSS)
    if not across:
        yield separators + 1, loose_glob(alternative)
    elif not mixed(alternative):
        yield None, loose_glob(alternative)
    else:
        for depth in range(separators + 1, deepest + 1):
            for counts in _shared_out(depth - 1 - separators, across):
                yield depth, _glob(alternative, counts)


def mixed(alternative: Alternative) -> bool:
    """Whether some of its wildcards cross separators and others do not, which GLOB cannot express."""
    return ACROSS in alternative and any(not isinstance(token, str) and token != ACROSS for token in alternative)


def loose_glob(alternative: Alternative) -> str:
    """Return a GLOB that matches everything that ``alternative`` matches, and more if that is :func:`mixed`."""
    return _glob(alternative, [0] * len(alternative))


def like(alternative: Alternative) -> str:
    """Return a LIKE pattern for ``alternative``; exact if it has no sets and the path not more separators than it."""
    return "".join(map(_like_token, alternative))


def placed_sets(alternative: Alternative) -> list[tuple[int, OneOf]] | None:
    """Return the sets of characters, which LIKE cannot express, with their places in a matching path.

    Places count from 1 at the beginning, and from -1 at the end. Return None if a set is between tokens for any number
    of characters, because it then has no fixed place.
    """
    many = [at for at, token in enumerate(alternative) if isinstance(token, Many)]
    first, last = (many[0], many[-1]) if many else (len(alternative), -1)
    sets = [(at, token) for at, token in enumerate(alternative) if isinstance(token, OneOf) and token != ANY]
    if any(first < at < last for at, _ in sets):
        return None
    return [(at + 1 if at < first else at - len(alternative), token) for at, token in sets]


def regex(alternative: Alternative) -> str:
    """Return the regular expression of PostgreSQL that matches exactly ``alternative``."""
    return f"^{''.join(map(_regex_token, alternative))}$"


def prefix(alternative: Alternative) -> str:
    """Return the characters with which every match of ``alternative`` begins."""
    return "".join(takewhile(lambda token: isinstance(token, str), alternative))  # type: ignore[arg-type]


def after(prefix: str) -> str | None:
    """Return the first text by code points after all that begin with ``prefix``; None if there is none."""
    kept = prefix.rstrip(_LAST)
    if not kept:
        return None
    following = chr(ord(kept[-1]) + 1)
    # UTF-8 cannot encode a surrogate.
    return kept[:-1] + ("\ue000" if following == "\ud800" else following)


def impossible(alternative: Alternative) -> bool:
    """Whether it matches nothing."""
    return OneOf((), negated=False) in alternative


def _shared_out(count: int, among: int) -> Iterator[list[int]]:
    """Yield every way to split ``count`` into ``among`` numbers."""
    for bars in combinations(range(count + among - 1), among - 1):
        edges = (-1, *bars, count + among - 1)
        yield [right - left - 1 for left, right in pairwise(edges)]


def _glob(alternative: Alternative, separators_across: list[int]) -> str:
    """Return the pattern in which the n-th ``**`` has at least the n-th number of separators."""
    counts = iter(separators_across)
    return "".join(
        "*" + f"{SEPARATOR}*" * next(counts) if token == ACROSS else _glob_token(token) for token in alternative
    )


def _glob_token(token: Token) -> str:
    if isinstance(token, Many):
        return "*"
    if isinstance(token, OneOf):
        return _glob_set(token)
    return f"[{token}]" if token in _SPECIAL else token


def _glob_set(one: OneOf) -> str:
    """Return a set of GLOB, each member as a range: a hyphen after a single character would make a range too."""
    if not one.ranges:
        return "?"
    # "]" is literal only at the beginning, so a range cannot end with it.
    ranges = [part for span in one.ranges for part in _without(span, "]")]
    closing = "]" if any(low <= "]" <= high for low, high in one.ranges) else ""
    if not one.negated and not closing:
        # "^" negates at the beginning.
        ranges = [part for span in ranges for part in _without(span, "^")]
        if any(low <= "^" <= high for low, high in one.ranges):
            if not ranges:
                return "^"
            ranges.append(("^", "^"))
    members = closing + "".join(f"{low}-{high}" for low, high in ranges)
    return f"[{'^' if one.negated else ''}{members}]"


def _without(span: Range, character: str) -> Iterator[Range]:
    """Yield the parts of a range without one character."""
    low, high = span
    if not low <= character <= high:
        yield span
        return
    if low < character:
        yield low, chr(ord(character) - 1)
    if character < high:
        yield chr(ord(character) + 1), high


def _like_token(token: Token) -> str:
    if isinstance(token, Many):
        return "%"
    if isinstance(token, OneOf):
        return "_"
    return f"\\{token}" if token in _SPECIAL_IN_LIKE else token


def _regex_token(token: Token) -> str:
    if isinstance(token, Many):
        return ".*" if token.across else f"[^{SEPARATOR}]*"
    if isinstance(token, OneOf):
        ranges = [part for span in token.ranges for part in _without(span, SEPARATOR)]
        members = "".join(f"{_escaped(low)}-{_escaped(high)}" for low, high in ranges)
        return f"[^{SEPARATOR}{members}]" if token.negated else f"[{members}]"
    return _escaped(token)


def _escaped(character: str) -> str:
    return character if character.isalnum() or not character.isascii() else "\\" + character
