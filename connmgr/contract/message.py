"""How a message of the API is declared, and how it becomes JSON and back.

A message is a class with annotated fields::

    class JobWaitRequest(JobRequest):
        wait: Annotated[float, Range(0, 30), "Seconds after which the answer comes in any case."] = 30.0

The text in ``Annotated`` is the field's published description; the other facts bound what the daemon accepts. A field
without a default is required. A field whose default is None may be absent; None then stands for that, and JSON's null
is refused. Where null has a meaning of its own, the type admits None and the default is another, or :data:`ABSENT`.

In JSON a field's name is written in camel case: ``max_bytes`` is ``maxBytes``. A trailing underscore is dropped.

Reading and writing here trust the other side. What clients send is validated by schemas that are derived from the same
declarations. Only the standard library's light modules are imported, because every start of the command line pays.
"""

from __future__ import annotations

import base64
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, Union

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: object) -> Callable[[type], type]:
        return lambda kind: kind


class Absent:
    """The type of :data:`ABSENT`."""

    def __repr__(self) -> str:
        return "ABSENT"

    def __bool__(self) -> bool:
        return False


ABSENT = Absent()
"""The default of a field that may be absent and whose null means something else."""


class Json(NamedTuple):
    """The name of a field in JSON, where it is not the attribute's in camel case."""

    name: str


class Range(NamedTuple):
    """The bounds of a number; ``above`` excludes the lower one."""

    min: float | None = None
    max: float | None = None
    above: bool = False


class Length(NamedTuple):
    """The bounds of the length of a text or a list."""

    min: int | None = None
    max: int | None = None


class OneOf(NamedTuple):
    """The values that a text may have."""

    values: tuple[str, ...]


class Pattern(NamedTuple):
    """A regular expression that a whole text must match, and the message for a text that does not match.

    ``published`` is the expression in the description of the API; empty if it has none.
    """

    expression: str
    error: str | None = None
    published: str = ""


class SchemaMembers:
    """Further members of a field's published description, as JSON Schema."""

    __match_args__ = ("members",)

    def __init__(self, members: Mapping[str, Any]) -> None:
        self.members = members


class Keys(NamedTuple):
    """The facts about the names in a mapping."""

    facts: tuple[Any, ...]


