"""Schemas of the requests and responses of ``/connection``."""

from __future__ import annotations

from typing import Any

from marshmallow import ValidationError, fields, validate, validates_schema

from connmgr.api.schemas import Filter, Id, Ids, Members, UserName, UtcTime
from connmgr.api.second_vocabulary import Located
from connmgr.fields import Boolean, Integer, Length, Schema, Text

DATA = {"description": "`type` and the fields of that type, see `/connection/types`. Secrets may be plain strings."}


MAX_DIALLED = 100
"""Most connections of a request with ``dialled``, because files are read for each."""


MAX_PASSPHRASES = 16

MAX_LOG_LINES = 1_000_000


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
    names = Boolean(load_default=False, metadata={"description": "True adds `names` to the answer."})


class FoundName(Schema):
    category = fields.List(fields.String(), required=True, metadata={"description": "The path, without the root."})
    name = fields.List(fields.String(), required=True, metadata={"description": "The connection's path."})
    type = fields.String(required=True, metadata={"description": "Its type."})
    usageCategory = fields.String(required=True, allow_none=True, metadata={"description": "As in `/connection/info`."})


class ConnectionQueryResponse(Schema):
    found = fields.List(Id(), required=True, metadata={"description": "In the order of their paths."})
    names = fields.List(
        fields.Nested(FoundName),
        metadata={"description": "With `names`: the names of the connections in `found`, in the same order."},
    )


class LogRequest(Schema):
    follow = Boolean(load_default=False, metadata={"description": "True prints what comes, too, until it is killed."})
    lines = Integer(
        load_default=None,
        allow_none=True,
        validate=validate.Range(0, MAX_LOG_LINES),
        metadata={"description": "Only the last lines of what there is."},
    )


class ConnectionInfoRequest(Schema):
    connections = Ids(required=True, metadata={"description": "Connections to describe."})
    created = Boolean(load_default=False, metadata={"description": "True adds `created` to each connection."})
    dialled = Boolean(
        load_default=False,
        metadata={"description": f"True adds `dialled` to each connection; for at most {MAX_DIALLED} connections."},
    )
    log = fields.Nested(LogRequest, metadata={"description": "Adds `log` to each connection."})

    @validates_schema
    def check_dialled(self, data: dict[str, Any], **_: Any) -> None:
        if data["dialled"] and len(data["connections"]) > MAX_DIALLED:
            raise ValidationError(f"Given with more than {MAX_DIALLED} connections.", "dialled")


class ConnectionEnvironmentRequest(Located):
    connection = Id(metadata={"description": "The connection."})
    connections = Ids(
        metadata={"description": "In its place: several connections, for a request that goes to all of them."}
    )

    @validates_schema
    def check_one(self, data: dict[str, Any], **_: Any) -> None:
        if ("connection" in data) == ("connections" in data):
            raise ValidationError("Give either connection or connections.", "connection")


class ConnectionEnvironmentResponse(Schema):
    send = fields.List(
        fields.String(),
        required=True,
        metadata={
            "description": "Names of variables, with `*` and `?`, that requests may send as `sendEnv`; of several "
            "connections those that one of them admits."
        },
    )
    set = fields.Dict(
        required=True,
        metadata={"description": "Variables that everything there gets, by name; empty for several connections."},
    )


class LentPassphrase(Schema):
    key = Text(required=True, metadata={"description": "The private key: `key` of the error `auth_failed`."})
    passphrase = Text(required=True, metadata={"description": "What the key is encrypted with."})


class ConnectionLoginRequest(Located):
    connection = Id(required=True, metadata={"description": "The connection to log in to."})
    agent = Text(
        validate=Length(min=1, max=255),
        metadata={
            "description": "The path of the Unix socket of the client's ssh-agent (`SSH_AUTH_SOCK`) on the daemon's "
            "machine. A program of the daemon's user must listen there."
        },
    )
    passphrases = fields.List(
        fields.Nested(LentPassphrase),
        load_default=list,
        validate=Length(max=MAX_PASSPHRASES),
        metadata={"description": "Passphrases of encrypted private keys."},
    )


class ConnectionLoginResponse(Schema):
    opened = fields.Boolean(
        required=True, metadata={"description": "False if a link was open already; then nothing was borrowed."}
    )


class DialledHost(Schema):
    host = fields.String(required=True, metadata={"description": "A name or an address."})
    port = fields.Integer(required=True, metadata={"description": "The TCP port."})
    user = fields.String(required=True, metadata={"description": "The user who logs in there."})
    identities = fields.List(
        fields.String(),
        required=True,
        metadata={"description": "The files of the private keys that are offered; none for tokens."},
    )
    agent = fields.Boolean(required=True, metadata={"description": "Whether an ssh-agent is asked for keys."})


class DialledHosts(Schema):
    hosts = fields.List(
        fields.Nested(DialledHost),
        metadata={"description": "In the order in which they are dialled; empty if none is."},
    )
    error = fields.Dict(
        metadata={"description": "In place of `hosts`: why they are unknown, with `code` and `message`."}
    )


