"""``/handshake``: a client sends a credential and gets the token for all other requests."""

from __future__ import annotations

from typing import Any

import flask
from marshmallow import ValidationError, fields, validate, validates_schema

from connmgr.api.account import account
from connmgr.api.group import Group
from connmgr.api.services import services
from connmgr.errors import Busy, InvalidCredential, InvalidToken, ScopeDenied, TokenExpired, TokenRevoked
from connmgr.fields import Schema, Text

MAX_CREDENTIAL = 4096
CREDENTIAL_FIELDS = {"local": "authFileContent", "apikey": "key", "token": "token"}

group = Group("handshake", "How a client gets its token.", prefix="")


class HandshakeAuth(Schema):
    """A credential: the auth file's content for a local client, the API key, or a token of `/token/create`."""

    type = Text(required=True, metadata={"description": "`local`, `apiKey` or `token`, in any letter case."})
    authFileContent = Text(
        validate=validate.Length(max=MAX_CREDENTIAL), metadata={"description": "For `local`: the auth file's content."}
    )
    key = Text(
        validate=validate.Length(max=MAX_CREDENTIAL),
        metadata={"description": "For `apiKey`: the key that `connmgr api-key` prints."},
    )
    token = Text(
        validate=validate.Length(max=MAX_CREDENTIAL),
        metadata={"description": "For `token`: the `token` that `/token/create` returned."},
    )

    @validates_schema
    def check_fields(self, data: dict[str, Any], **_: Any) -> None:
        wanted = CREDENTIAL_FIELDS.get(data["type"].lower())
        if wanted is None:
            raise ValidationError("Must be local, apiKey or token.", "type")
        if wanted not in data:
            raise ValidationError("Missing data for required field.", wanted)
        for other in data.keys() - {"type", wanted}:
            raise ValidationError(f"Not a field of type {data['type']}.", other)


class HandshakeClient(Schema):
    """Who the client says it is."""

    type = Text(required=True, metadata={"description": "`api`, in any letter case."})
    name = Text(
        required=True, validate=validate.Length(max=200), metadata={"description": "A name for the daemon's log."}
    )

    @validates_schema
    def check_type(self, data: dict[str, Any], **_: Any) -> None:
        if data["type"].lower() != "api":
            raise ValidationError("Must be api.", "type")


class HandshakeRequest(Schema):
    auth = fields.Nested(HandshakeAuth, required=True, metadata={"description": "The credential."})
    client = fields.Nested(HandshakeClient, required=True, metadata={"description": "The client's name for itself."})


class HandshakeResponse(Schema):
    sessionToken = fields.String(required=True, metadata={"description": "256 random bits, URL-safe."})


@group.endpoint(
    "/handshake",
    HandshakeRequest,
    HandshakeResponse,
    action="handshake",
    raises=[InvalidCredential, Busy, InvalidToken, TokenExpired, TokenRevoked, ScopeDenied],
    public=True,
    example={
        "auth": {"type": "local", "authFileContent": "connmgr-9zJ2sZ0Hq7vQd1m4x8Wc3bN6tY5rE2uK7pL0aS9fGhI"},
        "client": {"type": "api", "name": "my script"},
    },
    answer={"sessionToken": "kq3VtC1m8o5u0sYzJd7xQ2nLr9bWfHgA4eTiPjKcMvU"},
)
def handshake(request: dict[str, Any]) -> dict[str, str]:
    """Exchange a credential for a session token.

    Every other request carries the token as `Authorization: Bearer <sessionToken>`. It is valid until the daemon stops,
    or for `session-ttl` seconds of idleness. A session token for a `token` has the rights of that token, as long as it
    is valid. Such a token can also be sent as the bearer token itself.
    """
    account().client = request["client"]["name"]
    auth = request["auth"]
    kind = auth["type"].lower()
    found, credential = services(), auth[CREDENTIAL_FIELDS[kind]]
    live = None
    if kind == "token":
        live = found.grants.find(credential.strip())
        account().authority |= {"token": live.grant.id, "tokenName": live.grant.name}
        try:
            found.grants.in_use.begin(live, flask.request.remote_addr)
        finally:
            found.grants.in_use.end(live)
    else:
        found.credentials.check(kind, credential)
    return {"sessionToken": found.tokens.issue(request["client"]["name"], live)}
