"""Saved commands: argvs with parameters, stored in the vault and called by name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from connmgr.audit.entry import CUT_OUT
from connmgr.errors import CommandExists, InvalidRequest, UnknownCommand
from connmgr.rights import programs
from connmgr.rights.rule import Element, JsonValue, OneOfTexts, Span, read_element
from connmgr.vault.documents import Document, Documents

MAX_COMMANDS = 1000
MAX_WORDS = 100
MAX_PARAMETERS = 50
MAX_DESCRIPTION = 1000

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|([{}])|([^{}]+)")


_REMEDY = (
    'List the values by {"in": […]}, in the command or among the `arguments` of the rule; or say mayRunOthers, in the '
    "rule or when the command is saved (--may-run-others)."
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
            raise InvalidRequest(
                "name: Must be 1 to 64 letters, digits, `_`, `.` and `-`, and must not begin with `.` or `-`."
            )
        argv, declared = JsonValue(body["argv"], "argv"), JsonValue(body["parameters"], "parameters")
        words = tuple(map(_read_word, argv.items(MAX_WORDS)))
        JsonValue("" if words[0].parameters else words[0].filled({}), "argv[0]").program()
        parameters = _read_parameters(declared)
        used = set().union(*(word.parameters for word in words))
        if undeclared := used - parameters.keys():
            raise argv.refused(f"No parameter is called {min(undeclared)}.")
        if unused := parameters.keys() - used:
            raise InvalidRequest(f"parameters.{min(unused)}: No word has this parameter.")
        JsonValue(body.get("description", ""), "description").text(MAX_DESCRIPTION)
        return cls(name, words, parameters, body)

    def too_free(self, effect: str, limits: Mapping[str, Element]) -> str | None:
        """Return why a rule with this ``effect`` may not let a token choose the arguments, or None if it may.

        The limits are those of the words of a rule over an argv. ``limits`` are what the rule says about arguments. An
        owner who saves a command with ``mayRunOthers`` allows what its program can do with any argument.
        """
        if self.body.get("mayRunOthers"):
            return None
        program = self.words[0].filled({})
        elements = {each: (limits.get(each, own), own) for each, own in self.parameters.items()}
        # The stricter of both counts, because an argument has to pass both.
        unfixed = [each for each, both in elements.items() if not any(element.fixed for element in both)]
        unbounded = [each for each, both in elements.items() if not any(element.bounded for element in both)]
        if unfixed and (why := programs.why_fixed(program, unfixed[0])):
            return f"{why} {_REMEDY}"
        if unbounded and effect == "allow" and (why := programs.why_bounded(program, unbounded[0])):
            return f"{why} {_REMEDY} Or let the rule ask."
        return None

    def expand(self, arguments: Mapping[str, object]) -> Expanded:
        """Return the command with ``arguments``.

        :raises InvalidRequest: one is missing, unknown or not accepted by its parameter; the message names it.
        """
        values = JsonValue(arguments, "saved.arguments").members()
        for name in self.parameters:
            if name not in values:
                raise InvalidRequest(f"saved.arguments.{name}: Missing.")
        for name in values:
            if name not in self.parameters:
                raise InvalidRequest(f"saved.arguments.{name[:64]}: The command has no such parameter.")
        texts = {name: _as_text(value) for name, value in values.items()}
        for name, text in texts.items():
            if not self.parameters[name].permits(text):
                raise values[name].refused("The parameter does not accept this value.")
            if text == CUT_OUT and _is_secret(self.body["parameters"][name]):
                # Of a client that sends back what it has read, as of a schedule that it changes.
                raise values[name].refused(f"{CUT_OUT} is what answers have in a secret's place; send the secret.")
        argv = tuple(self._filled(word, texts) for word in self.words)
        shown = self.shown(texts)
        return Expanded(argv, texts, tuple(word.filled(shown) for word in self.words))

    def shown(self, arguments: Mapping[str, str]) -> dict[str, str]:
        """Return ``arguments`` with the values of secret and of unknown parameters cut out."""
        declared = self.body["parameters"]
        return {
            name: CUT_OUT if name not in declared or _is_secret(declared[name]) else value
            for name, value in arguments.items()
        }

    def _filled(self, word: Word, texts: Mapping[str, str]) -> str:
        filled, (first, is_parameter) = word.filled(texts), next(iter(word.pieces), ("", False))
        # Whoever lists a value, or allows negative numbers, has seen that it begins with a hyphen.
        lists_it = is_parameter and bool(texts[first]) and isinstance(self.parameters[first], OneOfTexts | Span)
        if filled.startswith("-") and is_parameter and not lists_it:
            message = "Its word would begin with `-`, as an option does; only `in` and `integer` allow that."
            raise InvalidRequest(f"saved.arguments.{first}: {message}")
        return filled


class SavedCommands:
    """The saved commands of a vault. Safe to use from several threads."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    def save(self, command: SavedCommand, *, replaces: bool) -> None:
        """Store ``command``; if it ``replaces``, in place of one of its name.

        :raises CommandExists: there is one of the name.
        :raises InvalidRequest: there are too many.
        """
        if self._documents.add(Document(key=command.name, body=command.body), most=MAX_COMMANDS):
            return
        # The vault refused it: the name is taken, or there is no room. Another daemon may have removed that command
        # since.
        before = self._documents.by_key(command.name)
        if before is None:
            raise InvalidRequest(f"name: {MAX_COMMANDS} commands are saved already: remove one first.")
        if not replaces:
            raise CommandExists(f"A command named {command.name} exists already; replace puts this one in its place.")
        self._documents.change(before.id, lambda document: replace(document, body=command.body))

    def all(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Return name and body of all commands, ordered by name."""
        return sorted((document.key, document.body) for document in self._documents.all())

    def get(self, name: str) -> SavedCommand:
        """Return the command ``name``, or raise :class:`UnknownCommand`."""
        document = self._documents.by_key(name)
        if document is None:
            raise UnknownCommand(name)
        return SavedCommand.read(name, document.body)

    def remove(self, name: str) -> None:
        """Remove a command; raise :class:`UnknownCommand` if there is none of the name."""
        document = self._documents.by_key(name)
        if document is None:
            raise UnknownCommand(name)
        self._documents.remove([document.id])


def _read_parameters(declared: JsonValue) -> dict[str, Element]:
    parameters = declared.members(f"Not an object with at most {MAX_PARAMETERS} parameters.", MAX_PARAMETERS)
    if not all(map(_PARAMETER.fullmatch, parameters)):
        raise declared.refused("Not a name of letters, digits and `_`.")
    return {name: _read_parameter(parameter) for name, parameter in parameters.items()}


def _read_parameter(parameter: JsonValue) -> Element:
    members = parameter.members()
    if "description" in members:
        members.pop("description").text(MAX_DESCRIPTION)
    if "secret" in members:
        members.pop("secret").flag()
    return read_element(JsonValue({name: each.value for name, each in members.items()}, parameter.place))


def _is_secret(raw: Mapping[str, Any]) -> bool:
    return bool(raw.get("secret", False))


def _read_word(word: JsonValue) -> Word:
    if isinstance(word.value, str):
        return Word(((word.text(), False),))
    members = word.members(_NO_WORD)
    if members.keys() == {"parameter"}:
        return Word(((_parameter(members["parameter"]), True),))
    if members.keys() == {"text"}:
        return Word(tuple(_pieces(members["text"])))
    raise word.refused(_NO_WORD)


_NO_WORD = "Neither a text nor an object with parameter or text."


def _pieces(text: JsonValue) -> Iterator[tuple[str, bool]]:
    for piece in _PIECE.finditer(text.text()):
        name, alone, plain = piece.groups()
        if alone:
            raise text.refused(f"A single {alone} stands for no character; write {alone * 2}.")
        if name is not None:
            yield _parameter(JsonValue(name, text.place)), True
        else:
            yield plain or piece[0][0], False


def _parameter(name: JsonValue) -> str:
    if not isinstance(name.value, str) or not _PARAMETER.fullmatch(name.value):
        raise name.refused("Not the name of a parameter.")
    return name.value


def _as_text(value: JsonValue) -> str:
    return str(value.value) if isinstance(value.value, int) and not isinstance(value.value, bool) else value.text()
