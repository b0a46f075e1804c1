"""Derives the marshmallow schemas that validate requests, and describe answers, from the messages of the contract."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from typing import Any, ClassVar

import marshmallow
from marshmallow import ValidationError, fields, post_load, pre_load, validate

from connmgr.api.schemas import (
    Elevate,
    FilePath,
    Filter,
    Id,
    Ids,
    Members,
    Mode,
    Moment,
    QueryPath,
    UserName,
    UtcTime,
)
from connmgr.contract.audit import AWARE
from connmgr.contract.common import ELEVATE, SECOND_NAMES, Located
from connmgr.contract.fs import MOMENT, QUERY_PATH, QUERY_USER
from connmgr.contract.message import (
    ABSENT,
    DISTINCT,
    FILTER,
    ID,
    INTERNAL,
    MODE,
    NUL,
    PATH,
    SEQUENCES,
    USER,
    Described,
    Fact,
    Field,
    Keys,
    Length,
    Message,
    OneOf,
    Pattern,
    Range,
    Wrong,
    fields_of,
    unwrapped,
)
from connmgr.contract.secret import ENCRYPTED
from connmgr.fields import Boolean, EncryptedSchema, Integer, Number, Schema, Text

# Arithmetic with times beyond these overflows.
_TIMES = validate.Range(datetime(1970, 1, 1, tzinfo=timezone.utc), datetime(9000, 1, 1, tzinfo=timezone.utc))

BY_FACT: Mapping[object, Callable[..., fields.Field[Any]]] = {
    ID: Id,
    FILTER: Filter,
    USER: UserName,
    PATH: FilePath,
    DISTINCT: Ids,
    ELEVATE: Elevate,
    QUERY_USER: partial(Elevate, in_query=True),
    QUERY_PATH: QueryPath,
    MODE: Mode,
    MOMENT: Moment,
    AWARE: partial(fields.AwareDateTime, format="iso", validate=_TIMES),
    ENCRYPTED: partial(fields.Nested, EncryptedSchema),
}
"""The strict field of a value that its type alone does not tell."""


class MessageSchema(Schema):
    """The schema of a message; it loads the message itself."""

    made_of: ClassVar[type[Message]]

    @pre_load
    def take_second_name(self, data: Mapping[str, Any], **_: Any) -> Mapping[str, Any]:
        if not issubclass(self.made_of, Located) or SECOND_NAMES["connection"] not in data:
            return data
        second = SECOND_NAMES["connection"]
        if "connection" in data:
            raise ValidationError("This is another name of connection; give only one of them.", second)
        return {"connection" if name == second else name: value for name, value in data.items()}

    def handle_error(self, error: ValidationError, data: Any, **_: Any) -> None:
        """Name the field as in the client's vocabulary."""
        messages: Any = error.messages
        second = SECOND_NAMES["connection"]
        if issubclass(self.made_of, Located) and second in data and "connection" in messages:
            messages[second] = messages.pop("connection")

    @post_load
    def make(self, data: dict[str, Any], **_: Any) -> Message:
        made = self.made_of(**data)
        try:
            made.check()
        except Wrong as wrong:
            raise ValidationError(wrong.text, wrong.field) from None
        return made


def schema_of(kind: type[Message]) -> type[MessageSchema]:
    """Return the schema of a message; its name in the published description is the message's."""
    if kind not in _SCHEMAS:
        declared = {field.name: _marshmallow_field(field) for field in fields_of(kind) if INTERNAL not in field.facts}
        # A nested message has one schema, whoever nests it: two of one name would be two in the description.
        _SCHEMAS[kind] = type(kind.__name__, (MessageSchema,), {**declared, "made_of": kind, "__doc__": kind.__doc__})
    return _SCHEMAS[kind]


_SCHEMAS: dict[type[Message], type[MessageSchema]] = {}


def _marshmallow_field(field: Field) -> fields.Field[Any]:
    options: dict[str, Any] = {"data_key": field.json}
    if field.required:
        options["required"] = True
    elif field.default is not ABSENT and (field.default is not None or field.nullable):
        # An empty list or object is not published as a default.
        empty = isinstance(field.default, tuple | list | Mapping) and not field.default
        options["load_default"] = (lambda: field.default) if empty else field.default
    if field.nullable:
        options["allow_none"] = True
    if field.description:
        options["metadata"] = {"description": field.description}
    return _of_type(field.type, field.facts, options)


def _bounded(facts: Sequence[Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a field with the validators and the descriptions that its facts ask for."""
    validators: list[Any] = []
    described = dict(options.get("metadata", {}))
    for fact in facts:
        match fact:
            case Range(min, max, above):
                validators.append(validate.Range(min=min, max=max, min_inclusive=not above))
            case Length(min, max):
                validators.append(validate.Length(min=min, max=max))
            case OneOf(values):
                validators.append(validate.OneOf(list(values)))
            case Pattern(expression, error, published):
                validators.append(validate.Regexp(expression, error=error))
                described |= {"pattern": published} if published else {}
            case Described(members):
                described |= members
    if validators:
        options = {**options, "validate": validators[0] if len(validators) == 1 else validators}
    return {**options, "metadata": described} if described else options


def _of_type(kind: Any, facts: Sequence[Any], options: dict[str, Any]) -> fields.Field[Any]:
    """Return the strict field for values of a type with facts; ``options`` are those of every field."""
    options = _bounded(facts, options)
    own = next((BY_FACT[fact] for fact in facts if isinstance(fact, Fact) and fact in BY_FACT), None)
    if own is not None:
        return own(**options)
    origin = typing.get_origin(kind)
    if origin in SEQUENCES:
        item = unwrapped(typing.get_args(kind)[0])
        return fields.List(_of_type(item.type, item.facts, {}), **options)
    if origin in (Mapping, dict):
        item = unwrapped(typing.get_args(kind)[1])
        keys = next((fact.facts for fact in facts if isinstance(fact, Keys)), None)
        if item.type is Any and keys is None:
            return fields.Dict(**options)
        values = None if item.type is Any else _of_type(item.type, item.facts, {})
        return Members(keys=_of_type(str, keys or (), {}), values=values, **options)
    if isinstance(kind, type) and issubclass(kind, Message):
        return fields.Nested(schema_of(kind), **options)
    if kind is str:
        return Text(allow_nul=NUL in facts, **options)
    if kind is datetime:
        return UtcTime(**options)
    by_type: dict[Any, type[fields.Field[Any]]] = {int: Integer, float: Number, bool: Boolean}
    return by_type.get(kind, fields.Raw)(**options)


def schema(kind: type[Message] | type[marshmallow.Schema] | None) -> marshmallow.Schema | None:
    """Return the schema of a message, or of a schema's class."""
    if kind is None:
        return None
    return schema_of(kind)() if issubclass(kind, Message) else kind()
