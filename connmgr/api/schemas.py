"""Fields that several endpoint groups share."""

from __future__ import annotations

import uuid
from datetime import datetime, timezone
from typing import Any

from marshmallow import ValidationError, fields

from connmgr.fields import Text

MAX_ID = 100


class Id(Text):
    """The uuid of a connection or category, in lower case.

    Anything else is passed on as it is, for whoever looks it up to say that it does not know it.
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


class UtcTime(fields.String):
    """A point in time, dumped as ISO 8601 in UTC with microseconds: ``2025-01-31T08:15:00.000000Z``."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.metadata = {"format": "date-time", **self.metadata}

    def _serialize(self, value: Any, attr: str | None, obj: Any, **kwargs: Any) -> Any:
        return None if value is None else self.text(value)

    @staticmethod
    def text(value: datetime) -> str:
        """Return ``value``, which is aware, as it is dumped."""
        return value.astimezone(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")
