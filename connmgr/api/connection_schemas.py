"""What the requests and responses of ``/connection`` are made of."""

from __future__ import annotations

from marshmallow import fields

from connmgr.api.schemas import Filter, Id, Ids, Members, UtcTime
from connmgr.fields import Boolean, Schema, Text

DATA = {"description": "`type` and the fields of that type, see `/connection/types`. Secrets may be plain strings."}


class ConnectionQueryRequest(Schema):
    categoryFilter = Filter(
        required=True, metadata={"description": "On the path of the category, with or without root."}
    )
    connectionFilter = Filter(required=True, metadata={"description": "On the path of the connection."})
    typeFilter = Filter(required=True, metadata={"description": "On the type."})


class ConnectionQueryResponse(Schema):
    found = fields.List(Id(), required=True, metadata={"description": "In the order of their paths."})


class ConnectionInfoRequest(Schema):
    connections = Ids(required=True, metadata={"description": "What to describe."})


class ConnectionInfo(Schema):
    connection = Id(required=True, metadata={"description": "Its uuid."})
    category = fields.List(fields.String(), required=True, metadata={"description": "The path, without the root."})
    name = fields.List(
        fields.String(), required=True, metadata={"description": "The path; one that runs in another begins with that."}
    )
    type = fields.String(required=True, metadata={"description": "One that `/connection/types` lists."})
    rawData = fields.Dict(required=True, metadata={"description": "`type` and its fields; secrets stay encrypted."})
    usageCategory = fields.String(
        required=True,
        allow_none=True,
        metadata={
            "description": "`shell`, `tunnel`, `command` or `group`; null where no installed plugin offers the type."
        },
    )
    lastUsed = UtcTime(
        required=True,
        metadata={"description": "When its shell was last used, to the minute; at first when it was made."},
    )
    lastModified = UtcTime(required=True, metadata={"description": "When its name, data or category was last changed."})
    state = fields.Dict(required=True, metadata={"description": "What was last seen of the far side."})
    cache = fields.Dict(required=True, metadata={"description": "Empty in this version."})


class ConnectionInfoResponse(Schema):
    infos = fields.List(fields.Nested(ConnectionInfo), required=True, metadata={"description": "In the order asked."})


class ConnectionAddRequest(Schema):
    name = Text(
        required=True, metadata={"description": "At most 255 characters; it need not be the only one of this name."}
    )
    data = Members(keys=Text(), required=True, metadata=DATA)
    validate_first = Boolean(
        data_key="validate",
        load_default=False,
        metadata={"description": "Open it first, and add nothing where that fails."},
    )
    category = Id(metadata={"description": "Without it: the default category."})


class ConnectionAddResponse(Schema):
    connection = Id(required=True, metadata={"description": "Its uuid."})


class ConnectionUpdateRequest(Schema):
    connection = Id(required=True, metadata={"description": "What to change."})
    name = Text(metadata={"description": "The new name, at most 255 characters."})
    data = Members(keys=Text(), metadata={"description": "All of it anew; the type stays what it is."})
    category = Id(metadata={"description": "The category to move it to."})
    validate_first = Boolean(
        data_key="validate",
        load_default=False,
        metadata={"description": "Open it first, and change nothing where that fails."},
    )


class ConnectionRemoveRequest(Schema):
    connections = fields.List(Id(), required=True, metadata={"description": "What to remove."})


class ConnectionRefreshRequest(Schema):
    connection = Id(required=True, metadata={"description": "What to open."})


class TypeInfo(Schema):
    type = fields.String(required=True, metadata={"description": "Its name, the `type` of data."})
    usageCategory = fields.String(required=True, metadata={"description": "`shell`, `tunnel`, `command` or `group`."})
    description = fields.String(required=True, metadata={"description": "One sentence for people."})
    distribution = fields.String(required=True, metadata={"description": "The package that brings it."})
    version = fields.String(required=True, metadata={"description": "Of that package."})
    schema = fields.Dict(required=True, metadata={"description": "JSON Schema of `data`, with an example."})


class ProblemInfo(Schema):
    plugin = fields.String(required=True, metadata={"description": "Its entry point, or the type in question."})
    distribution = fields.String(required=True, metadata={"description": "The package that brings it."})
    reason = fields.String(required=True, metadata={"description": "Why it is not used."})


class TypesResponse(Schema):
    types = fields.List(fields.Nested(TypeInfo), required=True, metadata={"description": "By name."})
    problems = fields.List(
        fields.Nested(ProblemInfo), required=True, metadata={"description": "Plugins that are not used, and why."}
    )
