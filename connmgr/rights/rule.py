"""The rules of a token, parsed from JSON, and their elements: the conditions of a rule or a parameter on one word.

Each element answers two questions. A command that an *allow* rule matches is run, so the word must match exactly there
(``permits``). A command that a *deny* rule misses may be run, so a doubtful word counts as a match there (``catches``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Literal, Protocol

from connmgr.contract.message import time_from_json
from connmgr.errors import InvalidRequest
from connmgr.rights import programs
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
        return [JsonValue(item, f"{self.place}[{at}]") for at, item in enumerate(self.value)]

    def members(self, what: str = "Not an object.", most: int | None = None) -> dict[str, JsonValue]:
        """Return the members of an object that has at most ``most``; ``what`` is the message about anything else."""
        if not isinstance(self.value, Mapping) or (most is not None and len(self.value) > most):
            raise self.refused(what)
        return {name: JsonValue(member, f"{self.place}.{name}") for name, member in self.value.items()}

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
        # RE2 takes bytes. Over UTF-8 of a word without lone surrogates, which can_be_words() has checked, both are
        # alike.
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
        # A program may cut a longer number off, or let it wrap: it may become any number.
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
        # `/srv/../etc` or `/srv//x` leads somewhere else than it reads, so a rule that denies means it too.
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


def read_element(element: JsonValue) -> Element:
    """Return the element of a rule or parameter.

    :raises InvalidRequest: it is malformed.
    """
    if isinstance(element.value, str):
        return OneOfTexts(frozenset({element.text()}))
    what = f"Neither a text nor an object with one of {', '.join(_ELEMENTS)}."
    members = element.members(what)
    if len(members) != 1 or (kind := next(iter(members))) not in _ELEMENTS:
        raise element.refused(what)
    return _ELEMENTS[kind](members[kind])


def _read_span(span: JsonValue) -> Element:
    what = "Not an object with min, max or both."
    bounds = span.members(what)
    if not bounds.keys() <= {"min", "max"}:
        raise span.refused(what)
    for bound in bounds.values():
        if isinstance(bound.value, bool) or not isinstance(bound.value, int) or abs(bound.value) >= 10**MAX_DIGITS:
            raise bound.refused(f"Not an integer of at most {MAX_DIGITS} digits.")
    # A program may read a word with a minus as an option.
    low, high = span.value.get("min", 0), span.value.get("max")
    if high is not None and high < low:
        raise span.refused(f"No integer is between {low} and {high}.")
    return Span(low, high)


_ELEMENTS: Mapping[str, Callable[[JsonValue], Element]] = {
    "re": Expression,
    "in": lambda one: OneOfTexts(frozenset(each.text() for each in one.items(MAX_TEXTS))),
    "integer": _read_span,
    "path": PathWord,
}


Effect = Literal["allow", "ask", "deny"]

MAX_ELEMENTS = 100
"""Most elements of an ``argv``, variables of an ``env``, names of a ``user`` or filters of ``connections``."""

MAX_GUARDED = 1 << 17
"""Most characters of a command's text that a rule searches; a longer text counts as a match."""

READ, WRITE = "fs.read", "fs.write"
FS_ACTIONS = (READ, WRITE)
"""The actions of rules over paths."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The members of rules of every kind."""

    index: int
    effect: Effect
    name: str | None
    connections: tuple[names.Alternative, ...] | None
    """One of them must match the connection; None for every connection."""

    users: frozenset[str] | None


@dataclass(frozen=True, kw_only=True)
class RunRule(Rule):
    """The members of rules over commands: what may accompany the words of a command."""

    env: Mapping[str, Element]
    cwd: Element | None
    stdin: bool | None
    pty: bool

    def permits_surroundings(
        self, env: Mapping[str, str], cwd: str | None, *, has_stdin: bool, has_pty: bool, program: str
    ) -> bool:
        """Whether a command of ``program`` may have this environment, directory, input and terminal."""
        if has_pty and not self.pty:
            return False
        if any(name not in self.env or not self.env[name].permits(value) for name, value in env.items()):
            return False
        if (self.cwd is None) != (cwd is None) or (cwd is not None and self.cwd and not self.cwd.permits(cwd)):
            return False
        takes_stdin = not programs.runs_others(program) if self.stdin is None else self.stdin
        return takes_stdin or not has_stdin


