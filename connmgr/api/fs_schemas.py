"""What the requests and responses of ``/fs`` are made of."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from marshmallow import ValidationError, fields

from connmgr.api.schemas import Id, UtcTime
from connmgr.api.second_vocabulary import Located
from connmgr.fields import Boolean, Schema, Text

MAX_PATH = 8192


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


class PathRequest(Located):
    path = FilePath(
        required=True,
        metadata={"description": "Absolute, relative to the shell's directory, or beginning with `~/`."},
    )


class BlobResponse(Schema):
    blob = fields.String(required=True, metadata={"format": "uuid", "description": "The blob's uuid."})


class ScriptRequest(Located):
    blob = Id(required=True, metadata={"description": "A blob that this session has stored."})


class WriteRequest(PathRequest, ScriptRequest):
    mode = Mode(metadata={"description": "The permissions of a new file, in octal. An existing file keeps its own."})


class ScriptResponse(Schema):
    path = FilePath(required=True, metadata={"description": "The new file's path."})


class EntryResponse(Schema):
    name = FilePath(
        required=True,
        metadata={"description": "The name in its directory; for a single file, the path of the request."},
    )
    type = fields.String(
        required=True,
        metadata={"description": "`file`, `directory`, `link`, `fifo`, `socket`, `character`, `block` or `unknown`."},
    )
    size = fields.Integer(required=True, metadata={"description": "In bytes."})
    mode = Mode(required=True, metadata={"description": "Permission bits in octal."})
    modified = UtcTime(required=True, metadata={"description": "When the content was last changed."})
    uid = fields.Integer(required=True, metadata={"description": "The owner's number."})
    gid = fields.Integer(required=True, metadata={"description": "The group's number."})
    owner = fields.String(required=True, metadata={"description": "The owner's name; the number if it has none."})
    group = fields.String(required=True, metadata={"description": "The group's name; the number if it has none."})
    target = FilePath(required=True, allow_none=True, metadata={"description": "Where a link leads, or null."})


class StatRequest(PathRequest):
    follow = Boolean(
        load_default=True, metadata={"description": "True describes a link's target, false the link itself."}
    )


class ListResponse(Schema):
    entries = fields.List(
        fields.Nested(EntryResponse), required=True, metadata={"description": "What the directory holds, by name."}
    )


class RemovePathRequest(PathRequest):
    recursive = Boolean(load_default=False, metadata={"description": "True removes a directory with its content."})


class MkdirRequest(PathRequest):
    mode = Mode(metadata={"description": "The permissions of the new directory, in octal."})
    parents = Boolean(
        load_default=False,
        metadata={"description": "True makes missing parents too, and accepts a directory that exists."},
    )


class MoveRequest(Located):
    source = FilePath(required=True, metadata={"description": "The file or directory to move."})
    target = FilePath(required=True, metadata={"description": "The new path, not the directory to move into."})
    overwrite = Boolean(load_default=False, metadata={"description": "True replaces a file at `target`."})
