"""Elements: the conditions of a rule or a parameter on one word.

Each answers two questions. A command that an *allow* rule matches is run, so the word must match exactly there
(``permits``). A command that a *deny* rule misses may be run, so a doubtful word counts as a match there (``catches``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
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


class JsonValue:
    """A value of a rule or of a saved command, and its ``place`` there, such as ``rules[3].argv[2].re``.

    Its methods raise InvalidRequest, with the place, for a value of another form.
    """

    def __init__(self, value: Any, place: str) -> None:
        self.value, self.place = value, place

    def refused(self, message: str) -> InvalidRequest:
        """Return the error that says what is wrong with this value."""
        return InvalidRequest(f"{self.place}: {message}")

    def text(self, most: int = MAX_WORD) -> str:
        """Return the value if it is a text of at most ``most`` characters that can be a word."""
        if not isinstance(self.value, str):
            raise self.refused("Not a text.")
        if len(self.value) > most:
            raise self.refused(f"Longer than {most} characters.")
        if not can_be_words([self.value]):
            raise self.refused("It holds a NUL character or a lone surrogate.")
        return self.value

    def flag(self) -> bool:
        """Return the value if it is true or false."""
        if not isinstance(self.value, bool):
            raise self.refused("Neither true nor false.")
        return self.value

    def items(self, most: int) -> list[JsonValue]:
        """Return the members of a list that has 1 to ``most``."""
        if not isinstance(self.value, list) or not self.value:
            raise self.refused("Not a list with at least one member.")
        if len(self.value) > most:
            raise self.refused(f"More than {most} members.")
        return [JsonValue(one, f"{self.place}[{at}]") for at, one in enumerate(self.value)]

    def members(self, what: str = "Not an object.", most: int | None = None) -> dict[str, JsonValue]:
        """Return the members of an object that has at most ``most``; ``what`` is the message about anything else."""
        if not isinstance(self.value, Mapping) or (most is not None and len(self.value) > most):
            raise self.refused(what)
        return {name: JsonValue(one, f"{self.place}.{name}") for name, one in self.value.items()}

    def program(self) -> str:
        """Return the value if it can name a program in an argv."""
        name = self.value
        if not isinstance(name, str) or not name or ("/" in name and (not is_clean(name) or name == "/")):
            message = "The program is a text: a name, or an absolute path without `.`, `..` and empty segments."
            raise self.refused(message)
        return self.text()


def can_be_words(texts: Sequence[str]) -> bool:
    """Whether ``texts`` can be passed to a program unchanged: encodable, and without NUL."""
    joined = "".join(texts)
    try:
        joined.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in joined


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

    def __init__(self, pattern: JsonValue) -> None:
        self._pattern = pattern
        self._strict = compiled(pattern)

    @cached_property
    def _liberal(self) -> Any:
        return compiled(self._pattern, dot_newline=True)

    def permits(self, word: str) -> bool:
        return len(word) <= MAX_WORD and "\n" not in word and self._strict.fullmatch(word.encode()) is not None

    def catches(self, word: str) -> bool:
        return len(word) > MAX_WORD or self._liberal.fullmatch(word.encode()) is not None


def compiled(pattern: JsonValue, *, dot_newline: bool = False) -> Any:
    """Return ``pattern`` as an RE2 expression over UTF-8.

    :raises InvalidRequest: RE2 does not support it (lookaround, backreferences), or it is too long or too large.
    """
    # Imported here, because only some rules need it.
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = 1 << 20
    options.dot_nl = dot_newline
    try:
        return re2.compile(pattern.text(MAX_PATTERN).encode(), options)
    except re2.error as error:
        why = error.args[0] if error.args else b""
        text = why.decode(errors="replace") if isinstance(why, bytes) else str(why)
        raise pattern.refused(f"Not a regular expression of RE2: {text}.") from None


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

    def __init__(self, pattern: JsonValue) -> None:
        self._matches = names.Matcher(path_alternatives(pattern))

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


def path_alternatives(pattern: JsonValue) -> list[names.Alternative]:
    """Return the alternatives of a pattern over absolute paths.

    :raises InvalidRequest: it is malformed, or matches only paths with ``.``, ``..`` or empty segments.
    """
    text = pattern.text()
    if not is_clean(text):
        raise pattern.refused("Not an absolute path without `.`, `..` and empty segments.")
    try:
        return names.compile_exact_pattern(text)
    except InvalidRequest as error:
        raise pattern.refused(error.message) from None


def read_element(one: JsonValue) -> Element:
    """Return the element of a rule or parameter.

    :raises InvalidRequest: it is malformed.
    """
    if isinstance(one.value, str):
        return OneOfTexts(frozenset({one.text()}))
    what = f"Neither a text nor an object with one of {', '.join(_KINDS)}."
    members = one.members(what)
    if len(members) != 1 or (kind := next(iter(members))) not in _KINDS:
        raise one.refused(what)
    return _KINDS[kind](members[kind])


def _read_span(one: JsonValue) -> Element:
    what = "Not an object with min, max or both."
    bounds = one.members(what)
    if not bounds.keys() <= {"min", "max"}:
        raise one.refused(what)
    for bound in bounds.values():
        if isinstance(bound.value, bool) or not isinstance(bound.value, int) or abs(bound.value) >= 10**MAX_DIGITS:
            raise bound.refused(f"Not an integer of at most {MAX_DIGITS} digits.")
    # A program may read a word with a minus as an option.
    low, high = one.value.get("min", 0), one.value.get("max")
    if high is not None and high < low:
        raise one.refused(f"No integer is between {low} and {high}.")
    return Span(low, high)


_KINDS: Mapping[str, Callable[[JsonValue], Element]] = {
    "re": Expression,
    "in": lambda one: OneOfTexts(frozenset(each.text() for each in one.items(MAX_TEXTS))),
    "integer": _read_span,
    "path": PathWord,
}
