"""The strict fields of requests, and the schemas that validate requests, derived from the messages of the contract."""

from __future__ import annotations

import base64
import binascii
import re
import typing
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from difflib import get_close_matches
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

from marshmallow import ValidationError, fields, missing, post_load, pre_load, validate

from connmgr.contract import common as elevation
from connmgr.contract.common import ELEVATE, SECOND_NAMES, Located
from connmgr.contract.fs import MOMENT, QUERY_PATH, QUERY_USER
from connmgr.contract.message import (
    ABSENT,
    AWARE,
    DISTINCT,
    FILTER,
    ID,
    INTERNAL,
    MODE,
    NUL,
    PATH,
    SEQUENCES,
    USER,
    WHERE,
    Fact,
    Field,
    Keys,
    Length,
    Message,
    OneOf,
    Pattern,
    Range,
    SchemaMembers,
    Wrong,
    fields_of,
    time_to_json,
    unwrapped,
)
from connmgr.contract.secret import ENCRYPTED
from connmgr.contract.token import EXPIRY, LOAN, MAX_DAYS
from connmgr.contract.vault import NEW_PASSPHRASE
from connmgr.errors import InvalidRequest
from connmgr.fields import Boolean, EncryptedSchema, Integer, Number, Schema, Text
from connmgr.secrets.passphrases import check_new_passphrase
from connmgr.vault import names, where
from connmgr.vault.unstored import MAX_USER

MAX_ID = 160
"""Longest id: that of an elevated connection has two uuids and a user."""

MAX_PATH = 8192
MOST_SUGGESTIONS = 5
LONGEST_NAME = 64
"""Longest name of an unknown field that is compared with the names of known ones: comparing takes a while."""

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_FIRST = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LAST = datetime(9999, 12, 30, tzinfo=timezone.utc)
_NO_MOMENT = "Not a time since 1970 with its zone, such as 2025-01-31T08:15:00Z."


class Id(Text):
    """The uuid of a connection or category, in lower case.

    Any other text is passed on unchanged, so that the lookup answers that it is unknown.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.metadata = {"format": "uuid", **self.metadata}

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        text = super()._deserialize(value, attr, data, **kwargs)
        if len(text) > MAX_ID:
            raise ValidationError("Not a valid uuid.")
        try:
            return str(uuid.UUID(text))
        except ValueError:
            return text


class Ids(fields.List):  # type: ignore[type-arg]
    """A list of uuids, without duplicates."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(Id(), **kwargs)

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> list[Any]:
        if isinstance(value, list) and all(isinstance(text, str) for text in value):
            if all(_UUID.fullmatch(text) for text in value):
                # As nearly all are. The steps of a field for each would take ten times as long.
                return value
            # By loops of Python, since a call of C over a hundred thousand ids would stop all other threads meanwhile.
            distinct = {text: None for text in value}  # noqa: C420
            if len(distinct) < len(value):
                loaded = super()._deserialize(list(distinct), attr, data, **kwargs)
                by_text = {text: id for text, id in zip(distinct, loaded, strict=True)}  # noqa: C416
                return [by_text[text] for text in value]
        return super()._deserialize(value, attr, data, **kwargs)


class Filter(Text):
    """A filter of :mod:`connmgr.vault.names`; errors name the field of a malformed one."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        text = super()._deserialize(value, attr, data, **kwargs)
        try:
            names.compile_pattern(text)
        except InvalidRequest as error:
            raise ValidationError(error.message) from None
        return text


class Condition(Text):
    """A condition of :mod:`connmgr.vault.where`; errors name the place in a malformed one."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        text = super()._deserialize(value, attr, data, **kwargs)
        if not text.strip():
            # It is what a script's empty variable leaves, and must not mean every machine.
            raise ValidationError("It is blank. Leave the condition out to choose without one.")
        try:
            where.parse(text)
        except InvalidRequest as error:
            raise ValidationError(error.message) from None
        return text


class Members(fields.Dict):
    """A dict whose errors name the member, whether its name or its value is at fault."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        try:
            return super()._deserialize(value, attr, data, **kwargs)  # type: ignore[no-untyped-call]
        except ValidationError as error:
            if not isinstance(error.messages, dict):
                raise
            parts: dict[Any, dict[str, Any]] = error.messages
            raise ValidationError({name: list(wrong.values()) for name, wrong in parts.items()}) from None


class UserName(Text):
    """The name of a user of a remote host, or ``#`` and a number."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.metadata = {"minLength": 1, "maxLength": MAX_USER, **self.metadata}

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        name = super()._deserialize(value, attr, data, **kwargs)
        if not 1 <= len(name) <= MAX_USER or name.startswith("-") or not name.isprintable() or " " in name:
            raise ValidationError("Not the name of a user.")
        return name


