"""Elements: the conditions of a rule or a parameter on one word.

Each answers two questions. A command that an *allow* rule matches is run, so the word must match exactly there
(``permits``). A command that a *deny* rule misses may be run, so a doubtful word counts as a match there (``catches``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from connmgr.errors import InvalidRequest
from connmgr.vault import names

MAX_WORD = 4096
"""Longest text in a rule, and longest word that a regular expression permits, in characters."""

MAX_PATTERN = 500
"""Longest regular expression, in characters."""

MAX_TEXTS = 500
"""Most texts of one ``in``."""

MAX_DIGITS = 18


class Element(Protocol):
    """The condition of a rule on one word."""

    @property
    def fixed(self) -> bool:
        """Whether the rule lists all words that it permits."""

    @property
    def bounded(self) -> bool:
        """Whether it permits nothing but listed words, or digits up to a number."""

    def permits(self, word: str) -> bool:
        """Whether the rule certainly means ``word``."""

    def catches(self, word: str) -> bool:
        """Whether the rule may mean ``word``."""


def refuse(place: str, message: str) -> InvalidRequest:
    """Return the error for the value at ``place``, such as ``rules[3].argv[2].re``."""
    return InvalidRequest(f"{place}: {message}")


@dataclass(frozen=True)
class OneOfTexts:
    """One of these texts, exactly."""

    texts: frozenset[str]
    fixed = bounded = True

    def permits(self, word: str) -> bool:
        return word in self.texts

    catches = permits


class Expression:
    """A regular expression that matches a whole word, in time linear in the word (RE2).

    It permits no word with a newline, because ``.`` or ``[^a]`` would otherwise allow a second line.
    """

    fixed = bounded = False

    def __init__(self, pattern: str, place: str) -> None:
        self._pattern, self._place = pattern, place
        self._strict = compiled(pattern, place)

    @cached_property
    def _liberal(self) -> Any:
        return compiled(self._pattern, self._place, dot_newline=True)

    def permits(self, word: str) -> bool:
        return len(word) <= MAX_WORD and "\n" not in word and self._strict.fullmatch(word.encode()) is not None

    def catches(self, word: str) -> bool:
        return len(word) > MAX_WORD or self._liberal.fullmatch(word.encode()) is not None


def compiled(pattern: str, place: str, *, dot_newline: bool = False) -> Any:
    """Return ``pattern`` as an RE2 expression over UTF-8.

    :raises InvalidRequest: RE2 does not support it (lookaround, backreferences), or it needs too much memory.
    """
    # Imported here, because only some rules need it.
    import re2

    if len(pattern) > MAX_PATTERN:
        raise refuse(place, f"Longer than {MAX_PATTERN} characters.")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 1 << 20
    options.dot_nl = dot_newline
    try:
        return re2.compile(pattern.encode(), options)
    except re2.error as error:
        told = error.args[0] if error.args else b""
        text = told.decode(errors="replace") if isinstance(told, bytes) else str(told)
        raise refuse(place, f"Not a regular expression of RE2: {text}.") from None


@dataclass(frozen=True)
class Span:
    """An integer in its shortest decimal form."""

    low: int
    high: int | None
    fixed = False

    @property
    def bounded(self) -> bool:
        return self.low >= 0 and self.high is not None

    def permits(self, word: str) -> bool:
        return (
            _INTEGER.fullmatch(word) is not None
            and self.low <= int(word)
            and (self.high is None or int(word) <= self.high)
        )

    def catches(self, word: str) -> bool:
        if _LOOSE_INTEGER.fullmatch(word) is None:
            return False
        if len(word) > MAX_DIGITS:
            return True
        return self.low <= int(word) and (self.high is None or int(word) <= self.high)


_INTEGER = re.compile(rf"0|-?[1-9][0-9]{{0,{MAX_DIGITS - 1}}}")
_LOOSE_INTEGER = re.compile(r"\s*[+-]?[0-9]+\s*")


class PathWord:
    """An absolute path that a pattern matches as a text; symbolic links on it are not resolved."""

    fixed = bounded = False

    def __init__(self, pattern: str, place: str) -> None:
        self._matches = names.Matcher(path_alternatives(pattern, place))

    def permits(self, word: str) -> bool:
        return len(word) <= MAX_WORD and is_clean(word) and self._matches(word)

    def catches(self, word: str) -> bool:
        if len(word) > MAX_WORD:
            return True
        return word[:1] == "/" and (not is_clean(word) or self._matches(word))


_UNCLEAN = re.compile(r"//|/\.{1,2}(?:/|\Z)|./\Z", re.DOTALL)


def is_clean(path: str) -> bool:
    """Whether ``path`` is absolute, without ``.``, ``..`` and empty segments."""
    return path[:1] == "/" and _UNCLEAN.search(path) is None


def path_alternatives(pattern: str, place: str) -> list[names.Alternative]:
    """Return the alternatives of a pattern over absolute paths.

    :raises InvalidRequest: it is malformed, or matches only paths with ``.``, ``..`` or empty segments.
    """
    if not is_clean(pattern):
        raise refuse(place, "Not an absolute path without `.`, `..` and empty segments.")
    try:
        return names.compile_exact_pattern(pattern)
    except InvalidRequest as error:
        raise refuse(place, error.message) from None


def read_element(raw: object, place: str) -> Element:
    """Return the element of a rule at ``place``.

    :raises InvalidRequest: it is malformed.
    """
    if isinstance(raw, str):
        return OneOfTexts(frozenset({read_text(raw, place)}))
    if not isinstance(raw, Mapping) or len(raw) != 1 or next(iter(raw)) not in _KINDS:
        raise refuse(place, f"Neither a text nor an object with one of {', '.join(_KINDS)}.")
    [(kind, value)] = raw.items()
    return _KINDS[kind](value, f"{place}.{kind}")


def read_text(raw: object, place: str, most: int = MAX_WORD) -> str:
    """Return ``raw`` if it is a text of at most ``most`` characters that can be a word; else raise InvalidRequest."""
    if not isinstance(raw, str):
        raise refuse(place, "Not a text.")
    if len(raw) > most:
        raise refuse(place, f"Longer than {most} characters.")
    if not can_be_words([raw]):
        raise refuse(place, "It holds a NUL character or a lone surrogate.")
    return raw


def can_be_words(texts: Sequence[str]) -> bool:
    """Whether ``texts`` can be passed to a program unchanged: encodable, and without NUL."""
    joined = "".join(texts)
    try:
        joined.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in joined


def read_list(raw: object, place: str, most: int) -> list[Any]:
    """Return ``raw`` if it is a list of 1 to ``most`` members; else raise InvalidRequest."""
    if not isinstance(raw, list) or not raw:
        raise refuse(place, "Not a list with members.")
    if len(raw) > most:
        raise refuse(place, f"More than {most} members.")
    return raw


def _read_expression(raw: object, place: str) -> Element:
    return Expression(read_text(raw, place, MAX_PATTERN), place)


def _read_texts(raw: object, place: str) -> Element:
    texts = read_list(raw, place, MAX_TEXTS)
    return OneOfTexts(frozenset(read_text(text, f"{place}[{at}]") for at, text in enumerate(texts)))


def _read_span(raw: object, place: str) -> Element:
    if not isinstance(raw, Mapping) or not raw.keys() <= {"min", "max"}:
        raise refuse(place, "Not an object with min, max or both.")
    for name, bound in raw.items():
        if isinstance(bound, bool) or not isinstance(bound, int) or abs(bound) >= 10**MAX_DIGITS:
            raise refuse(f"{place}.{name}", f"Not an integer of at most {MAX_DIGITS} digits.")
    # A program may read a word with a minus as an option.
    low, high = raw.get("min", 0), raw.get("max")
    if high is not None and high < low:
        raise refuse(place, f"No integer is between {low} and {high}.")
    return Span(low, high)


def _read_path(raw: object, place: str) -> Element:
    return PathWord(read_text(raw, place), place)


_KINDS = {"re": _read_expression, "in": _read_texts, "integer": _read_span, "path": _read_path}
