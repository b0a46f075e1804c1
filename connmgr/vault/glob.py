"""Filters over paths: compiled once, then matched in SQLite, in PostgreSQL, or here.

A pattern must match the whole path, and ignores case. ``*`` matches any characters of one segment, ``**`` any
characters, separators included, ``?`` one character of a segment, ``[abc]``, ``[a-z]`` and ``[!abc]`` one character
that is in a set or not, ``{a,b}`` either text; braces may be nested. A ``**`` between separators may match no segment
at all: ``x/**`` matches ``x``, ``**/x`` too, and ``x/**/y`` matches ``x/y``. ``*`` alone matches everything. A special
character in brackets matches itself: ``[*]``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

from connmgr.errors import InvalidRequest
from connmgr.vault.path import SEPARATOR, fold

MAX_CHARACTERS = 1000
"""Longest pattern."""

MAX_ALTERNATIVES = 64
"""Most patterns that one pattern may expand to, through braces and segments that ``**`` may omit."""


MAX_BRACE_DEPTH = 10


@dataclass(frozen=True)
class OneOf:
    """One character of a segment: in a set, or (``negated``) not in it; each range is inclusive."""

    ranges: tuple[tuple[str, str], ...] = ()
    negated: bool = True

    def __contains__(self, character: str) -> bool:
        inside = any(low <= character <= high for low, high in self.ranges)
        return character != SEPARATOR and inside is not self.negated


@dataclass(frozen=True)
class Many:
    """Any number of characters: of one segment, or across segments."""

    across: bool


Token = str | OneOf | Many
Alternative = tuple[Token, ...]
Shape = TypeVar("Shape")

ANY = OneOf()
WITHIN, ACROSS = Many(across=False), Many(across=True)


def compile(pattern: str, *, below_root: bool = False) -> list[Alternative] | None:
    """Return the alternatives of ``pattern``, one of which must match; None for ``*``, which matches all.
    With ``below_root`` a path matches with and without its first segment.
    :raises InvalidRequest: the pattern is malformed, too long, or has too many alternatives.
    """
    if pattern in ("*", "**"):
        return None
    alternatives = compile_exact(fold(pattern))
    return alternatives if not below_root else [one for each in alternatives for one in beneath_root(each)]


def compile_exact(pattern: str) -> list[Alternative]:
    """Return the alternatives of a case-sensitive ``pattern``, as for paths on a far side.

    :raises InvalidRequest: as :func:`compile`.
    """
    if len(pattern) > MAX_CHARACTERS:
        raise InvalidRequest(f"The filter is too long: at most {MAX_CHARACTERS} characters.")
    expanded = map(_merged, _limited(_Parser(pattern).text()))
    return list(dict.fromkeys(_limited(shorter for one in expanded for shorter in _without_segments(one))))


def beneath_root(alternative: Alternative) -> tuple[Alternative, Alternative]:
    """Return alternatives for the paths that ``alternative`` matches, without and with a first segment before them."""
    return alternative, (WITHIN, SEPARATOR, *alternative)


def divided(pattern: str) -> list[tuple[Alternative, Alternative]]:
    """Return pairs of patterns; a path matches ``pattern`` if a pair matches the parts around one of its separators."""
    # Empty for a pattern that matches no separator, and for `*`, which matches all.
    pairs = (pair for alternative in compile(pattern) or [] for pair in _divided(alternative))
    return list(dict.fromkeys(_limited(pairs)))


def _divided(tokens: Alternative) -> Iterator[tuple[Alternative, Alternative]]:
    for at, token in enumerate(tokens):
        # A token across separators may match the end of one part, the separator, and the beginning of the other.
        kept = token == ACROSS
        if kept or token == SEPARATOR:
            yield tokens[: at + kept], tokens[at + 1 - kept :]


def _limited(alternatives: Iterable[Shape]) -> list[Shape]:
    kept: list[Shape] = []
    for alternative in alternatives:
        kept.append(alternative)
        if len(kept) > MAX_ALTERNATIVES:
            raise InvalidRequest(f"The filter has too many alternatives: at most {MAX_ALTERNATIVES}.")
    return kept


class _Parser:
    """Reads a pattern from left to right."""

    def __init__(self, pattern: str) -> None:
        self._pattern, self._at, self._open = pattern, 0, 0

    def text(self, until: str = "") -> Iterator[Alternative]:
        """Read up to one of the characters ``until``, or to the end, and yield the alternatives read."""
        parts: list[list[Alternative]] = []
        while self._at < len(self._pattern) and self._pattern[self._at] not in until:
            character = self._pattern[self._at]
            self._at += 1
            if character == "{":
                parts.append(self._braces())
            elif character == "[":
                parts.append([(self._brackets(),)])
            elif character == "*":
                parts.append([(self._stars(),)])
            else:
                parts.append([(ANY if character == "?" else character,)])
        return (sum(chosen, ()) for chosen in product(*parts))

    def _stars(self) -> Many:
        start = self._at
        while self._pattern[self._at : self._at + 1] == "*":
            self._at += 1
        return ACROSS if self._at > start else WITHIN

    def _braces(self) -> list[Alternative]:
        self._open += 1
        if self._open > MAX_BRACE_DEPTH:
            raise InvalidRequest(f"The filter has braces within braces: at most {MAX_BRACE_DEPTH} levels.")
        alternatives: list[Alternative] = []
        while True:
            alternatives += _limited(self.text(until=",}"))
            if self._at == len(self._pattern):
                raise InvalidRequest("The filter has a { without its }; [{] stands for the character.")
            self._at += 1
            if self._pattern[self._at - 1] == "}":
                self._open -= 1
                return alternatives

    def _brackets(self) -> OneOf:
        negated = self._pattern[self._at : self._at + 1] == "!"
        start = self._at + negated
        # A leading bracket is literal.
        end = self._pattern.find("]", start + 1)
        if end < 0:
            raise InvalidRequest("The filter has a [ without its ]; [[] stands for the character.")
        self._at = end + 1
        return OneOf(tuple(_ranges(self._pattern[start:end])), negated)


def _ranges(members: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(members):
        wide = at + 2 < len(members) and members[at + 1] == "-"
        low, high = members[at], members[at + 2 * wide]
        at += 1 + 2 * wide
        if low <= high and (low, high) != (SEPARATOR, SEPARATOR):
            yield low, high


def _merged(tokens: Alternative) -> Alternative:
    """Merge adjacent tokens for any number of characters, which braces can produce."""
    merged: list[Token] = []
    for token in tokens:
        if isinstance(token, Many) and merged and isinstance(merged[-1], Many):
            merged[-1] = ACROSS if ACROSS in (token, merged[-1]) else WITHIN
        else:
            merged.append(token)
    return tuple(merged)


def _without_segments(tokens: Alternative, start: int = 0) -> Iterator[Alternative]:
    """Yield ``tokens``, and each variant in which a ``**`` between separators matches no segment."""
    for at in range(start, len(tokens)):
        before, after = tokens[:at], tokens[at + 1 :]
        opens, closes = before[-1:] in ((), (SEPARATOR,)), after[:1] in ((), (SEPARATOR,))
        if tokens[at] == ACROSS and opens and closes and (before or after):
            yield from _without_segments(before + after[1:] if after else before[:-1], at)
            yield from _without_segments(tokens, at + 1)
            return
    yield tokens


class Matcher:
    """Finds which of several alternatives match a path, in one step per character, however many there are.

    The positions within all alternatives are the bits of one number, which advance together.
    """

    def __init__(self, alternatives: Iterable[Alternative]) -> None:
        self._starts = self._ends = self._across = self._many = 0
        self._tokens: list[tuple[int, str | OneOf]] = []
        self._spans: list[tuple[int, int]] = []
        bit = 1
        for alternative in alternatives:
            start = bit
            for token in alternative:
                if isinstance(token, Many):
                    self._many |= bit
                    self._across |= bit if token.across else 0
                else:
                    self._tokens.append((bit, token))
                bit <<= 1
            self._starts |= start
            self._ends |= bit
            self._spans.append((bit, 2 * bit - start))
            bit <<= 1
        self._passed: dict[str, int] = {}

    def __call__(self, path: str) -> bool:
        """Whether one of the alternatives matches ``path``."""
        return bool(self._after(path) & self._ends)

    def which(self, path: str) -> list[int]:
        """Return the indices of the alternatives that match ``path``."""
        positions = self._after(path)
        return [place for place, (end, _) in enumerate(self._spans) if positions & end]

    def which_go_on(self, beginning: str) -> list[int]:
        """Return the indices of the alternatives that may match a path that begins with ``beginning``."""
        positions = self._after(beginning)
        return [place for place, (_, span) in enumerate(self._spans) if positions & span]

    def _after(self, path: str) -> int:
        """Return the positions that ``path`` leads to."""
        positions = self._starts | (self._starts & self._many) << 1
        for character in path:
            stays = self._across if character == SEPARATOR else self._many
            positions = (positions & self._passes(character)) << 1 | (positions & stays)
            # Tokens for any number of characters are never adjacent, so one step reaches the token after one.
            positions |= (positions & self._many) << 1
        return positions

    def _passes(self, character: str) -> int:
        """Return the positions whose token matches ``character``."""
        if character not in self._passed:
            self._passed[character] = sum(
                bit
                for bit, token in self._tokens
                if (character in token if isinstance(token, OneOf) else character == token)
            )
        return self._passed[character]