class Elevate(fields.Field[elevation.Elevate]):
    """A wish to run as another user by sudo: ``{"user": …, "password": …}``; in a query only the user's name."""

    def __init__(self, *, in_query: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        user = {"type": "string", "minLength": 1, "maxLength": MAX_USER, "default": "root"}
        password = {"type": "string", "format": "password", "writeOnly": True}
        members = {
            "user": {**user, "description": "The user to run as; `root` if omitted."},
            "password": {**password, "description": "What sudo asks for, in place of the stored password."},
        }
        described: dict[str, Any] = {"type": "object", "properties": members, "additionalProperties": False}
        self.metadata = {**({"type": "string"} if in_query else described), **self.metadata}
        self._in_query = in_query

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> elevation.Elevate:
        members = {"user": value} if self._in_query else value
        if not isinstance(members, Mapping) or not members.keys() <= {"user", "password"}:
            raise ValidationError('Not of the form {"user": "root"}.')
        wanted = {"user": UserName().deserialize(members.get("user", "root"))}
        if "password" in members:
            wanted["password"] = Text().deserialize(members["password"])
        return elevation.Elevate(**wanted)


class UtcTime(fields.String):
    """A point in time, dumped as ISO 8601 in UTC with microseconds: ``2025-01-31T08:15:00.000000Z``."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.metadata = {"format": "date-time", **self.metadata}

    def _serialize(self, value: Any, attr: str | None, obj: Any, **kwargs: Any) -> Any:
        return None if value is None else time_to_json(value)


class FilePath(fields.Field[bytes]):
    """A path: a string, or ``{"base64": …}`` where it is not UTF-8; dumped the same way."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.metadata = {
            "type": ["string", "object"],
            "oneOf": [
                {"type": "string", "minLength": 1},
                {
                    "type": "object",
                    "properties": {"base64": {"type": "string", "format": "byte"}},
                    "required": ["base64"],
                    "additionalProperties": False,
                },
                *([{"type": "null"}] if self.allow_none else []),
            ],
            **self.metadata,
        }

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> bytes:
        if isinstance(value, str):
            path = Text().deserialize(value).encode()
        elif isinstance(value, Mapping) and set(value) == {"base64"} and isinstance(value["base64"], str):
            try:
                path = base64.b64decode(value["base64"], validate=True)
            except (binascii.Error, ValueError):
                raise ValidationError("Not valid base64.") from None
        else:
            raise ValidationError('Neither a string nor {"base64": …}.')
        if not path or b"\0" in path or len(path) > MAX_PATH:
            raise ValidationError(f"A path has 1 to {MAX_PATH} bytes, none of them NUL.")
        return path

    def _serialize(self, value: Any, attr: str | None, obj: Any, **kwargs: Any) -> Any:
        if value is None:
            return None
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}


class Mode(Text):
    """Permission bits as an octal string, ``0644``; loaded as an integer."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.metadata = {"pattern": "^[0-7]{3,5}$", **self.metadata}

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        text = super()._deserialize(value, attr, data, **kwargs)
        if not 3 <= len(text) <= 5 or set(text) - set("01234567") or int(text, 8) > 0o7777:
            raise ValidationError("Not an octal mode such as 0644.")
        return int(text, 8)

    def _serialize(self, value: Any, attr: str | None, obj: Any, **kwargs: Any) -> Any:
        return None if value is None else f"{value:04o}"


class QueryPath(FilePath):
    """A path in a query, where any byte can be written as ``%FF``."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.metadata = {name: value for name, value in self.metadata.items() if name != "oneOf"} | {"type": "string"}


class Moment(Text):
    """A time in ISO 8601 with its offset from UTC; loaded as an aware datetime."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.metadata = {"format": "date-time", **self.metadata}

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        text = super()._deserialize(value, attr, data, **kwargs)
        try:
            moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
        except ValueError:
            raise ValidationError(_NO_MOMENT) from None
        if moment.tzinfo is None or not _FIRST <= moment <= _LAST:
            raise ValidationError(_NO_MOMENT)
        return moment


class Expiry(fields.Field[datetime | timedelta]):
    """When a token expires: seconds from now, or a time with its zone, as RFC 3339 writes it."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.metadata = {"type": ["number", "string"], **self.metadata}

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> datetime | timedelta:
        try:
            if isinstance(value, int | float) and not isinstance(value, bool):
                # By the vault's clock, which only the view knows.
                return timedelta(seconds=value)
            moment = datetime.fromisoformat(value.replace("Z", "+00:00") if isinstance(value, str) else "")
        except (OverflowError, ValueError):
            raise ValidationError("Neither a number of seconds nor a time as 2026-01-31T08:15:00Z.") from None
        if moment.tzinfo is None:
            raise ValidationError("The time has no zone: write it as 2026-01-31T08:15:00Z.")
        return moment.astimezone(timezone.utc)


class Loaned(fields.Field[Mapping[str, float] | None]):
    """Whether secrets are lent, and for how long: true, or an object with "seconds"."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.metadata = {"type": ["boolean", "object"], **self.metadata}

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Mapping[str, float] | None:
        if isinstance(value, bool):
            return {} if value else None
        seconds = value.get("seconds") if isinstance(value, Mapping) and set(value) == {"seconds"} else None
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= MAX_DAYS * 86400:
            raise ValidationError('Neither true nor {"seconds": …} with a number above 0, at most 90 days.')
        return {"seconds": seconds}


class NewPassphrase(Text):
    """The new passphrase of a user."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        text = super()._deserialize(value, attr, data, **kwargs)
        try:
            check_new_passphrase(text)
        except InvalidRequest as error:
            raise ValidationError(error.message) from None
        return text


