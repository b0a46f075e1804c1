"""Fields used by several endpoint groups."""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from marshmallow import ValidationError, fields

from connmgr.errors import InvalidRequest
from connmgr.fields import Number, Range, Schema, Text
from connmgr.vault import glob

MAX_ID = 100
MAX_PATH = 8192
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
