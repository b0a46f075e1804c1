"""A compiled filter in the pattern languages of SQLite and PostgreSQL; see :mod:`connmgr.vault.glob`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations, pairwise

from connmgr.vault.glob import ACROSS, Alternative, Many, OneOf, Token
from connmgr.vault.path import SEPARATOR

Range = tuple[str, str]

_SPECIAL = "*?["


def globs(alternative: Alternative, deepest: int) -> Iterator[tuple[int | None, str]]:
    """Yield the patterns of SQLite's GLOB that are together exactly ``alternative``, for paths down to ``deepest``.

    Each comes with the number of segments that a path must have, or None where it need not be known. GLOB's wildcards
    cross separators; but where a path has no more of them than the pattern, each is taken by one of the pattern's.
    """
    if _impossible(alternative):
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
    """Whether it has wildcards that cross separators and others that must not, which GLOB cannot tell apart."""
    return ACROSS in alternative and any(not isinstance(token, str) and token != ACROSS for token in alternative)


def loose_glob(alternative: Alternative) -> str:
    """Return a pattern of SQLite's GLOB that matches what ``alternative`` does, and more where that is mixed."""
    return _glob(alternative, [0] * len(alternative))


def regex(alternatives: Iterable[Alternative]) -> str:
    """Return the regular expression of PostgreSQL that is exactly ``alternatives``."""
    possible = (one for one in alternatives if not _impossible(one))
    bodies = ["".join(map(_regex_token, one)) for one in possible]
    return f"^(?:{'|'.join(bodies)})$" if bodies else "^(?!)"


def _impossible(alternative: Alternative) -> bool:
    return OneOf((), negated=False) in alternative


def _shared_out(count: int, among: int) -> Iterator[list[int]]:
    """Yield every way to share ``count`` things out among that many."""
    for bars in combinations(range(count + among - 1), among - 1):
        edges = (-1, *bars, count + among - 1)
        yield [right - left - 1 for left, right in pairwise(edges)]


def _glob(alternative: Alternative, separators_across: list[int]) -> str:
    """Return the pattern whose n-th ``**`` holds the n-th number of separators, at least."""
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
    """Return a set in GLOB's terms: each member a range, since a hyphen after a single one would make a range too."""
    if not one.ranges:
        return "?"
    # "]" can stand at the beginning alone, so that it cannot be an end of a range.
    ranges = [part for span in one.ranges for part in _without(span, "]")]
    closing = "]" if any(low <= "]" <= high for low, high in one.ranges) else ""
    if not one.negated and not closing:
        # "^" means something else at the beginning.
        ranges = [part for span in ranges for part in _without(span, "^")]
        if any(low <= "^" <= high for low, high in one.ranges):
            if not ranges:
                return "^"
            ranges.append(("^", "^"))
    members = closing + "".join(f"{low}-{high}" for low, high in ranges)
    return f"[{'^' if one.negated else ''}{members}]"


def _without(span: Range, character: str) -> Iterator[Range]:
    """Yield what is left of a range without one character of it."""
    low, high = span
    if not low <= character <= high:
        yield span
        return
    if low < character:
        yield low, chr(ord(character) - 1)
    if character < high:
        yield chr(ord(character) + 1), high


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
