"""What the requests and responses of ``/connection`` are made of."""

from __future__ import annotations

from typing import Any

from marshmallow import ValidationError, fields, validates_schema

from connmgr.api.schemas import Filter, Id, Ids, Members, UtcTime
from connmgr.fields import Boolean, Schema, Text

DATA = {"description": "`type` and the fields of that type, see `/connection/types`. Secrets may be plain strings."}


MAX_DIALLED = 100
"""Connections of a request that asks what would be dialled: files are read for each."""


class ConnectionQueryRequest(Schema):
    categoryFilter = Filter(
        required=True, metadata={"description": "For the path of the category, with or without the root."}
    )
    connectionFilter = Filter(required=True, metadata={"description": "For the path of the connection."})
    typeFilter = Filter(required=True, metadata={"description": "For the type."})
    nameFilter = Filter(
        load_default="*",
        metadata={
            "description": "For the name as `connmgr ls` prints it: the path alone, or the category's path, `/` and "
            "the path."
        },
    )
    names = Boolean(load_default=False, metadata={"description": "Answer the `names` too."})


class FoundName(Schema):
    category = fields.List(fields.String(), required=True, metadata={"description": "The path, without the root."})
    name = fields.List(fields.String(), required=True, metadata={"description": "The connection's path."})
    type = fields.String(required=True, metadata={"description": "Its type."})
    usageCategory = fields.String(required=True, allow_none=True, metadata={"description": "As in `/connection/info`."})


class ConnectionQueryResponse(Schema):
    found = fields.List(Id(), required=True, metadata={"description": "In the order of their paths."})
    names = fields.List(
        fields.Nested(FoundName),
        metadata={"description": "Present with `names`: what those of `found` are called, in the same order."},
    )


class ConnectionInfoRequest(Schema):
    connections = Ids(required=True, metadata={"description": "Connections to describe."})
    created = Boolean(load_default=False, metadata={"description": "Answer when each was `created`, too."})
    dialled = Boolean(
        load_default=False,
        metadata={"description": f"Answer what would be `dialled`, too; for at most {MAX_DIALLED} connections."},
    )

    @validates_schema
    def check_dialled(self, data: dict[str, Any], **_: Any) -> None:
        if data["dialled"] and len(data["connections"]) > MAX_DIALLED:
            raise ValidationError(f"Given with more than {MAX_DIALLED} connections.", "dialled")


class DialledHost(Schema):
    host = fields.String(required=True, metadata={"description": "A name or an address."})
    port = fields.Integer(required=True, metadata={"description": "The TCP port."})
    user = fields.String(required=True, metadata={"description": "Who logs in there."})
    identities = fields.List(
        fields.String(), required=True, metadata={"description": "The private keys that are offered, by their files."}
    )
    agent = fields.Boolean(required=True, metadata={"description": "Whether an ssh-agent is asked for keys."})


class DialledHosts(Schema):
    hosts = fields.List(
        fields.Nested(DialledHost),
        metadata={"description": "In the order in which they are dialled; empty where nothing is."},
    )
    error = fields.Dict(
        metadata={"description": "In place of `hosts`: why that cannot be told, with `code` and `message`."}
    )


class ConnectionInfo(Schema):
    connection = Id(required=True, metadata={"description": "Its uuid."})
    category = fields.List(fields.String(), required=True, metadata={"description": "The path, without the root."})
    name = fields.List(
        fields.String(),
        required=True,
        metadata={"description": "The path. If it runs in another connection, that one's path comes first."},
    )
    type = fields.String(required=True, metadata={"description": "One of `/connection/types`."})
    rawData = fields.Dict(required=True, metadata={"description": "`type` and its fields; secrets stay encrypted."})
    usageCategory = fields.String(
        required=True,
        allow_none=True,
        metadata={
            "description": "`shell`, `tunnel`, `command` or `group`; null if no installed plugin offers the type."
        },
    )
    lastUsed = UtcTime(
        required=True,
        metadata={"description": "When its shell was last used, to the minute; before that, when it was made."},
    )
    lastModified = UtcTime(required=True, metadata={"description": "When its name, data or category was last changed."})
    state = fields.Dict(required=True, metadata={"description": "What was last seen of the far side."})
    cache = fields.Dict(
        required=True,
        metadata={"description": "`sessionEnabled`: whether it is wanted, once it was toggled."},
    )
    dialled = fields.Nested(
        DialledHosts,
        metadata={"description": "Present with `dialled`: the hosts that its links lead to, after `~/.ssh/config`."},
    )
    created = UtcTime(
        metadata={
            "description": "Present with `created`: when it was made. One never used since then has it as `lastUsed`."
        }
    )