@dataclass(frozen=True)
class Only:
    """The requests that a person who approves a pattern has seen: of one token, on connections as they were then."""

    token: str
    digests: Mapping[str, str]
    """By the ids of connections: the digests of their data and of all that they run over."""

    def holds(self, tokens: Collection[str], connection: str, digest: str | None) -> bool:
        """Whether a request is of the token or a descendant, and its connection unchanged since the approval."""
        return self.token in tokens and digest is not None and self.digests.get(connection) == digest


@dataclass(frozen=True, kw_only=True)
class ArgvRule(RunRule):
    """A rule over the words of a command."""

    program: str
    elements: tuple[Element, ...]
    """The conditions on the words after the program, one each."""

    rest: Element | None
    """The condition on each further word; None allows none."""

    until: datetime | None = None
    """When it ends; None: with its token."""

    answers: frozenset[int] = frozenset()
    """The indices of rules that ask, before which this one goes: somebody has approved what it means."""

    only: Only | None = None
    """For whom and where somebody has approved it; None: for every request that the rule is asked about."""

    void: bool = False
    """Whether it permits nothing: an older version stored it, and this one accepts no such rule."""

    def permits(self, words: tuple[str, ...]) -> bool:
        """Whether the rule certainly means these words, which follow the program."""
        if self.void:
            return False
        count = len(self.elements)
        if len(words) < count or (len(words) > count and self.rest is None):
            return False
        if not all(element.permits(word) for element, word in zip(self.elements, words, strict=False)):
            return False
        return self.rest is None or all(map(self.rest.permits, words[count:]))

    def catches(self, words: tuple[str, ...]) -> bool:
        """Whether the rule may mean words that begin with these; further words do not evade it."""
        count = len(self.elements)
        if len(words) < count:
            return False
        if not all(element.catches(word) for element, word in zip(self.elements, words, strict=False)):
            return False
        return self.rest is None or len(words) == count or any(map(self.rest.catches, words[count:]))

    def is_over(self, at: datetime) -> bool:
        """Whether its time has passed."""
        return self.until is not None and self.until <= at

    def run_as(self, program: str) -> tuple[str, str | None] | None:
        """Return the program to run for a request's ``program``, and the PATH to find it in; None if it is another."""
        name = programs.last_segment(self.program)
        if self.program != name:
            return (self.program, None) if program in (self.program, name) else None
        if program == name:
            return name, programs.FIXED_PATH
        return (program, None) if program in self._places else None

    @property
    def _places(self) -> list[str]:
        return [f"{directory}/{self.program}" for directory in programs.FIXED_DIRECTORIES]


@dataclass(frozen=True, kw_only=True)
class SavedRule(RunRule):
    """A rule over a saved command."""

    command: str
    arguments: Mapping[str, Element]
    may_run_others: bool = False

    def permits(self, name: str, arguments: Mapping[str, str]) -> bool:
        """Whether the rule certainly means this command with these arguments."""
        return name == self.command and all(
            argument in arguments and element.permits(arguments[argument])
            for argument, element in self.arguments.items()
        )

    def catches(self, name: str, arguments: Mapping[str, str]) -> bool:
        """Whether the rule may mean this command with these arguments."""
        return name == self.command and all(
            argument not in arguments or element.catches(arguments[argument])
            for argument, element in self.arguments.items()
        )


@dataclass(frozen=True, kw_only=True)
class TextRule(Rule):
    """A rule that searches the text of a command."""

    expression: Any

    def catches(self, text: str) -> bool:
        """Whether the text is found, or the command is too long to search."""
        return len(text) > MAX_GUARDED or self.expression.search(text.encode()) is not None


@dataclass(frozen=True, kw_only=True)
class PathRule(Rule):
    """A rule over paths of the remote host."""

    alternatives: tuple[names.Alternative, ...]
    actions: frozenset[str] = field(default=frozenset(FS_ACTIONS))


