"""Strict marshmallow fields for the HTTP API and the schemas of connection types.

marshmallow accepts ``"yes"`` for a boolean and ``true`` for an integer; an API that drives machines must not guess.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any

import marshmallow
from marshmallow import ValidationError as ValidationError
from marshmallow import fields, validate
from marshmallow import validates_schema as validates_schema
from marshmallow.fields import List as List
from marshmallow.fields import Nested as Nested
from marshmallow.validate import Length as Length
from marshmallow.validate import OneOf as OneOf
from marshmallow.validate import Range as Range


class Schema(marshmallow.Schema):
    """A schema that refuses unknown fields."""

    class Meta:
        unknown = marshmallow.RAISE


_PIECE = 64 * 1024


class Text(fields.String):
    """A JSON string that can be encoded as UTF-8 (no lone surrogates), without NUL unless ``allow_nul``."""

    def __init__(self, *, allow_nul: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.allow_nul = allow_nul

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        text = super()._deserialize(value, attr, data, **kwargs)
        try:
            # In pieces, because a single call over many megabytes stops all other threads meanwhile.
            for start in range(0, len(text), _PIECE):
                text[start : start + _PIECE].encode()
        except UnicodeEncodeError:
            raise ValidationError("Not a valid string: it holds a lone surrogate.") from None
        if "\0" in text and not self.allow_nul:
            raise ValidationError("A NUL character is not allowed here.")
        return text


class Integer(fields.Integer):
    """A JSON integer; neither a boolean nor a number with a fraction."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(strict=True, **kwargs)

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.make_error("invalid", input=value)
        return value


class Number(fields.Float):
    """A finite JSON number; not a boolean."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.make_error("invalid", input=value)
        try:
            number = float(value)
        except OverflowError:
            raise self.make_error("too_large", input=value) from None
        if not math.isfinite(number):
            raise self.make_error("special")
        return number


class Boolean(fields.Boolean):
    """A JSON ``true`` or ``false``."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> bool:
        if not isinstance(value, bool):
            raise self.make_error("invalid", input=value)
        return value


class _LockedSchema(Schema):
    encryptedValue = Text(required=True, metadata={"description": "Base64."})
    type = Text(required=True, validate=validate.Equal("locked"), metadata={"description": "Always locked."})


class _TokenSchema(Schema):
    token = Text(required=True, metadata={"description": "Base64."})


class EncryptedSchema(Schema):
    """The encrypted form of a secret, as ``/secret/encrypt`` returns it; opaque to clients."""

    encryptedToken = fields.Nested(_TokenSchema, required=True, metadata={"description": "Who may open it."})
    secret = fields.Nested(_LockedSchema, required=True, metadata={"description": "What is kept secret."})


FROM = "from"
"""The only member of a reference to a secret that is elsewhere."""


def is_reference(value: Any) -> bool:
    """Whether the value of a :class:`Secret` says where to fetch it: ``{"from": {"source": NAME, …}}``."""
    return isinstance(value, Mapping) and FROM in value


def secret_references(data: Any) -> Iterator[Mapping[str, Any]]:
    """Yield each reference to a secret elsewhere within unchecked ``data`` of a connection of any type."""
    if is_reference(data) and isinstance(data[FROM], Mapping) and "source" in data[FROM]:
        yield data
    elif isinstance(data, Mapping | list):
        for each in data.values() if isinstance(data, Mapping) else data:
            yield from secret_references(each)


class Secret(fields.Field[Any]):
    """A secret: a plain string, the object that ``/secret/encrypt`` returns, or a reference to where it is.

    Plain strings are encrypted before they are stored; the type's ``open`` receives plain strings. What a reference may
    say is its source's to check (:mod:`connmgr.secret_sources`).
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        description = "A plain string, or the encrypted form; stored and returned encrypted. Or `from` a secret source."
        self.metadata = {"description": description, **self.metadata}

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if isinstance(value, str):
            return Text().deserialize(value)
        if is_reference(value):
            source = value[FROM]
            if len(value) > 1 or not isinstance(source, Mapping) or not isinstance(source.get("source"), str):
                raise ValidationError('Not of the form {"from": {"source": NAME, …}}.')
            return {FROM: dict(source)}
        if isinstance(value, Mapping):
            return EncryptedSchema().load(value)
        raise ValidationError("Neither a string nor an encrypted secret.")


class Reference(fields.String):
    """A connection that this one runs over: its uuid, or ``{"storeId": uuid}``."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        if isinstance(value, Mapping):
            if set(value) != {"storeId"}:
                raise ValidationError('Neither a uuid nor {"storeId": uuid}.')
            value = value["storeId"]
        if not isinstance(value, str):
            raise ValidationError("Not a connection's uuid.")
        try:
            return str(uuid.UUID(value))
        except ValueError:
            raise ValidationError("Not a connection's uuid.") from None


def every_field(schema: marshmallow.Schema, prefix: str = "") -> Iterator[tuple[str, fields.Field[Any]]]:
    """Yield ``(path, field)`` for all fields of ``schema`` at any depth; a list element's path ends in ``[]``."""
    for name, field in schema.fields.items():
        yield from _with_inner(prefix + name, field)


def _with_inner(path: str, field: fields.Field[Any]) -> Iterator[tuple[str, fields.Field[Any]]]:
    yield path, field
    if isinstance(field, fields.Nested):
        yield from every_field(field.schema, f"{path}.")
    for element in _elements(field):
        yield from _with_inner(f"{path}[]", element)


def _elements(field: fields.Field[Any]) -> Sequence[fields.Field[Any]]:
    if isinstance(field, fields.List):
        return [field.inner]
    if isinstance(field, fields.Tuple):
        return field.tuple_fields
    if isinstance(field, fields.Mapping):
        return [field.value_field] if field.value_field else []
    return []


def map_secrets(schema: marshmallow.Schema, data: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a copy of ``data`` with ``change`` applied to each :class:`Secret`, at any depth, that is not null."""
    return _map_all(Secret, schema, data, change)


def references(schema: marshmallow.Schema, data: Mapping[str, Any]) -> list[str]:
    """Return the uuids of the connections in :class:`Reference` fields of loaded ``data``, at any depth."""
    ids: list[str] = []
    map_references(schema, data, ids.append)
    return ids


def map_references(schema: marshmallow.Schema, data: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a copy of ``data`` with ``change`` applied to each :class:`Reference`, at any depth, that is not null."""
    return _map_all(Reference, schema, data, change)


def _map_all(
    kind: type[fields.Field[Any]], schema: marshmallow.Schema, data: Mapping[str, Any], change: Callable[[Any], Any]
) -> dict[str, Any]:
    """Return a copy of ``data`` with ``change`` applied to all values, unless null, of fields of ``kind``."""

    def mapped(field: fields.Field[Any], value: Any) -> Any:
        if value is None:
            return None
        if isinstance(field, kind):
            return change(value)
        if isinstance(field, fields.Nested) and isinstance(value, Mapping):
            return _map_all(kind, field.schema, value, change)
        inner = [field] if isinstance(field, fields.Nested) else _elements(field)
        if inner and isinstance(value, Mapping):
            return {key: mapped(inner[0], item) for key, item in value.items()}
        if inner and isinstance(value, list | tuple):
            # Each element of a tuple has its own field; those of a list share one.
            return [mapped(*pair) for pair in zip(cycle(inner), value, strict=False)]
        return value

    by_name = schema.fields
    return {name: mapped(by_name[name], value) if name in by_name else value for name, value in data.items()}
