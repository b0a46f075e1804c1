"""The rules of a token, parsed from JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from connmgr.errors import InvalidRequest
from connmgr.rights import programs
from connmgr.rights.elements import (
    MAX_PATTERN,
    Element,
    compiled,
    is_clean,
    path_alternatives,
    read_element,
    read_list,
    read_text,
    refuse,
)
from connmgr.vault import names

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


@dataclass(frozen=True, kw_only=True)
class ArgvRule(RunRule):
    """A rule over the words of a command."""

    program: str
    elements: tuple[Element, ...]
    """The conditions on the words after the program, one each."""

    rest: Element | None
    """The condition on each further word; None allows none."""

    void: bool = False
    """Whether it permits nothing, because no such rule can be made any more."""

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
    """A rule over paths of the far side."""

    alternatives: tuple[names.Alternative, ...]
    actions: frozenset[str] = field(default=frozenset(FS_ACTIONS))


def read_rule(raw: object, index: int, *, is_stored: bool = False) -> Rule:
    """Return the rule at ``index``.

    One that ``is_stored`` may allow more words than new rules can; then it allows nothing, so that its token can still
    be listed and revoked.
    :raises InvalidRequest: it is malformed; the message names the place.
    """
    place = f"rules[{index}]"
    if not isinstance(raw, Mapping):
        raise refuse(place, "Not an object.")
    kinds = [kind for kind in _KINDS if kind in raw]
    if len(kinds) != 1:
        raise refuse(place, f"It has to have one of {', '.join(_KINDS)}.")
    read, members = _KINDS[kinds[0]]
    unknown = raw.keys() - _COMMON - members
    if unknown:
        raise refuse(f"{place}.{min(map(str, unknown))[:100]}", f"Not a member of a rule with {kinds[0]}.")
    if raw.get("effect") not in ("allow", "ask", "deny"):
        raise refuse(f"{place}.effect", "Not one of allow, ask, deny.")
    rule = read(raw, place, {"index": index, "effect": raw["effect"], **_read_common(raw, place)})
    if isinstance(rule, ArgvRule) and rule.effect == "allow" and not _may_run_others(raw) and (why := _too_free(rule)):
        if not is_stored:
            raise refuse(f"{place}.argv", why)
        return replace(rule, void=True)
    return rule


def _too_free(rule: ArgvRule) -> str | None:
    """Return why the words of a rule may not be free, or None if they may."""
    if programs.only_prints(rule.program) or (rule.rest is None and all(each.bounded for each in rule.elements)):
        return None
    name = programs.last_segment(rule.program)
    return (
        f"{name} is not known to do nothing but print: a word that the token chooses may have it write a file or run "
        'a program. Write every word as a text, as {"in": […]} or as {"integer": {"min": …, "max": …}} with both '
        "limits; or say mayRunOthers (in --may: argv-any), which allows what the program can do with any word; or ask."
    )


def _read_common(raw: Mapping[str, Any], place: str) -> dict[str, Any]:
    users = raw.get("user")
    return {
        "name": None if "name" not in raw else read_text(raw["name"], f"{place}.name", 100),
        "connections": _read_connections(raw, f"{place}.connections"),
        "users": None
        if "user" not in raw
        else frozenset(_texts([users] if isinstance(users, str) else users, f"{place}.user")),
    }


def _texts(raw: object, place: str) -> list[str]:
    return [read_text(text, f"{place}[{at}]") for at, text in enumerate(read_list(raw, place, MAX_ELEMENTS))]


def _read_connections(raw: Mapping[str, Any], place: str) -> tuple[names.Alternative, ...] | None:
    if "connections" not in raw:
        return None
    found: list[names.Alternative] = []
    for at, pattern in enumerate(_texts(raw["connections"], place)):
        try:
            compiled_pattern = names.compile_pattern(pattern)
        except InvalidRequest as error:
            raise refuse(f"{place}[{at}]", error.message) from None
        if compiled_pattern is None:
            return None
        found += compiled_pattern
    return tuple(found)


def _read_surroundings(raw: Mapping[str, Any], place: str) -> dict[str, Any]:
    if raw["effect"] == "deny":
        for member in ("env", "cwd", "stdin", "pty", "mayRunOthers"):
            if member in raw:
                raise refuse(f"{place}.{member}", "A deny rule holds whatever comes with the command; leave it out.")
    env, cwd = raw.get("env", {}), raw.get("cwd")
    if not isinstance(env, Mapping) or len(env) > MAX_ELEMENTS:
        raise refuse(f"{place}.env", f"Not an object with at most {MAX_ELEMENTS} variables.")
    for name in env:
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise refuse(f"{place}.env", "Not the name of a variable.")
        if programs.steers(name) and not _may_run_others(raw):
            message = "This variable can have a program run or read something else; allow it with mayRunOthers."
            raise refuse(f"{place}.env.{name}", message)
    for member in ("stdin", "pty", "mayRunOthers"):
        if member in raw and not isinstance(raw[member], bool):
            raise refuse(f"{place}.{member}", "Neither true nor false.")
    return {
        "env": {name: read_element(element, f"{place}.env.{name}") for name, element in env.items()},
        "cwd": None if "cwd" not in raw else read_element({"path": cwd}, place + ".cwd"),
        "stdin": raw.get("stdin"),
        "pty": raw.get("pty", False),
    }


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _may_run_others(raw: Mapping[str, Any]) -> bool:
    return raw.get("mayRunOthers") is True


def _read_argv_rule(raw: Mapping[str, Any], place: str, common: dict[str, Any]) -> Rule:
    argv = read_list(raw["argv"], f"{place}.argv", MAX_ELEMENTS)
    program = argv[0]
    if not isinstance(program, str) or not program or ("/" in program and (not is_clean(program) or program == "/")):
        message = "The program is a text: a name, or an absolute path without `.`, `..` and empty segments."
        raise refuse(f"{place}.argv[0]", message)
    read_text(program, f"{place}.argv[0]")
    if "=" in program:
        raise refuse(f"{place}.argv[0]", "A program with `=` in its name might be read as the setting of a variable.")
    last = argv[-1]
    has_rest = len(argv) > 1 and isinstance(last, Mapping) and set(last) == {"rest"}
    words = argv[1:-1] if has_rest else argv[1:]
    elements = [read_element(raw_word, f"{place}.argv[{at}]") for at, raw_word in enumerate(words, 1)]
    rest = read_element(last["rest"], f"{place}.argv[{len(argv) - 1}].rest") if has_rest else None
    open_ended = rest is not None or not all(element.fixed for element in elements)
    if open_ended and raw["effect"] != "deny" and programs.runs_others(program) and not _may_run_others(raw):
        name = programs.last_segment(program)
        raise refuse(
            f"{place}.argv",
            f"{name} runs or loads other programs as its words tell it: whoever chooses a word may choose the program. "
            "Write every word as a text, or say mayRunOthers.",
        )
    surroundings = _read_surroundings(raw, place)
    return ArgvRule(program=program, elements=tuple(elements), rest=rest, **surroundings, **common)


def _read_saved_rule(raw: Mapping[str, Any], place: str, common: dict[str, Any]) -> Rule:
    arguments = raw.get("arguments", {})
    if (
        not isinstance(arguments, Mapping)
        or len(arguments) > MAX_ELEMENTS
        or not all(isinstance(k, str) for k in arguments)
    ):
        raise refuse(f"{place}.arguments", f"Not an object with at most {MAX_ELEMENTS} arguments.")
    return SavedRule(
        command=read_text(raw["command"], f"{place}.command", 100),
        arguments={name: read_element(each, f"{place}.arguments.{name}") for name, each in arguments.items()},
        may_run_others=_may_run_others(raw),
        **_read_surroundings(raw, place),
        **common,
    )


def _read_text_rule(raw: Mapping[str, Any], place: str, common: dict[str, Any]) -> Rule:
    if raw["effect"] == "allow":
        message = "A text can hide what it runs, so none is allowed by what stands in it. Allow an argv."
        raise refuse(f"{place}.effect", message)
    pattern = read_text(raw["text"], f"{place}.text", MAX_PATTERN)
    return TextRule(expression=compiled(pattern, f"{place}.text", dot_newline=True), **common)


def _read_path_rule(raw: Mapping[str, Any], place: str, common: dict[str, Any]) -> Rule:
    alternatives = path_alternatives(read_text(raw["path"], f"{place}.path"), f"{place}.path")
    actions = raw.get("action")
    if "action" in raw and actions not in FS_ACTIONS:
        raise refuse(f"{place}.action", f"Neither {' nor '.join(FS_ACTIONS)}.")
    return PathRule(
        alternatives=tuple(alternatives), actions=frozenset(FS_ACTIONS if actions is None else [actions]), **common
    )


_COMMON = frozenset({"effect", "name", "connections", "user"})
_SURROUNDINGS = frozenset({"env", "cwd", "stdin", "pty", "mayRunOthers"})
_KINDS: dict[str, tuple[Callable[[Mapping[str, Any], str, dict[str, Any]], Rule], frozenset[str]]] = {
    "argv": (_read_argv_rule, _SURROUNDINGS | {"argv"}),
    "command": (_read_saved_rule, _SURROUNDINGS | {"command", "arguments"}),
    "text": (_read_text_rule, frozenset({"text"})),
    "path": (_read_path_rule, frozenset({"path", "action"})),
}