class ConnectionInfoResponse(Schema):
    infos = fields.List(fields.Nested(ConnectionInfo), required=True, metadata={"description": "In the order asked."})


class ConnectionAddRequest(Schema):
    name = Text(
        required=True, metadata={"description": "At most 255 characters. Several connections may have the same name."}
    )
    data = Members(keys=Text(), required=True, metadata=DATA)
    validate_first = Boolean(
        data_key="validate",
        load_default=False,
        metadata={"description": "Open it first, and add nothing if that fails."},
    )
    category = Id(metadata={"description": "Its category. Without it: the default category."})
    temporary = Boolean(
        load_default=False,
        metadata={
            "description": "Keep it in the daemon's memory alone, while it has a shell and for a minute more. It is in "
            "no category, runs over no other connection, has no jobs, and no query finds it."
        },
    )

    @validates_schema
    def check_temporary(self, data: dict[str, Any], **_: Any) -> None:
        if data["temporary"] and "category" in data:
            raise ValidationError("Given for a temporary connection, which is in none.", "category")


class ConnectionAddResponse(Schema):
    connection = Id(required=True, metadata={"description": "Its uuid."})


class ConnectionUpdateRequest(Schema):
    connection = Id(required=True, metadata={"description": "The connection to change."})
    name = Text(metadata={"description": "The new name, at most 255 characters."})
    data = Members(keys=Text(), metadata={"description": "All of the new data, not only the changes. The type stays."})
    category = Id(metadata={"description": "The category to move it to."})
    validate_first = Boolean(
        data_key="validate",
        load_default=False,
        metadata={"description": "Open it first, and change nothing if that fails."},
    )


class ConnectionRemoveRequest(Schema):
    connections = fields.List(Id(), required=True, metadata={"description": "Connections to remove."})


class ConnectionRefreshRequest(Schema):
    connection = Id(required=True, metadata={"description": "The connection to open."})


class ConnectionRefreshResponse(Schema):
    added = fields.List(
        Id(), required=True, metadata={"description": "Connections that were added: to what was found inside of it."}
    )
    gone = fields.List(
        Id(), required=True, metadata={"description": "Connections to what was found inside before, and not now."}
    )


class ConnectionToggleRequest(Schema):
    connection = Id(required=True, metadata={"description": "The tunnel, or what else can be started and stopped."})
    state = Boolean(required=True, metadata={"description": "Whether it is wanted."})


class ConnectionBrowseRequest(Schema):
    connection = Id(required=True, metadata={"description": "The connection whose files are to be shown."})
    directory = Text(allow_none=True, metadata={"description": "Where to begin."})


class ConnectionTerminalRequest(Schema):
    connection = Id(required=True, metadata={"description": "The connection whose terminal is to be shown."})
    directory = Text(allow_none=True, metadata={"description": "Where it begins."})


class ShownResponse(Schema):
    url = fields.String(metadata={"description": "The page that shows it, where there is one."})


class TypeInfo(Schema):
    type = fields.String(required=True, metadata={"description": "Its name, the `type` of data."})
    usageCategory = fields.String(required=True, metadata={"description": "`shell`, `tunnel`, `command` or `group`."})
    description = fields.String(required=True, metadata={"description": "One sentence for people."})
    distribution = fields.String(required=True, metadata={"description": "The package that it comes from."})
    version = fields.String(required=True, metadata={"description": "Of that package."})
    schema = fields.Dict(required=True, metadata={"description": "JSON Schema of `data`, with an example."})


class ProblemInfo(Schema):
    plugin = fields.String(required=True, metadata={"description": "Its entry point, or the type in question."})
    distribution = fields.String(required=True, metadata={"description": "The package that it comes from."})
    reason = fields.String(required=True, metadata={"description": "Why it is not used."})


class TypesResponse(Schema):
    types = fields.List(fields.Nested(TypeInfo), required=True, metadata={"description": "By name."})
    problems = fields.List(
        fields.Nested(ProblemInfo), required=True, metadata={"description": "Plugins that are not used, and why."}
    )
