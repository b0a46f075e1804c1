"""``/web``: how the daemon's page gets the rights of whoever opens it, and gives them back."""

from __future__ import annotations

from connmgr.api.context import caller, request_context
from connmgr.api.endpoint import Group
from connmgr.api.page import require_page
from connmgr.api.services import services
from connmgr.contract.web import LOGIN_SECONDS, WebLoginRequest, WebLoginResponse, WebTicketResponse
from connmgr.errors import InvalidToken, PageMissing, TokenExpired, TokenRevoked

group = Group("web", "How the page at `/` gets its rights.")

_LOGIN = "web.login"
"""The subject of the page's tickets; those of terminals are for a terminal's id."""


@group.endpoint(
    "/ticket",
    action="web.ticket",
    response=WebTicketResponse,
    raises=[PageMissing],
    answer={"ticket": "QRSMvsZIT0f1DRmIT4wtMxAhBCdnvFQBPQpZfRTqjYc", "valid": LOGIN_SECONDS},
)
def ticket() -> WebTicketResponse:
    """Return a ticket with which the page at `/` gets a session of the caller's rights: once, and within 60 seconds.

    A browser that opens `/#login=<ticket>` is logged in. What follows the `#` is neither sent nor logged.
    """
    require_page()
    return WebTicketResponse(ticket=services().tickets.issue(_LOGIN, caller(), LOGIN_SECONDS), valid=LOGIN_SECONDS)


@group.endpoint(
    "/login",
    WebLoginRequest,
    WebLoginResponse,
    action="web.login",
    raises=[InvalidToken, TokenExpired, TokenRevoked],
    public=True,
    example={"ticket": "QRSMvsZIT0f1DRmIT4wtMxAhBCdnvFQBPQpZfRTqjYc"},
    answer={"sessionToken": "kq3VtC1m8o5u0sYzJd7xQ2nLr9bWfHgA4eTiPjKcMvU", "idle": 3600.0},
)
def login(request: WebLoginRequest) -> WebLoginResponse:
    """Exchange a ticket for a session token of the page, with the rights of whoever asked for the ticket.

    The session ends by `/web/logout`, after `web-ttl` seconds of idleness, and with the daemon.
    """
    opener = services().tickets.redeem(request.ticket, _LOGIN)
    request_context().client = "page"
    if opener.live is not None:
        request_context().authority |= {"token": opener.live.grant.id, "tokenName": opener.live.grant.name}
    opener.require_valid()
    idle = services().settings.web_ttl
    return WebLoginResponse(session_token=services().tokens.issue("page", opener.live, is_page=True), idle=idle)


@group.endpoint("/logout", action="web.logout")
def logout() -> None:
    """End the session whose token the request carries, and everything that waits or streams for it.

    A token of `/token/create` that is sent itself has no session of its own, and stays valid until it is revoked.
    """
    services().tokens.leave(caller())
