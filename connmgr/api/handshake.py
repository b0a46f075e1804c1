"""``/handshake``: a client sends a credential and gets the token for all other requests."""

from __future__ import annotations

import flask

from connmgr.api.context import request_context
from connmgr.api.endpoint import Group
from connmgr.api.services import services
from connmgr.contract.handshake import HandshakeRequest, HandshakeResponse
from connmgr.errors import Busy, InvalidCredential, InvalidToken, ScopeDenied, TokenExpired, TokenRevoked

group = Group("handshake", "How a client gets its token.", prefix="")


@group.endpoint(
    "/handshake",
    raises=[InvalidCredential, Busy, InvalidToken, TokenExpired, TokenRevoked, ScopeDenied],
    public=True,
    example={
        "auth": {"type": "local", "authFileContent": "connmgr-9zJ2sZ0Hq7vQd1m4x8Wc3bN6tY5rE2uK7pL0aS9fGhI"},
        "client": {"type": "api", "name": "my script"},
    },
    answer={"sessionToken": "kq3VtC1m8o5u0sYzJd7xQ2nLr9bWfHgA4eTiPjKcMvU"},
)
def handshake(request: HandshakeRequest) -> HandshakeResponse:
    """Exchange a credential for a session token.

    Every other request carries the token as `Authorization: Bearer <sessionToken>`. It is valid until the daemon stops,
    or for `session-ttl` seconds of idleness. A session token for a `token` has the rights of that token, as long as it
    is valid. Such a token can also be sent as the bearer token itself.
    """
    request_context().client = request.client.name
    kind, credential, live = request.auth.type.lower(), request.auth.credential, None
    if kind == "token":
        grants = services().grants
        live = grants.find(credential.strip())
        request_context().authority |= {"token": live.grant.id, "tokenName": live.grant.name}
        try:
            grants.in_use.begin(live, flask.request.remote_addr)
        finally:
            grants.in_use.end(live)
    else:
        services().credentials.check(kind, credential)
    return HandshakeResponse(session_token=services().tokens.issue(request.client.name, live))
