"""Names and ids: the entries of every vault, ids of elevated connections, names in paths, and filters over paths.

A *path* is the names from the first segment to the last, lower-cased and joined by ``/``. A *filter* is a pattern that
must match a whole path, and ignores case:

===================  ==================================================================================================
``*``                any characters of one segment; alone it matches everything
``**``               any characters, separators included; between separators it may match no segment at all: ``x/**``
                     matches ``x``, ``**/x`` too, and ``x/**/y`` matches ``x/y``
``?``                one character of a segment
``[abc]`` ``[a-z]``  one character that is in a set, with ``!`` at the beginning one that is not
``{a,b}``            either text; braces may be nested
===================  ==================================================================================================

A special character in brackets matches itself: ``[*]``. A pattern is compiled once, then matched in SQLite or in
PostgreSQL by :mod:`connmgr.vault.search`, or here by :class:`Matcher`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple, TypeVar

from connmgr.errors import InvalidRequest

ALL_CONNECTIONS = "bfb0b51a-e7a3-4ce4-8878-8d4cb5828d6c"
"""The root of the categories."""

DEFAULT = "97458c07-75c0-4f9d-a06e-92d8cdf67c40"
"""The default category of connections."""

LOCAL = "f0ec68aa-63f5-405c-b178-9a4454556d6b"
"""The connection to the machine that the daemon runs on."""

SEPARATOR = "/"
MAX_NAME_CHARACTERS = 255
"""Longest name: PostgreSQL cannot index values of any length."""

ELEVATION_SEPARATOR = "+"
"""Between the parts of an elevated connection's id. It stands in no uuid; a user's name may contain it."""

OWNER = "owner"
"""The holder of the elevated connections that no token has asked for."""

MAX_CHARACTERS = 1000
"""Longest pattern."""

MAX_ALTERNATIVES = 64
"""Most patterns that one pattern may expand to, through braces and segments that ``**`` may omit."""

MAX_BRACE_DEPTH = 10


def fold(text: str) -> str:
    """Return ``text`` in lower case by character; :meth:`str.lower` would depend on neighbouring characters."""
    return text.lower() if text.isascii() else "".join(map(str.lower, text))


def check_name(name: str) -> None:
    """Raise :class:`InvalidRequest` if the new name of a connection or category is blank: no command could name it.

    Older versions accepted such names; what has one keeps it.
    """
    if not name.strip():
        raise InvalidRequest("name: Blank, so that no command could name it.")


def segment(name: str) -> str:
    """Return ``name`` as in a path, lower-cased, ``_`` for ``/``; raise :class:`InvalidRequest` if it is too long."""
    if len(name) > MAX_NAME_CHARACTERS:
        raise InvalidRequest(f"name: longer than {MAX_NAME_CHARACTERS} characters.")
    return fold(name).replace(SEPARATOR, "_")


class Elevation(NamedTuple):
    """What an elevated connection is derived from; ``holder`` is the id of a token, or :data:`OWNER`."""

    base: str
    holder: str
    user: str

    @property
    def id(self) -> str:
        """The id of the elevated connection."""
        return ELEVATION_SEPARATOR.join(self)


def elevation_of(id: str) -> Elevation | None:
    """Return the parts of the id of an elevated connection; None for any other connection."""
    parts = id.split(ELEVATION_SEPARATOR, 2) if ELEVATION_SEPARATOR in id else []
    return Elevation(*parts) if len(parts) == 3 and all(parts) else None


def base_of(id: str) -> str:
    """Return the id of the connection that an elevated one runs over, or ``id`` itself."""
    elevation = elevation_of(id)
    return id if elevation is None else elevation.base


def with_elevation(base: str, elevation: str) -> str:
    """Return the id of a connection from the id of the connection below and the rest, which may be empty."""
    return f"{base}{ELEVATION_SEPARATOR}{elevation}" if elevation else base


@dataclass(frozen=True)
class CharacterSet:
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


Token = str | CharacterSet | Many
Alternative = tuple[Token, ...]
Shape = TypeVar("Shape")

ANY = CharacterSet()
WITHIN, ACROSS = Many(across=False), Many(across=True)


def compile_pattern(pattern: str, *, below_root: bool = False) -> list[Alternative] | None:
    """Return the alternatives of ``pattern``, one of which must match; None for ``*``, which matches all.

    With ``below_root`` a path matches with and without its first segment.
    :raises InvalidRequest: the pattern is malformed, too long, or has too many alternatives.
    """
    if pattern in ("*", "**"):
        return None
    alternatives = compile_exact_pattern(fold(pattern))
    return (
        alternatives if not below_root else [alternative for each in alternatives for alternative in beneath_root(each)]
    )


def compile_exact_pattern(pattern: str) -> list[Alternative]:
    """Return the alternatives of a case-sensitive ``pattern``, as for paths on a remote.

    :raises InvalidRequest: as :func:`compile_pattern`.
    """
    if len(pattern) > MAX_CHARACTERS:
        raise InvalidRequest(f"The filter is too long: at most {MAX_CHARACTERS} characters.")
    expanded = map(_merged, _limited(_FilterParser(pattern).text()))
    return list(
        dict.fromkeys(_limited(shorter for alternative in expanded for shorter in _without_segments(alternative)))
    )


def beneath_root(alternative: Alternative) -> tuple[Alternative, Alternative]:
    """Return alternatives for the paths that ``alternative`` matches, without and with a first segment before them."""
    return alternative, (WITHIN, SEPARATOR, *alternative)


def divided(pattern: str) -> list[tuple[Alternative, Alternative]]:
    """Return pairs of patterns; a path matches ``pattern`` if a pair matches the parts around one of its separators."""
    # Empty for a pattern that matches no separator, and for `*`, which matches all.
    pairs = (pair for alternative in compile_pattern(pattern) or [] for pair in _divided(alternative))
    return list(dict.fromkeys(_limited(pairs)))


def _divided(tokens: Alternative) -> Iterator[tuple[Alternative, Alternative]]:
    for at, token in enumerate(tokens):
        # A token across separators may match the end of one part, the separator, and the beginning of the other.
        across = token == ACROSS
        if across or token == SEPARATOR:
            yield tokens[: at + across], tokens[at + 1 - across :]


def _limited(alternatives: Iterable[Shape]) -> list[Shape]:
    few: list[Shape] = []
    for alternative in alternatives:
        few.append(alternative)
        if len(few) > MAX_ALTERNATIVES:
            raise InvalidRequest(f"The filter has too many alternatives: at most {MAX_ALTERNATIVES}.")
    return few


class _FilterParser:
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
        # Lazily: a few braces multiply to more alternatives than fit into memory, and the caller counts them as they
        # come.
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
            # Counted here too, for braces within braces would multiply before the whole pattern is counted.
            alternatives += _limited(self.text(until=",}"))
            if self._at == len(self._pattern):
                raise InvalidRequest("The filter has a { without its }; [{] stands for the character.")
            self._at += 1
            if self._pattern[self._at - 1] == "}":
                self._open -= 1
                return alternatives

    def _brackets(self) -> CharacterSet:
        negated = self._pattern[self._at : self._at + 1] == "!"
        start = self._at + negated
        # A leading bracket is literal.
        end = self._pattern.find("]", start + 1)
        if end < 0:
            raise InvalidRequest("The filter has a [ without its ]; [[] stands for the character.")
        self._at = end + 1
        return CharacterSet(tuple(_ranges(self._pattern[start:end])), negated)


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
        self._tokens: list[tuple[int, str | CharacterSet]] = []
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
        # A leading `*` may match nothing, so the position behind it is reached before any character.
        positions = self._starts | (self._starts & self._many) << 1
        for character in path:
            # Only `**` may consume a separator.
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
                if (character in token if isinstance(token, CharacterSet) else character == token)
            )
        return self._passed[character]