# Arithmetic with times beyond these overflows.
_TIMES = validate.Range(datetime(1970, 1, 1, tzinfo=timezone.utc), datetime(9000, 1, 1, tzinfo=timezone.utc))

BY_FACT: Mapping[object, Callable[..., fields.Field[Any]]] = {
    ID: Id,
    FILTER: Filter,
    WHERE: Condition,
    USER: UserName,
    PATH: FilePath,
    DISTINCT: Ids,
    ELEVATE: Elevate,
    QUERY_USER: partial(Elevate, in_query=True),
    QUERY_PATH: QueryPath,
    MODE: Mode,
    MOMENT: Moment,
    EXPIRY: Expiry,
    LOAN: Loaned,
    NEW_PASSPHRASE: NewPassphrase,
    AWARE: partial(Moment, validate=_TIMES),
    ENCRYPTED: partial(fields.Nested, EncryptedSchema),
}
"""The strict field of a value that its type alone does not tell."""


class _Loading(NamedTuple):
    """What a schema does with the members of a request, and for those that are not there."""

    fields: Mapping[str, tuple[str, fields.Field[Any]]]
    """The attribute and the field of each member, by its name in JSON."""

    defaults: Mapping[str, Any]
    made: Mapping[str, Callable[[], Any]]
    """Attributes whose default is made for each request."""

    required: frozenset[str]


class MessageSchema(Schema):
    """The schema of a message; it loads the message itself."""

    made_of: ClassVar[type[Message]]

    def load(self, data: Any, *, many: bool | None = None, partial: Any = None, unknown: Any = None) -> Any:
        # marshmallow asks every field of a schema for its value; most requests name few of many. It is left to say what
        # is wrong.
        is_usual = isinstance(data, dict) and not (many or self.many or partial or unknown)
        message = self._loaded(data) if is_usual else None
        return super().load(data, many=many, partial=partial, unknown=unknown) if message is None else message

    def _loaded(self, data: Mapping[str, Any]) -> Message | None:
        """Return the message that ``data`` is; None if something of it is wrong, or has its second name."""
        loading = self._loading
        values = {**loading.defaults, **{name: make() for name, make in loading.made.items()}}
        try:
            for name, value in data.items():
                if name not in loading.fields:
                    return None
                attribute, field = loading.fields[name]
                values[attribute] = field.deserialize(value, name, data)
            return self.make(values) if loading.required <= values.keys() else None
        except ValidationError:
            return None

    @cached_property
    def _loading(self) -> _Loading:
        all_fields = self.load_fields.items()
        defaults = {name: field.load_default for name, field in all_fields if field.load_default is not missing}
        return _Loading(
            {field.data_key or name: (name, field) for name, field in all_fields},
            {name: default for name, default in defaults.items() if not callable(default)},
            {name: default for name, default in defaults.items() if callable(default)},
            frozenset(name for name, field in all_fields if field.required),
        )

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
        if len(messages) <= MOST_SUGGESTIONS:
            messages |= self._suggestions(messages)
        second = SECOND_NAMES["connection"]
        if issubclass(self.made_of, Located) and second in data and "connection" in messages:
            messages[second] = messages.pop("connection")

    def _suggestions(self, messages: Mapping[str, Any]) -> dict[str, Any]:
        """Return the messages about unknown fields whose name is much like that of a known one."""
        names = {_folded(field.data_key or name): field.data_key or name for name, field in self.fields.items()}
        unknown = [name for name, texts in messages.items() if texts == [self.error_messages["unknown"]]]
        near = {name: get_close_matches(_folded(name), names, 1) for name in unknown if len(name) <= LONGEST_NAME}
        return {name: [f"Unknown field. Is {names[matches[0]]} meant?"] for name, matches in near.items() if matches}

    @post_load
    def make(self, data: dict[str, Any], **_: Any) -> Message:
        made = self.made_of(**data)
        try:
            made.check()
        except Wrong as wrong:
            raise ValidationError(wrong.text, wrong.field) from None
        return made


def _folded(name: str) -> str:
    return name.replace("_", "").lower()


def schema_of(kind: type[Message]) -> type[MessageSchema]:
    """Return the schema of a message; its name in the published description is the message's."""
    if kind not in _SCHEMAS:
        declared = {field.name: _marshmallow_field(field) for field in fields_of(kind) if INTERNAL not in field.facts}
        # A nested message has one schema, whoever nests it: two of one name would be two in the description.
        names = ", ".join(field.json for field in fields_of(kind))
        more = {"made_of": kind, "__doc__": kind.__doc__, "error_messages": {"type": f"Not an object, of {names}."}}
        _SCHEMAS[kind] = type(kind.__name__, (MessageSchema,), {**declared, **more})
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
            case SchemaMembers(members):
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
