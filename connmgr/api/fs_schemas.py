"""Schemas of the requests and responses of ``/fs``."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from marshmallow import ValidationError, fields, validate, validates_schema

from connmgr.api.schemas import AwaitsApproval, Elevate, FilePath, Id, UtcTime
from connmgr.api.shell_schemas import ShellNamed
from connmgr.fields import Boolean, Schema, Text

_FIRST = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LAST = datetime(9999, 12, 30, tzinfo=timezone.utc)
_NO_MOMENT = "Not a time since 1970 such as 2025-01-31T08:15:00Z."


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


class PathRequest(ShellNamed):
    path = FilePath(
        required=True,
        metadata={"description": "Absolute, relative to the shell's directory, or beginning with `~/`."},
    )


class ListFilesRequest(PathRequest):
    recursive = Boolean(
        load_default=False,
        metadata={"description": "True also lists the directories below, by paths relative to `path`."},
    )


class GlobRequest(ShellNamed):
    pattern = FilePath(
        required=True,
        metadata={"description": "A path with the wildcards `*`, `?` and `[…]` of a shell; otherwise as `path`."},
    )


class MembersRequest(PathRequest):
    members = fields.List(
        FilePath(),
        load_default=list,
        metadata={"description": "Paths below `path`: only these, with everything below them. Without it: everything."},
    )


class ChecksumResponse(Schema):
    name = FilePath(required=True, metadata={"description": "The path relative to `path`; for a single file its name."})
    sha256 = fields.String(required=True, metadata={"description": "The SHA-256 of its content, in hexadecimal."})


class ChecksumsResponse(Schema):
    entries = fields.List(
        fields.Nested(ChecksumResponse), required=True, metadata={"description": "The files, in no order."}
    )


class QueryPath(FilePath):
    """A path in a query, where any byte can be written as ``%FF``."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.metadata = {name: value for name, value in self.metadata.items() if name != "oneOf"} | {"type": "string"}


class QueryShellNamed(ShellNamed):
    elevate = Elevate(
        in_query=True,
        metadata={"description": "The user to run as, by sudo; otherwise as in `/shell/exec`."},
    )


class ExtractRequest(QueryShellNamed):
    path = QueryPath(required=True, metadata={"description": "The directory; otherwise as in `/fs/list`."})
    exact = Boolean(
        load_default=False,
        metadata={"description": "True sets the modes of the archive, regardless of the umask of the shell's user."},
    )


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


class UploadRequest(QueryShellNamed):
    path = QueryPath(required=True, metadata={"description": "The file; otherwise as in `/fs/write`."})
    mode = Mode(metadata={"description": "The permissions of a new file, in octal. An existing file keeps its own."})
    modified = Moment(metadata={"description": "The time of the file's last change. By default it is now."})


class UploadResponse(Schema):
    bytes = fields.Integer(required=True, metadata={"description": "Bytes of the file."})
    sha256 = fields.String(required=True, metadata={"description": "Their SHA-256, in hexadecimal."})


class FailedResponse(Schema):
    path = FilePath(required=True, metadata={"description": "The path in the archive."})
    message = fields.String(required=True, metadata={"description": "The machine's error message."})


class ExtractResponse(Schema):
    files = fields.Integer(required=True, metadata={"description": "Files and links in the archive."})
    bytes = fields.Integer(required=True, metadata={"description": "Bytes of their content."})
    failed = fields.List(
        fields.Nested(FailedResponse),
        required=True,
        metadata={
            "description": "Entries that could not be moved to their place; a directory stands for its whole content."
        },
    )


class BlobResponse(Schema):
    blob = fields.String(required=True, metadata={"format": "uuid", "description": "The blob's uuid."})


class ScriptRequest(ShellNamed):
    blob = Id(required=True, metadata={"description": "A blob that this session has stored."})


class WriteRequest(PathRequest, ScriptRequest, AwaitsApproval):
    mode = Mode(metadata={"description": "The permissions of a new file, in octal. An existing file keeps its own."})
    replaces = Text(
        validate=validate.Regexp("[0-9a-f]{64}\\Z"),
        metadata={
            "pattern": "^[0-9a-f]{64}$",
            "description": "The SHA-256 of the file to replace, in hexadecimal. If another file or content is there, "
            "the answer is `file_changed`. Not together with `create`.",
        },
    )
    create = Boolean(
        metadata={
            "description": "True only creates a new file. If something exists at the path, the answer is `file_exists`."
        },
    )

    @validates_schema
    def check_one(self, data: dict[str, Any], **_: Any) -> None:
        if "replaces" in data and data.get("create"):
            raise ValidationError("Give either replaces or create, not both.", "create")


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
    target = FilePath(required=True, allow_none=True, metadata={"description": "The target of a link, or null."})


class StatRequest(PathRequest):
    follow = Boolean(
        load_default=True, metadata={"description": "True describes a link's target, false the link itself."}
    )


class ListResponse(Schema):
    entries = fields.List(
        fields.Nested(EntryResponse), required=True, metadata={"description": "The content of the directory, by name."}
    )


class RemovePathRequest(PathRequest, AwaitsApproval):
    recursive = Boolean(load_default=False, metadata={"description": "True removes a directory with its content."})


class MkdirRequest(PathRequest, AwaitsApproval):
    mode = Mode(metadata={"description": "The permissions of the new directory, in octal."})
    parents = Boolean(
        load_default=False,
        metadata={"description": "True creates missing parents too, and accepts an existing directory."},
    )


class MoveRequest(ShellNamed, AwaitsApproval):
    source = FilePath(required=True, metadata={"description": "The file or directory to move."})
    target = FilePath(required=True, metadata={"description": "The new path, not the directory to move into."})
    overwrite = Boolean(load_default=False, metadata={"description": "True replaces a file at `target`."})