def time_to_json(time: datetime) -> str:
    """Return an aware time in ISO 8601, in UTC with microseconds: ``2025-01-31T08:15:00.000000Z``."""
    return time.astimezone(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")


def time_from_json(text: str) -> datetime:
    """Return a time of the API as an aware one."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def path_to_json(path: bytes) -> str | dict[str, str]:
    """Return a path as a text, or as ``{"base64": …}`` where it is not UTF-8."""
    try:
        return path.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(path).decode()}


def path_from_json(path: str | Mapping[str, str]) -> bytes:
    """Return a path of the API."""
    return path.encode() if isinstance(path, str) else base64.b64decode(path["base64"])


class Fact:
    """A fact about a field that needs no more than its name; ``write`` makes JSON of a value, ``read`` the reverse."""

    def __init__(
        self, name: str, write: Callable[[Any], Any] | None = None, read: Callable[[Any], Any] | None = None
    ) -> None:
        self.name = name
        self.write = write
        self.read = read

    def __repr__(self) -> str:
        return self.name


NUL = Fact("NUL")
"""A text may have NUL characters."""

INTERNAL = Fact("INTERNAL")
"""The daemon sets the field; clients may not."""

NULLABLE = Fact("NULLABLE")
"""JSON's null is accepted, and is the same as the default."""

SECRET = Fact("SECRET")
"""The value is a secret: the message's repr does not show it."""

ID = Fact("ID")
"""A uuid of something in the vault, in lower case; any other text means something unknown."""

FILTER = Fact("FILTER")
"""A filter for paths."""

WHERE = Fact("WHERE")
"""A condition on the labels of connections and on the facts about their machines."""

PATH = Fact("PATH", path_to_json, path_from_json)
"""Bytes of a path, in JSON a text, or ``{"base64": …}`` where they are not UTF-8."""

TIME = Fact("TIME", time_to_json, time_from_json)
"""A point in time, in JSON ISO 8601 in UTC with microseconds."""

AWARE = Fact("AWARE")
"""A time in ISO 8601 with a time zone."""

USER = Fact("USER")
"""The name of a user of a machine, or ``#`` and a number."""

MODE = Fact("MODE", "{:04o}".format, lambda text: int(text, 8))
"""Permission bits, in JSON an octal text such as ``0644``."""

DISTINCT = Fact("DISTINCT")
"""Equal ids in a list are validated once; a client may send thousands."""

M = TypeVar("M", bound="Message")


class Wrong(ValueError):
    """A message whose fields contradict each other; ``field`` is the JSON name of the one at fault."""

    def __init__(self, text: str, field: str) -> None:
        super().__init__(text)
        self.text = text
        self.field = field


class Field(NamedTuple):
    """A field as it was declared."""

    name: str
    json: str
    type: Any
    """The type without None and without ``Annotated``."""

    facts: tuple[Any, ...]
    description: str
    required: bool
    default: Any
    nullable: bool

    def fact(self, kind: type[Any]) -> Any:
        """Return the fact of this kind, or None."""
        return next((fact for fact in self.facts if isinstance(fact, kind)), None)

    @property
    def is_optional(self) -> bool:
        """Whether the field is left out of JSON when it has its default."""
        return not self.required and (self.default is None or self.default is ABSENT) and NULLABLE not in self.facts

    def is_absent(self, message: Message) -> bool:
        """Whether the field has no value in ``message``, and is left out of its JSON."""
        return self.is_optional and getattr(message, self.name) is self.default


@dataclass_transform(kw_only_default=True, frozen_default=True, eq_default=True)
class Message:
    """A message; its values do not change, and equal messages are equal.

    :raises TypeError: a required field is missing, or there is no field of a given name.
    """

    _fields: ClassVar[tuple[Field, ...] | None] = None
    _names: ClassVar[frozenset[str]] = frozenset()
    _required: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls) -> None:
        cls._fields = None
        cls._names = _NAMES  # type: ignore[assignment]
        cls._required = _REQUIRED  # type: ignore[assignment]

    def __init__(self, **values: Any) -> None:
        if not (self._required <= values.keys() <= self._names):
            wrong = sorted((self._required - values.keys()) | (values.keys() - self._names))
            raise TypeError(f"{type(self).__name__}: missing or unknown: {', '.join(wrong)}")
        # By the dictionary, since assigning is refused: messages do not change.
        self.__dict__.update(values)

    @classmethod
    def read(cls: type[M], members: Mapping[str, Any]) -> M:
        """Return the message that ``members`` of JSON hold; as :func:`from_json`."""
        return from_json(cls, members)

    def check(self) -> None:
        """Raise :class:`Wrong` if the fields contradict each other; a subclass calls its parent's first."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be assigned: messages do not change")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(getattr(self, n) == getattr(other, n) for n in self._names)

    def __hash__(self) -> int:
        return hash((type(self), *(getattr(self, name) for name in sorted(self._names))))

    def __repr__(self) -> str:
        fields = (field for field in fields_of(type(self)) if not field.is_absent(self))
        return f"{type(self).__name__}({', '.join(f'{field.name}={_shown(field, self)}' for field in fields)})"


class _Undeclared:
    """Stands for a set of names in a message class until the set is first read.

    A start of the command line imports two hundred message classes, of which it uses three or four.
    """

    def __init__(self, attribute: str) -> None:
        self._attribute = attribute

    def __get__(self, _message: object, kind: type[Message]) -> frozenset[str]:
        declared: dict[str, bool] = {}
        for base in reversed(kind.__mro__):
            for name, hint in getattr(base, "__annotations__", {}).items():
                if base is not Message and not _is_of_class(hint):
                    # A default of a parent class does not count where the field is declared anew.
                    declared[name] = name not in base.__dict__
                elif name in declared and name in base.__dict__:
                    declared[name] = False
        kind._names = frozenset(declared)
        kind._required = frozenset(name for name, required in declared.items() if required)
        names: frozenset[str] = kind.__dict__[self._attribute]
        return names


# Every class shares these: making two for each of them would take longer than the rest of its declaration.
_NAMES, _REQUIRED = _Undeclared("_names"), _Undeclared("_required")


def _is_of_class(hint: object) -> bool:
    return (isinstance(hint, str) and hint.startswith("ClassVar")) or typing.get_origin(hint) is ClassVar


def _shown(field: Field, message: Message) -> str:
    value = getattr(message, field.name)
    return "…" if SECRET in field.facts and value is not None else repr(value)


def message_of(kind: type[M], source: object, **own: Any) -> M:
    """Return a message about ``source``: each field is the attribute of its name, unless ``own`` has it."""
    # Also where a field may be absent: what neither of them has was forgotten.
    return kind(**{name: own[name] if name in own else getattr(source, name) for name in kind._names})


def replace(message: M, **changes: Any) -> M:
    """Return the message with other values of some fields."""
    return type(message)(**{**message.__dict__, **changes})


def camel_case(name: str) -> str:
    """Return the name of an attribute as JSON has it: ``maxBytes``, and ``from`` for ``from_``."""
    first, *further = name.rstrip("_").split("_")
    return first + "".join(map(str.capitalize, further))


def fields_of(kind: type[Message]) -> tuple[Field, ...]:
    """Return the fields of a message class, its parents' first, in the order of their declaration."""
    if kind._fields is None:
        names = dict.fromkeys(
            name
            for base in reversed(kind.__mro__)
            for name in getattr(base, "__annotations__", {})
            if name in kind._names
        )
        kind._fields = tuple(_field_of(kind, name) for name in names)
    return kind._fields