def read_rule(raw: object, index: int, *, is_stored: bool = False) -> Rule:
    """Return the rule at ``index``.

    One that ``is_stored`` may allow more words than new rules can. Then it allows nothing, and is not refused, so that
    its token can still be listed and revoked.

    :raises InvalidRequest: it is malformed; the message names the place.
    """
    rule_value = JsonValue(raw, f"rules[{index}]")
    members = rule_value.members()
    kinds = [kind for kind in _KINDS if kind in members]
    if len(kinds) != 1:
        raise rule_value.refused(f"A rule needs exactly one of {', '.join(_KINDS)}.")
    read, allowed = _KINDS[kinds[0]]
    if unknown := members.keys() - _COMMON - allowed:
        raise InvalidRequest(f"{rule_value.place}.{min(unknown)[:100]}: Not a member of a rule with {kinds[0]}.")
    effect = members["effect"].value if "effect" in members else None
    if effect not in ("allow", "ask", "deny"):
        raise InvalidRequest(f"{rule_value.place}.effect: Not one of allow, ask, deny.")
    rule = read(members, {"index": index, "effect": effect, **_read_common(members)})
    if not isinstance(rule, ArgvRule) or rule.effect != "allow" or _may_run_others(members):
        return rule
    is_bounded = rule.rest is None and all(each.bounded for each in rule.elements)
    if is_bounded or (why := programs.why_bounded(rule.program, "a word")) is None:
        return rule
    if not is_stored:
        raise members["argv"].refused(f"{why} {_LIST_WORDS}")
    # An older version stored it; it must not allow more than the same rule could today.
    return replace(rule, void=True)


Members = Mapping[str, JsonValue]


_LIST_WORDS = (
    'Write every word as a text, as {"in": […]} or as {"integer": {"min": …, "max": …}} with both limits; or say '
    "mayRunOthers (in --may: argv-any), which allows what the program can do with any word; or let the rule ask."
)


def _read_common(members: Members) -> dict[str, Any]:
    common: dict[str, Any] = {"name": None, "connections": None, "users": None}
    if "name" in members:
        common["name"] = members["name"].text(100)
    if "connections" in members:
        common["connections"] = _read_connections(members["connections"])
    if "user" in members:
        users = members["user"]
        texts = [users] if isinstance(users.value, str) else users.items(MAX_ELEMENTS)
        common["users"] = frozenset(text.text() for text in texts)
    return common


def _read_connections(patterns: JsonValue) -> tuple[names.Alternative, ...] | None:
    alternatives: list[names.Alternative] = []
    for pattern in patterns.items(MAX_ELEMENTS):
        try:
            compiled_pattern = names.compile_pattern(pattern.text())
        except InvalidRequest as error:
            raise pattern.refused(error.message) from None
        if compiled_pattern is None:
            return None
        alternatives += compiled_pattern
    return tuple(alternatives)


def _read_surroundings(members: Members) -> dict[str, Any]:
    """Return what may accompany the words of a command: the members of :class:`RunRule`."""
    if members["effect"].value == "deny":
        for name in sorted(_SURROUNDINGS & members.keys()):
            raise members[name].refused("A deny rule applies whatever accompanies the command; leave this out.")
    flags = {name: members[name].flag() for name in ("stdin", "pty", "mayRunOthers") if name in members}
    read: dict[str, Any] = {"env": {}, "cwd": None, "stdin": flags.get("stdin"), "pty": flags.get("pty", False)}
    if "env" in members:
        what = f"Not an object with at most {MAX_ELEMENTS} variables."
        for name, value in members["env"].members(what, MAX_ELEMENTS).items():
            if not _VARIABLE.fullmatch(name):
                raise members["env"].refused("Not the name of a variable.")
            if programs.steers(name) and not _may_run_others(members):
                message = "This variable can have a program run or read something else; allow it with mayRunOthers."
                raise value.refused(message)
            read["env"][name] = read_element(value)
    if "cwd" in members:
        read["cwd"] = PathWord(JsonValue(members["cwd"].value, f"{members['cwd'].place}.path"))
    return read


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _may_run_others(members: Members) -> bool:
    return "mayRunOthers" in members and members["mayRunOthers"].value is True


