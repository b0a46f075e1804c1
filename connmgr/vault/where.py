"""Conditions on the labels of connections and on the facts about their machines: ``env=prod and os.id=debian``.

::

    condition   = all ("or" all)*
    all         = one ("and" one)*
    one         = "not" one | "(" condition ")" | NAME | NAME operator VALUE
    operator    = "=" | "!=" | "~" | "!~" | "<" | "<=" | ">" | ">="

A name with a dot, ``arch``, ``kernel`` and ``uptime`` are facts; any other name is a label. A value with blanks or
parentheses is quoted. ``~`` is a pattern of :mod:`connmgr.vault.names`; ``<``, ``<=``, ``>`` and ``>=`` compare numbers
and versions (:func:`version_key`). ``!=`` and ``!~`` are the opposites of ``=`` and ``~``: they also hold where there
is no such label or fact. The other operators do not hold there.

Labels are stored as canonical JSON, in the index that a search scans anyway. So ``=`` is a search for the text
``"env":"prod"``, and for other operators the few different values of that label are compared here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from connmgr.contract.common import DOTLESS_FACTS
from connmgr.errors import InvalidRequest
from connmgr.secrets.vault_key import VaultKey
from connmgr.vault import facts, names
from connmgr.vault.names import Matcher, compile_pattern
from connmgr.vault.schema import canonical
from connmgr.vault.schema import connection as table
from connmgr.vault.schema import fact as fact_table

MAX_CHARACTERS = 1000
MAX_TERMS = 100
MAX_NESTING = 50

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
"""What may follow a whole number that a fact in bytes is compared with."""

_WORD = re.compile(r"[^\s()'\"=<>!~]+")
_NAME = re.compile(r"[A-Za-z_][\w.+:/@-]*", re.ASCII)
_OPERATOR = re.compile(r"!=|!~|<=|>=|=|~|<|>")
_BARE = re.compile(r"[^\s()'\"=<>!][^\s()'\"]*")
_KEYWORDS = ("and", "or", "not")
_SIZE = re.compile(r"(\d+)([KMGT])")
_LIKE_A_SIZE = re.compile(r"\d+(\.\d+)?[KMGT](i?B)?", re.ASCII | re.IGNORECASE)

Value = str | int
Among = Callable[[sa.ColumnElement[str], list[str]], sa.ColumnElement[bool]]
"""Makes the condition that a column is one of many texts."""


@dataclass(frozen=True)
class Comparison:
    """A condition on the value of one name; without an ``operator``, that the name is there."""

    name: str
    operator: str = ""
    value: str = ""

    @property
    def is_fact(self) -> bool:
        return "." in self.name or self.name in DOTLESS_FACTS

    @cached_property
    def holds(self) -> Callable[[Value], bool]:
        """Whether a value fulfils it; that of an operator and its opposite is the same."""
        operator, operand = self.operator.lstrip("!"), self.value
        if not operator:
            return lambda _: True
        if operator == "=":
            return lambda value: str(value) == operand
        if operator == "~":
            alternatives = compile_pattern(operand)
            matches = Matcher(alternatives) if alternatives is not None else lambda _: True
            return lambda value: matches(names.fold(str(value)))
        return _ordered(operator, operand)

    def needles(self) -> list[str]:
        """Return texts, one of which is in the JSON of every object that may fulfil the comparison."""
        member = f"{canonical(self.name)}:"
        if self.operator.lstrip("!") != "=":
            return [member]
        texts = [member + canonical(self.value)]
        if re.fullmatch(r"-?\d+", self.value):
            texts += [f"{member}{self.value}{end}" for end in ",}"]
        return texts


@dataclass(frozen=True)
class Not:
    inner: Condition


@dataclass(frozen=True)
class All:
    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class Either:
    parts: tuple[Condition, ...]


Condition = Comparison | Not | All | Either


def parse(text: str) -> Condition | None:
    """Return the condition that ``text`` says; None for a blank text, which every connection fulfils.

    :raises InvalidRequest: it is not a condition; the message has the place.
    """
    if len(text) > MAX_CHARACTERS:
        raise InvalidRequest(f"The condition is too long: at most {MAX_CHARACTERS} characters.")
    return _ConditionParser(text).whole() if text.strip() else None


def holds(condition: Condition, labels: Mapping[str, Value], known_facts: Mapping[str, Value]) -> bool:
    """Whether a connection with these labels, and facts about its machine, fulfils a condition."""
    if isinstance(condition, Comparison):
        value = (known_facts if condition.is_fact else labels).get(condition.name)
        return (value is not None and condition.holds(value)) != condition.operator.startswith("!")
    if isinstance(condition, Not):
        return not holds(condition.inner, labels, known_facts)
    parts = (holds(part, labels, known_facts) for part in condition.parts)
    return all(parts) if isinstance(condition, All) else any(parts)


def sql(condition: Condition, tx: sa.Connection, key: VaultKey, among: Among) -> sa.ColumnElement[bool]:
    """Return the condition on a row of the table ``connection``.

    Facts are verified here, because using a connection does not read them. Labels are, like names, when it is used.
    :raises connmgr.errors.IntegrityError: compared facts were changed outside of connmgr.
    """
    if isinstance(condition, Not):
        return sa.not_(sql(condition.inner, tx, key, among))
    if isinstance(condition, Comparison):
        clause = _by_facts(condition, tx, key, among) if condition.is_fact else _by_labels(condition, tx, among)
        return sa.not_(clause) if condition.operator.startswith("!") else clause
    parts = [sql(part, tx, key, among) for part in condition.parts]
    return sa.and_(*parts) if isinstance(condition, All) else sa.or_(*parts)


def _by_labels(comparison: Comparison, tx: sa.Connection, among: Among) -> sa.ColumnElement[bool]:
    [*needles] = comparison.needles()
    has = _has(tx, table.c.labels, needles)
    if comparison.operator.lstrip("!") in ("", "="):
        return has
    value = _label_value(tx, comparison.name)
    # Each different value is compared once, and by our own rules: databases know neither our versions nor our patterns.
    different = tx.scalars(sa.select(value).where(has).distinct())
    return sa.and_(has, among(value, [text for text in different if _fulfils(comparison, text)]))


def _by_facts(comparison: Comparison, tx: sa.Connection, key: VaultKey, among: Among) -> sa.ColumnElement[bool]:
    part = facts.part_of(comparison.name)
    has = _has(tx, fact_table.c.body, comparison.needles())
    statement = sa.select(fact_table).where(fact_table.c.part == part, has)
    ids = []
    # A package list of each of many machines would not fit into memory at once.
    with tx.execute(statement, execution_options={"yield_per": 50}) as rows:
        for row in rows.mappings():
            values = facts.verified(row, key)
            if comparison.name in values and comparison.holds(values[comparison.name]):
                ids.append(row["connection"])
    return among(table.c.id, ids)


def _label_value(tx: sa.Connection, name: str) -> sa.ColumnElement[str]:
    """Return the value of a label as JSON has it between its quotes, for rows that have the label.

    In canonical JSON a value ends before ``","`` or at the end, for a quote within a value has a backslash before it.
    """
    labels, mark = table.c.labels, f'{canonical(name)}:"'
    rest = sa.func.substr(labels, _position(tx, labels, mark) + len(mark))
    end = _position(tx, rest, '","')
    value: sa.ColumnElement[str] = sa.case(
        (end > 0, sa.func.substr(rest, 1, end - 1)), else_=sa.func.substr(rest, 1, sa.func.length(rest) - 2)
    )
    return value


def _fulfils(comparison: Comparison, text: str) -> bool:
    try:
        return comparison.holds(json.loads(f'"{text}"'))
    except (ValueError, TypeError):
        # Changed outside of connmgr: the connection is refused as soon as it is read.
        return False


def _position(tx: sa.Connection, column: sa.ColumnElement[str], text: str) -> sa.ColumnElement[int]:
    """Return where ``text`` begins in a column, from 1; 0 if it is not there."""
    return (sa.func.strpos if tx.dialect.name == "postgresql" else sa.func.instr)(column, text)


def _has(tx: sa.Connection, column: sa.ColumnElement[str], needles: list[str]) -> sa.ColumnElement[bool]:
    return sa.or_(*(_position(tx, column, needle) > 0 for needle in needles))


def _ordered(operator: str, operand: str) -> Callable[[Value], bool]:
    number = _SIZE.fullmatch(operand)
    size = int(number[1]) * UNITS[number[2]] if number else None
    has_epoch = _EPOCH.match(operand) is not None
    key = version_key(operand)

    def decide(value: Value) -> bool:
        if size is not None and isinstance(value, int):
            there: Any = value
            bound: Any = size
        else:
            text = str(value)
            # Who asks for 1.2 without an epoch means the version that people see, whatever epoch a packager has set.
            there, bound = version_key(text if has_epoch else _EPOCH.sub("", text)), key
        if operator == "<":
            return bool(there < bound)
        if operator == "<=":
            return bool(there <= bound)
        return bool(there > bound if operator == ">" else there >= bound)

    return decide


_EPOCH = re.compile(r"\d+:")
_PARTS = re.compile(r"(\D*)(\d*)")


def version_key(text: str) -> list[tuple[list[int], int]]:
    """Return what orders numbers and versions: ``9 < 10``, ``1.9 < 1.10``, ``2.0~rc1 < 2.0 < 2.0a < 2.0-1 < 2.0.1``.

    It is the order of Debian's packages (deb-version(7)): runs of digits count as numbers, other characters by
    themselves, the tilde before everything and even before the end, letters before the rest.
    """
    key = []
    for other, digits in _PARTS.findall(text):
        if other or digits:
            # The end of a run of other characters is 0, so that only the tilde is before it.
            key.append(([*map(_weight, other), 0], int(digits or 0)))
    return [*key, ([0], -1)]


def _weight(character: str) -> int:
    if character == "~":
        return -1
    return ord(character) if character.isalpha() else ord(character) + 0x110000


class _ConditionParser:
    """Reads a condition from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._terms = self._depth = 0

    def whole(self) -> Condition:
        condition = self._any()
        if self._rest():
            raise self._wrong("`and`, `or` or the end")
        return condition

    def _any(self) -> Condition:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise self._error(f"The condition is nested more than {MAX_NESTING} deep.")
        parts = [self._all()]
        while self._took("or"):
            parts.append(self._all())
        self._depth -= 1
        return parts[0] if len(parts) == 1 else Either(tuple(parts))

    def _all(self) -> Condition:
        parts = [self._one()]
        while self._took("and"):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def _one(self) -> Condition:
        negated = False
        while self._took("not"):
            negated = not negated
        if self._rest().startswith("("):
            opened = self._at
            self._at += 1
            inner = self._any()
            if not self._rest().startswith(")"):
                raise self._wrong(f"`)` for the `(` at character {opened + 1}")
            self._at += 1
        else:
            inner = self._comparison()
        return Not(inner) if negated else inner

    def _comparison(self) -> Comparison:
        self._terms += 1
        if self._terms > MAX_TERMS:
            raise self._error(f"The condition has more than {MAX_TERMS} comparisons.")
        match = _NAME.match(self._rest())
        if match is None or match[0].lower() in _KEYWORDS:
            raise self._wrong("the name of a label or fact")
        self._at += match.end()
        operator = _OPERATOR.match(self._rest())
        if operator is None:
            return Comparison(match[0])
        self._at += operator.end()
        if operator[0] in ("=", "!=") and self._rest().startswith("~"):
            sign = operator[0].removesuffix("=") + "~"
            raise self._error(
                f"There is no operator {operator[0]}~. A pattern is {match[0]}{sign}PATTERN; quote a value that begins "
                "with ~."
            )
        comparison = Comparison(match[0], operator[0], self._value())
        if operator[0][0] in "<>":
            self._require_order(comparison.value)
        if operator[0].endswith("~"):
            try:
                compile_pattern(comparison.value)
            except InvalidRequest as error:
                raise self._error(error.message) from None
        return comparison

    def _require_order(self, value: str) -> None:
        """Refuse what was meant as a size, and would be compared as a version: `not memory.total>4GB` would be true."""
        if _LIKE_A_SIZE.fullmatch(value) and not _SIZE.fullmatch(value):
            raise self._error(
                f"{value} is not a size. Give a whole number of bytes, or of K, M, G or T (1,024 to a power): 4G."
            )

    def _value(self) -> str:
        rest = self._rest()
        if rest[:1] in ('"', "'"):
            return self._quoted(rest)
        match = _BARE.match(rest)
        if match is None:
            raise self._wrong("a value; one with blanks or parentheses is quoted, and an empty one is ''")
        self._at += match.end()
        return match[0]

    def _quoted(self, rest: str) -> str:
        characters = []
        at = 1
        while at < len(rest) and rest[at] != rest[0]:
            # A backslash makes the next character one of the value.
            at += rest[at] == "\\" and at + 1 < len(rest)
            characters.append(rest[at])
            at += 1
        if at >= len(rest):
            raise self._error(f"The {rest[0]} is not closed.")
        self._at += at + 1
        return "".join(characters)

    def _took(self, keyword: str) -> bool:
        word = _WORD.match(self._rest())
        if word is None or word[0].lower() != keyword:
            return False
        self._at += word.end()
        return True

    def _rest(self) -> str:
        """Skip blanks, and return the rest of the text."""
        rest = self._text[self._at :]
        stripped = rest.lstrip()
        self._at += len(rest) - len(stripped)
        return stripped

    def _wrong(self, expected: str) -> InvalidRequest:
        rest = self._rest()
        there = f"there is {next(self._shown(rest))!r}" if rest else "it ends"
        return self._error(f"Expected {expected}, and {there}.")

    def _shown(self, rest: str) -> Iterator[str]:
        for pattern in (_WORD, _OPERATOR):
            if match := pattern.match(rest):
                yield match[0][:40]
        yield rest[0]

    def _error(self, text: str) -> InvalidRequest:
        return InvalidRequest(f"At character {self._at + 1}: {text}")
