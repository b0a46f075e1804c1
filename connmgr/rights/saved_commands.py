"""Saved commands: argvs with parameters, stored in the vault and called by name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from connmgr.audit.entry import CUT_OUT
from connmgr.errors import CommandExists, InvalidRequest, UnknownCommand
from connmgr.rights import programs
from connmgr.rights.elements import Element, OneOfTexts, Span, is_clean, read_element, read_list, read_text, refuse
from connmgr.vault.documents import Document, Documents

MAX_COMMANDS = 1000
MAX_WORDS = 100
MAX_PARAMETERS = 50
MAX_DESCRIPTION = 1000

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|([{}])|([^{}]+)")


_REMEDY = (
    'List what it takes by {"in": […]}, there or among the `arguments` of the rule; or say mayRunOthers, in the rule '
    "or when the command is saved (--may-run-others)."
)


@dataclass(frozen=True)
class Word:
    """One word of a saved command: texts and names of parameters."""

    pieces: tuple[tuple[str, bool], ...]
    """Each is a text, or with True the name of a parameter."""

    @property
    def parameters(self) -> set[str]:
        return {piece for piece, is_parameter in self.pieces if is_parameter}

    def filled(self, arguments: Mapping[str, str]) -> str:
        """Return the word with arguments in place of its parameters."""
        return "".join(arguments[piece] if is_parameter else piece for piece, is_parameter in self.pieces)


class Expanded(NamedTuple):
    """A saved command with its arguments."""

    argv: tuple[str, ...]
    arguments: dict[str, str]
    """As texts."""

    recorded: tuple[str, ...]
    """The argv for the audit log: without the arguments of secret parameters."""


@dataclass(frozen=True)
class SavedCommand:
    """A saved command; ``body`` is the saved form."""

    name: str
    words: tuple[Word, ...]
    parameters: Mapping[str, Element]
    body: Mapping[str, Any]

    @classmethod
    def read(cls, name: str, body: Mapping[str, Any]) -> SavedCommand:
        """Return the command with the ``argv``, ``parameters`` and ``description`` of ``body``.

        :raises InvalidRequest: it is malformed; the message begins with the place.
        """
        if not _NAME.fullmatch(name):
            raise refuse("name", "Not 1 to 64 letters, digits, `_`, `.` and `-`, with `.` and `-` not first.")
        words = tuple(
            _read_word(raw, f"argv[{at}]") for at, raw in enumerate(read_list(body["argv"], "argv", MAX_WORDS))
        )
        program = words[0].filled({}) if not words[0].parameters else ""
        if not program or ("/" in program and (not is_clean(program) or program == "/")):
            message = "The program is a text: a name, or an absolute path without `.`, `..` and empty segments."
            raise refuse("argv[0]", message)
        parameters = {each: _read_parameter(raw, f"parameters.{each}") for each, raw in _parameters(body["parameters"])}
        used = set().union(*(word.parameters for word in words))
        if used - parameters.keys():
            raise refuse("argv", f"No parameter is called {min(used - parameters.keys())}.")
        if parameters.keys() - used:
            unused = min(parameters.keys() - used)
            raise refuse(f"parameters.{unused}", "No word has this parameter.")
        read_text(body.get("description", ""), "description", MAX_DESCRIPTION)
        return cls(name, words, parameters, body)

    def too_free(self, effect: str, limits: Mapping[str, Element]) -> str | None:
        """Return why a rule with this ``effect`` may not let a token choose the arguments, or None if it may.

        That is as for the words of a rule over an argv. ``limits`` are what the rule says about arguments. An owner who
        saves a command with ``mayRunOthers`` allows what its program can do with any argument.
        """
        if self.body.get("mayRunOthers"):
            return None
        program = self.words[0].filled({})
        name = programs.last_segment(program)
        elements = {each: (limits.get(each, own), own) for each, own in self.parameters.items()}
        # The stricter of both counts, because an argument has to pass both.
        unfixed = [each for each, both in elements.items() if not any(one.fixed for one in both)]
        unbounded = [each for each, both in elements.items() if not any(one.bounded for one in both)]
        if unfixed and programs.runs_others(program):
            return (
                f"{name} runs or loads other programs as its words tell it, and who chooses {unfixed[0]} may choose "
                f"the program. {_REMEDY}"
            )
        if unbounded and effect == "allow" and not programs.only_prints(program):
            return (
                f"{name} is not known to do nothing but print, and some {unbounded[0]} may have it write a file or run "
                f"a program. {_REMEDY} Or let the rule ask."
            )
        return None

    def expand(self, arguments: Mapping[str, object]) -> Expanded:
        """Return the command with ``arguments``.

        :raises InvalidRequest: one is missing, unknown or not accepted by its parameter; the message names it.
        """
        for name in (*self.parameters, *arguments):
            if name not in arguments:
                raise refuse(f"saved.arguments.{name}", "Missing.")
            if name not in self.parameters:
                raise refuse(f"saved.arguments.{name[:64]}", "The command has no such parameter.")
        texts = {name: _as_text(value, f"saved.arguments.{name}") for name, value in arguments.items()}
        for name, text in texts.items():
            if not self.parameters[name].permits(text):
                raise refuse(f"saved.arguments.{name}", "Not what the parameter takes.")
        argv = tuple(self._filled(word, texts) for word in self.words)
        shown = {name: CUT_OUT if _is_secret(self.body["parameters"][name]) else text for name, text in texts.items()}
        return Expanded(argv, texts, tuple(word.filled(shown) for word in self.words))

    def _filled(self, word: Word, texts: Mapping[str, str]) -> str:
        filled, (first, is_parameter) = word.filled(texts), next(iter(word.pieces), ("", False))
        lists_it = is_parameter and bool(texts[first]) and isinstance(self.parameters[first], OneOfTexts | Span)
        if filled.startswith("-") and is_parameter and not lists_it:
            message = "Its word would begin with `-`, as an option does; only `in` and `integer` let it."
            raise refuse(f"saved.arguments.{first}", message)
        return filled


class SavedCommands:
    """The saved commands of a vault. Safe to use from several threads."""

    def __init__(self, stored: Documents) -> None:
        self._stored = stored

    def save(self, command: SavedCommand, *, replaces: bool) -> None:
        """Store ``command``; if it ``replaces``, in place of one of its name.

        :raises CommandExists: there is one of the name.
        :raises InvalidRequest: there are too many.
        """
        if self._stored.add(Document(key=command.name, body=command.body), most=MAX_COMMANDS):
            return
        before = self._stored.by_key(command.name)
        if before is None:
            raise InvalidRequest(f"name: {MAX_COMMANDS} commands are saved, and no more are kept.")
        if not replaces:
            raise CommandExists(f"A command is saved as {command.name}; `replace` puts this one in its place.")
        self._stored.change(before.id, lambda one: replace(one, body=command.body))

    def all(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Return name and body of all commands, ordered by name."""
        return sorted((one.key, one.body) for one in self._stored.all())

    def get(self, name: str) -> SavedCommand:
        """Return the command ``name``, or raise :class:`UnknownCommand`."""
        found = self._stored.by_key(name)
        if found is None:
            raise UnknownCommand(name)
        return SavedCommand.read(name, found.body)

    def remove(self, name: str) -> None:
        """Remove a command; raise :class:`UnknownCommand` if there is none of the name."""
        found = self._stored.by_key(name)
        if found is None:
            raise UnknownCommand(name)
        self._stored.remove([found.id])