_FIELDS: dict[tuple[type[Message], str], Field] = {}


def _field_of(kind: type[Message], name: str) -> Field:
    """Return one field of a message class; its declaration is evaluated when it is first wanted.

    A start of the command line sends three or four fields of requests that have twenty, so that evaluating them one by
    one saves it more than the whole client's other work takes.
    """
    field = _FIELDS.get((kind, name))
    if field is None:
        # typing's own function for this does not return a parent's Annotated that a child declares anew.
        base = next(base for base in kind.__mro__ if name in getattr(base, "__annotations__", {}))
        hint = base.__annotations__[name]
        if isinstance(hint, str):
            hint = eval(hint, vars(sys.modules[base.__module__]))  # noqa: S307 - our own source
        field = _FIELDS[kind, name] = _field(kind, name, hint)
    return field


def _field(kind: type[Message], name: str, hint: Any) -> Field:
    type, facts, nullable = unwrapped(hint)
    texts = [fact for fact in facts if isinstance(fact, str)]
    required = name in kind._required
    default = None if required else getattr(kind, name)
    json = next((fact.name for fact in facts if isinstance(fact, Json)), camel_case(name))
    nullable = NULLABLE in facts or (nullable and (required or default is not None))
    others = tuple(fact for fact in facts if not isinstance(fact, str | Json))
    # The first text is the outermost: a description given where the field is declared.
    return Field(name, json, type, others, texts[0] if texts else "", required, default, nullable)


class Unwrapped(NamedTuple):
    """A type without ``Annotated`` and None; what annotated it, the outermost first; and whether None was part."""

    type: Any
    facts: tuple[Any, ...]
    nullable: bool


def unwrapped(hint: Any) -> Unwrapped:
    """Return the type within a hint."""
    facts: list[Any] = []
    nullable = False
    while True:
        origin = typing.get_origin(hint)
        if origin is Annotated:
            hint, *annotated = typing.get_args(hint)
            facts.extend(annotated)
        elif origin in (Union, types.UnionType):
            parts = typing.get_args(hint)
            nullable = nullable or type(None) in parts
            left = [part for part in parts if part not in (type(None), Absent)]
            if len(left) != 1:
                return Unwrapped(Any, tuple(facts), nullable)
            hint = left[0]
        elif origin is Literal:
            facts.append(OneOf(typing.get_args(hint)))
            hint = str
        else:
            return Unwrapped(hint, tuple(facts), nullable)


def to_json(message: Message, of_items: Callable[[Iterator[Any]], Any] = list) -> dict[str, Any]:
    """Return the message as members of JSON, without absent fields.

    ``of_items`` makes a list of the JSON of items; by ``iter`` each item becomes JSON only when it is read.
    """
    return {
        json: value
        if write is None or value is None
        else of_items(map(write.of_item, value))
        if isinstance(write, _OfItems)
        else write(value)
        for name, json, write, omitted in _writers(type(message))
        if (value := getattr(message, name)) is not omitted
    }


