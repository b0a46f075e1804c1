"""Fields used by several endpoint groups."""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from marshmallow import ValidationError, fields

from connmgr.contract import common as elevation
from connmgr.errors import InvalidRequest
from connmgr.fields import Number, Range, Schema, Text
from connmgr.vault import glob
from connmgr.vault.elevated import MAX_USER

MAX_ID = 160
"""Longest id: that of an elevated connection has two uuids and a user."""

MAX_PATH = 8192
_FIRST = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LAST = datetime(9999, 12, 30, tzinfo=timezone.utc)
_NO_MOMENT = "Not a time since 1970 such as 2025-01-31T08:15:00Z."
MAX_APPROVAL_WAIT = 60
"""Longest wait of a request for its approval, in seconds."""


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
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            distinct = dict.fromkeys(value)
            if len(distinct) < len(value):
                loaded = super()._deserialize(list(distinct), attr, data, **kwargs)
                found = dict(zip(distinct, loaded, strict=True))
                return [found[one] for one in value]
        return super()._deserialize(value, attr, data, **kwargs)


class Filter(Text):
    """A filter of :mod:`connmgr.vault.glob`; errors name the field of a malformed one."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        text = super()._deserialize(value, attr, data, **kwargs)
        try:
            glob.compile(text)
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
    """The name of a user of a far side, or ``#`` and a number."""

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


ELEVATE = (
    "Run as another user: by sudo over the connection, in an elevated shell of its own. `user` is `root` if omitted. "
    "Without `password`, sudo gets the one stored for the connection or a category above it (`/secret/sudo`). A "
    "`password` given here is kept in memory while the elevated connection has a link."
)


class AwaitsApproval(Schema):
    """A request that may need an approval."""

    wait = Number(
        load_default=0,
        validate=Range(min=0, max=MAX_APPROVAL_WAIT),
        metadata={
            "description": "Seconds to wait for an approval, if a rule of the token asks for one, before the answer "
            "`approval_required`."
        },
    )


class UtcTime(fields.String):
    """A point in time, dumped as ISO 8601 in UTC with microseconds: ``2025-01-31T08:15:00.000000Z``."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.metadata = {"format": "date-time", **self.metadata}

    def _serialize(self, value: Any, attr: str | None, obj: Any, **kwargs: Any) -> Any:
        return None if value is None else self.text(value)

    @staticmethod
    def text(value: datetime) -> str:
        """Return the dumped form of ``value``, an aware time."""
        return value.astimezone(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")


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