def _parameters(raw: object) -> Iterator[tuple[str, object]]:
    if not isinstance(raw, Mapping) or len(raw) > MAX_PARAMETERS:
        raise refuse("parameters", f"Not an object with at most {MAX_PARAMETERS} parameters.")
    for name, value in raw.items():
        if not _PARAMETER.fullmatch(name):
            raise refuse("parameters", "Not a name of letters, digits and `_`.")
        yield name, value


def _read_parameter(raw: object, place: str) -> Element:
    if not isinstance(raw, Mapping):
        raise refuse(place, "Not an object.")
    read_text(raw.get("description", ""), f"{place}.description", MAX_DESCRIPTION)
    if not isinstance(raw.get("secret", False), bool):
        raise refuse(f"{place}.secret", "Neither true nor false.")
    return read_element({name: value for name, value in raw.items() if name not in ("description", "secret")}, place)


def _is_secret(raw: Mapping[str, Any]) -> bool:
    return bool(raw.get("secret", False))


def _read_word(raw: object, place: str) -> Word:
    if isinstance(raw, str):
        return Word(((read_text(raw, place), False),))
    if isinstance(raw, Mapping) and set(raw) == {"parameter"}:
        return Word(((_parameter(raw["parameter"], f"{place}.parameter"), True),))
    if isinstance(raw, Mapping) and set(raw) == {"text"}:
        return Word(tuple(_pieces(read_text(raw["text"], f"{place}.text"), f"{place}.text")))
    raise refuse(place, "Neither a text nor an object with parameter or text.")


def _pieces(text: str, place: str) -> Iterator[tuple[str, bool]]:
    for found in _PIECE.finditer(text):
        name, alone, plain = found.groups()
        if alone:
            raise refuse(place, f"It has a {alone} alone; {alone * 2} stands for the character.")
        if name is not None:
            yield _parameter(name, place), True
        else:
            yield plain or found[0][0], False


def _parameter(raw: object, place: str) -> str:
    if not isinstance(raw, str) or not _PARAMETER.fullmatch(raw):
        raise refuse(place, "Not the name of a parameter.")
    return raw


def _as_text(value: object, place: str) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return read_text(value, place)