def members(message: Message) -> dict[str, Any]:
    """Return the values of the fields that are not absent, unconverted, by their names in JSON."""
    return {
        json: value
        for name, json, _, _ in _writers(type(message))
        if (value := getattr(message, name)) is not None and value is not ABSENT
    }


def given_json(message: Message) -> dict[str, Any]:
    """Return what was given to a request as members of JSON; the daemon fills in the defaults of all other fields.

    None that was given for a field that may be absent is left out, too.
    """
    kind, sent = type(message), {}
    for name, value in message.__dict__.items():
        if (value is None or value is ABSENT) and getattr(kind, name, _KEPT) is value:
            continue
        if (kind, name) not in _GIVEN:
            field = _field_of(kind, name)
            _GIVEN[kind, name] = (field.json, _writer(field.type, field.facts, given_json))
        json, write = _GIVEN[kind, name]
        sent[json] = value if write is None or value is None else write(value)
    return sent


_GIVEN: dict[tuple[type[Message], str], tuple[str, Callable[[Any], Any] | None]] = {}


def from_json(kind: type[M], members: Mapping[str, Any]) -> M:
    """Return the message that ``members`` of JSON hold; members that it does not know are ignored.

    :raises KeyError: a required one is missing.
    """
    values = {}
    for name, json, read, required in _readers(kind):
        # Members that nobody here knows are of a newer daemon.
        if required or json in members:
            value = members[json]
            values[name] = value if read is None or value is None else read(value)
    return kind(**values)


SEQUENCES = (list, tuple, Sequence)
"""The types of fields that are lists in JSON."""

_KEPT = object()
"""Stands for no value: a field that is never left out."""

_WRITERS: dict[type[Message], list[tuple[str, str, Callable[[Any], Any] | None, Any]]] = {}
_READERS: dict[type[Message], list[tuple[str, str, Callable[[Any], Any] | None, bool]]] = {}


def _writers(kind: type[Message]) -> list[tuple[str, str, Callable[[Any], Any] | None, Any]]:
    if kind not in _WRITERS:
        _WRITERS[kind] = [
            (field.name, field.json, _writer(field.type, field.facts), field.default if field.is_optional else _KEPT)
            for field in fields_of(kind)
        ]
    return _WRITERS[kind]


def _readers(kind: type[Message]) -> list[tuple[str, str, Callable[[Any], Any] | None, bool]]:
    if kind not in _READERS:
        _READERS[kind] = [
            (field.name, field.json, _reader(field.type, field.facts), field.required) for field in fields_of(kind)
        ]
    return _READERS[kind]


class _OfItems:
    """Makes JSON of the items of a list."""

    def __init__(self, of_item: Callable[[Any], Any]) -> None:
        self.of_item = of_item

    def __call__(self, values: Iterable[Any]) -> list[Any]:
        return list(map(self.of_item, values))


def _writer(
    type_: Any, facts: Sequence[Any], of_message: Callable[[Any], Any] = to_json
) -> Callable[[Any], Any] | None:
    """Return what makes JSON of a value, None where it is JSON already; ``of_message`` does for messages within."""
    if typing.get_origin(type_) in SEQUENCES:
        item = unwrapped(typing.get_args(type_)[0])
        write = _writer(item.type, item.facts, of_message)
        return None if write is None else _OfItems(write)
    if isinstance(type_, type) and issubclass(type_, Message):
        return of_message
    own = next((fact.write for fact in facts if isinstance(fact, Fact) and fact.write), None)
    if own is None and typing.get_origin(type_) is Mapping:
        # A default is a read-only view, which json.dumps refuses.
        return dict
    return own or (time_to_json if type_ is datetime else None)


def _reader(type_: Any, facts: Sequence[Any]) -> Callable[[Any], Any] | None:
    if typing.get_origin(type_) in SEQUENCES:
        item = unwrapped(typing.get_args(type_)[0])
        read = _reader(item.type, item.facts)
        if typing.get_origin(type_) is tuple:
            return tuple if read is None else lambda values: tuple(map(read, values))
        return None if read is None else lambda values: list(map(read, values))
    if isinstance(type_, type) and issubclass(type_, Message):
        return lambda members: from_json(type_, members)
    if type_ is datetime:
        return time_from_json
    return next((fact.read for fact in facts if isinstance(fact, Fact) and fact.read), None)