def _read_argv_rule(members: Members, common: dict[str, Any]) -> Rule:
    argv = members["argv"]
    first, *words = argv.items(MAX_ELEMENTS)
    program = first.program()
    if "=" in program:
        raise first.refused("A program with `=` in its name might be read as the setting of a variable.")
    rest = None
    if words and isinstance(words[-1].value, Mapping) and words[-1].value.keys() == {"rest"}:
        rest = read_element(words.pop().members()["rest"])
    elements = tuple(map(read_element, words))
    must_be_fixed = common["effect"] != "deny" and not _may_run_others(members)
    is_fixed = rest is None and all(element.fixed for element in elements)
    if must_be_fixed and not is_fixed and (why := programs.why_fixed(program, "a word")):
        raise argv.refused(f"{why} Write every word as a text, or say mayRunOthers.")
    limited = _read_answers(members, common)
    return ArgvRule(program=program, elements=elements, rest=rest, **limited, **_read_surroundings(members), **common)


def _read_answers(members: Members, common: dict[str, Any]) -> dict[str, Any]:
    """Return until when a rule applies, which asking rules it overrides, and what it was approved for."""
    read: dict[str, Any] = {}
    for name in sorted({"until", "answers", "only"} & members.keys()):
        if common["effect"] != "allow":
            raise members[name].refused("Only for rules with the effect allow.")
    if "until" in members:
        try:
            read["until"] = time_from_json(members["until"].text(100))
        except ValueError:
            raise members["until"].refused("Not a time in ISO 8601.") from None
        if read["until"].tzinfo is None:
            raise members["until"].refused("The time has no zone: write it as 2026-01-31T08:15:00Z.")
    if "answers" in members:
        if "until" not in members:
            raise members["answers"].refused("A rule with `answers` needs `until`.")
        numbers = members["answers"].items(MAX_ELEMENTS)
        if any(isinstance(number.value, bool) or not isinstance(number.value, int) for number in numbers):
            raise members["answers"].refused("Not a list of numbers of rules.")
        read["answers"] = frozenset(number.value for number in numbers)
    if "only" in members:
        read["only"] = _read_only(members["only"])
    return read


def _read_only(only: JsonValue) -> Only:
    members = only.members()
    if members.keys() != {"token", "connections"}:
        raise only.refused("Not an object with the members `token` and `connections`, and no others.")
    connections = members["connections"].members(f"Not an object with at most {MAX_ELEMENTS} members.", MAX_ELEMENTS)
    return Only(members["token"].text(100), {id: digest.text(100) for id, digest in connections.items()})


def _read_saved_rule(members: Members, common: dict[str, Any]) -> Rule:
    arguments: Members = {}
    if "arguments" in members:
        what = f"Not an object with at most {MAX_ELEMENTS} arguments."
        arguments = members["arguments"].members(what, MAX_ELEMENTS)
    return SavedRule(
        command=members["command"].text(100),
        arguments={name: read_element(limit) for name, limit in arguments.items()},
        may_run_others=_may_run_others(members),
        **_read_surroundings(members),
        **common,
    )


def _read_text_rule(members: Members, common: dict[str, Any]) -> Rule:
    if common["effect"] == "allow":
        message = "A text can hide what it runs, so a rule cannot allow it by what stands in it. Allow an argv."
        raise members["effect"].refused(message)
    return TextRule(expression=compiled(members["text"], dot_newline=True), **common)


def _read_path_rule(members: Members, common: dict[str, Any]) -> Rule:
    alternatives = tuple(path_alternatives(members["path"]))
    if "action" not in members:
        return PathRule(alternatives=alternatives, **common)
    action = members["action"]
    if action.value not in FS_ACTIONS:
        raise action.refused(f"Neither {' nor '.join(FS_ACTIONS)}.")
    return PathRule(alternatives=alternatives, actions=frozenset({action.value}), **common)


_COMMON = frozenset({"effect", "name", "connections", "user"})
_SURROUNDINGS = frozenset({"env", "cwd", "stdin", "pty", "mayRunOthers"})
_KINDS: Mapping[str, tuple[Callable[[Members, dict[str, Any]], Rule], frozenset[str]]] = {
    "argv": (_read_argv_rule, _SURROUNDINGS | {"argv", "until", "answers", "only"}),
    "command": (_read_saved_rule, _SURROUNDINGS | {"command", "arguments"}),
    "text": (_read_text_rule, frozenset({"text"})),
    "path": (_read_path_rule, frozenset({"path", "action"})),
}
"""By the member that tells the kind of a rule: its reader, and the members that it may have besides the common ones."""