class LogCommand(Schema):
    connection = Id(required=True, metadata={"description": "The connection to run it on."})
    argv = fields.List(fields.String(), required=True, metadata={"description": "A program with its arguments."})


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
        metadata={
            "description": "When its shell was last used, to the minute; if never, when the connection was created."
        },
    )
    lastModified = UtcTime(required=True, metadata={"description": "When its name, data or category was last changed."})
    state = fields.Dict(required=True, metadata={"description": "The far side as it was last seen."})
    cache = fields.Dict(
        required=True,
        metadata={
            "description": "`sessionEnabled`, present once it was toggled: whether it shall be open. `setByToken`: the "
            "token that added it or changed its data or category since the owner last gave it data; no loan of secrets "
            "is used for it."
        },
    )
    dialled = fields.Nested(
        DialledHosts,
        metadata={"description": "With `dialled`: the hosts that its links lead to, according to `~/.ssh/config`."},
    )
    log = fields.Nested(
        LogCommand,
        allow_none=True,
        metadata={
            "description": "With `log`: the command that prints the container's log; null if its type has none or "
            "none that can be followed."
        },
    )
    created = UtcTime(
        metadata={"description": "With `created`: when it was created. If it was never used, `lastUsed` is the same."}
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
    category = Id(
        metadata={
            "description": "Its category. Without it: that of the connection which it is in, or else the default one."
        }
    )
    temporary = Boolean(
        load_default=False,
        metadata={
            "description": "True keeps it only in the daemon's memory, while it has a shell and for a minute more. It "
            "is in no category, runs over no other connection, has no jobs, and no query finds it."
        },
    )

    @validates_schema
    def check_temporary(self, data: dict[str, Any], **_: Any) -> None:
        if data["temporary"] and "category" in data:
            raise ValidationError("A temporary connection is in no category; omit this field.", "category")


class ConnectionAddResponse(Schema):
    connection = Id(required=True, metadata={"description": "The uuid of the new connection, or of an equivalent one."})
    added = Boolean(required=True, metadata={"description": "False if an equivalent connection existed."})


class ConnectionElevateRequest(Schema):
    connection = Id(required=True, metadata={"description": "The connection to run over."})
    user = UserName(load_default="root", metadata={"description": "The user to run as. Without it: `root`."})
    password = Text(
        metadata={
            "format": "password",
            "description": "What sudo asks for; kept in memory while the elevated connection has a link, and for a "
            "minute more. Without it: the one stored for the connection or a category above it.",
        }
    )


class ConnectionElevateResponse(Schema):
    connection = fields.String(
        required=True,
        metadata={"description": "The id of the elevated connection: not a uuid, and accepted wherever one is."},
    )


class ConnectionUpdateRequest(Schema):
    connection = Id(required=True, metadata={"description": "The connection to change."})
    name = Text(metadata={"description": "The new name, at most 255 characters."})
    data = Members(keys=Text(), metadata={"description": "All of the new data, not only the changes. The type stays."})
    category = Id(
        metadata={"description": "The category to move it to, with the connections in it that share its category."}
    )
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
        Id(),
        required=True,
        metadata={
            "description": "The connections that were added, one for each new container or other system found inside."
        },
    )
    gone = fields.List(
        Id(),
        required=True,
        metadata={"description": "The connections whose container or system was found inside before, but not now."},
    )
    skipped = fields.List(
        fields.String(),
        required=True,
        metadata={"description": "Sentences: what was found inside of it and cannot be stored, and why."},
    )


class ConnectionToggleRequest(Schema):
    connection = Id(
        required=True,
        metadata={"description": "The tunnel, or a connection whose far side can be started and stopped."},
    )
    state = Boolean(required=True, metadata={"description": "True opens or starts it, false closes or stops it."})


class ConnectionBrowseRequest(Schema):
    connection = Id(required=True, metadata={"description": "The connection whose files to show."})
    directory = Text(allow_none=True, metadata={"description": "Where to begin."})


class ConnectionTerminalRequest(Schema):
    connection = Id(required=True, metadata={"description": "The connection whose terminal to show."})
    directory = Text(allow_none=True, metadata={"description": "Where it begins."})


class ShownResponse(Schema):
    url = fields.String(metadata={"description": "The page that shows it. Absent in this version."})


class TypeInfo(Schema):
    type = fields.String(required=True, metadata={"description": "Its name, the `type` of data."})
    usageCategory = fields.String(required=True, metadata={"description": "`shell`, `tunnel`, `command` or `group`."})
    description = fields.String(required=True, metadata={"description": "One sentence for people."})
    distribution = fields.String(required=True, metadata={"description": "The package that it comes from."})
    version = fields.String(required=True, metadata={"description": "Of that package."})
    toggled = Boolean(
        required=True, metadata={"description": "Whether `/connection/toggle` starts and stops its systems; no tunnel."}
    )
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
