"""``/web``: how the daemon's page gets the rights of whoever opens it, and gives them back."""

from __future__ import annotations

from connmgr.api.context import PEER_UID, caller, request_context
from connmgr.api.endpoint import Group
from connmgr.api.page import require_page
from connmgr.api.services import services
from connmgr.api.step_up import requester
from connmgr.api.vault import guesser
from connmgr.contract.web import (
    LOGIN_SECONDS,
    STEP_UP_SECONDS,
    WebConfirmRequest,
    WebConfirmResponse,
    WebLoginRequest,
    WebLoginResponse,
    WebTicketRequest,
    WebTicketResponse,
)
from connmgr.durations import boot_time
from connmgr.errors import (
    ApprovalDenied,
    ApprovalRequired,
    InvalidRequest,
    InvalidToken,
    PageMissing,
    TokenExpired,
    TokenRevoked,
    UnlockFailed,
    UnlockThrottled,
)
from connmgr.processes import is_trusted, is_unmapped, tcp_peer_uid
from connmgr.settings import STEP_UP_APPROVAL, STEP_UP_PASSPHRASE

group = Group("web", "How the page at `/` gets its rights.")

_LOGIN = "web.login"
"""The subject of the page's tickets; those of terminals are for a terminal's id."""


@group.endpoint(
    "/ticket",
    raises=[PageMissing],
    example={"sameUser": True},
    answer={"ticket": "QRSMvsZIT0f1DRmIT4wtMxAhBCdnvFQBPQpZfRTqjYc", "valid": LOGIN_SECONDS},
)
def ticket(request: WebTicketRequest) -> WebTicketResponse:
    """Return a ticket with which the page at `/` gets a session of the caller's rights: once, and within 60 seconds.

    A browser that opens `/#login=<ticket>` is logged in. What follows the `#` is neither sent nor logged.
    """
    require_page()
    ticket = services().tickets.issue(_LOGIN, caller(), LOGIN_SECONDS, request)
    return WebTicketResponse(ticket=ticket, valid=LOGIN_SECONDS)


@group.endpoint(
    "/login",
    raises=[InvalidToken, TokenExpired, TokenRevoked],
    public=True,
    example={"ticket": "QRSMvsZIT0f1DRmIT4wtMxAhBCdnvFQBPQpZfRTqjYc"},
    answer={"sessionToken": "kq3VtC1m8o5u0sYzJd7xQ2nLr9bWfHgA4eTiPjKcMvU", "idle": 3600.0},
)
def login(request: WebLoginRequest) -> WebLoginResponse:
    """Exchange a ticket for a session token of the page, with the rights of whoever asked for the ticket.

    The session ends by `/web/logout`, after `web-ttl` seconds of idleness, and with the daemon.
    """
    opener, ticket_request = services().tickets.redeem_request(request.ticket, _LOGIN)
    if ticket_request.same_user and not _may_be_own_user():
        raise InvalidToken("The ticket is for a program of another user of this machine.")
    request_context().client = "page"
    if opener.live is not None:
        request_context().authority |= {"token": opener.live.grant.id, "tokenName": opener.live.grant.name}
    opener.require_valid()
    idle = services().settings.web_ttl
    # A session of its own, whose end does not end that of whoever asked for the ticket.
    return WebLoginResponse(session_token=services().tokens.issue("page", opener.live, is_page=True), idle=idle)


def _may_be_own_user() -> bool:
    """Whether the request may come from a program of this daemon's user, as far as the system tells."""
    environ = request_context().environ
    uid = environ.get(PEER_UID)
    if uid is None:
        uid = tcp_peer_uid(environ)
    return uid is None or is_trusted(uid) or is_unmapped(uid)


@group.endpoint(
    "/confirm",
    about=("user",),
    raises=[UnlockFailed, UnlockThrottled, ApprovalRequired, ApprovalDenied],
    waits=True,
    suspends=True,
    example={"user": "alice", "passphrase": "four words or more"},
    answer={"valid": STEP_UP_SECONDS},
)
def confirm(request: WebConfirmRequest) -> WebConfirmResponse:
    """Let a page do for 15 minutes what the setting `web-step-up` asks for more for: after `step_up_required`.

    Where the setting is `passphrase`, the page sends the passphrase of a vault user, who is unlocked by that as by
    `/vault/unlock`. Where it is `approval`, anybody who may decide about approvals approves it; a page decides only
    after a step-up of its own.
    """
    asking, mode = caller(), services().settings.web_step_up
    if mode == STEP_UP_PASSPHRASE and asking.is_page:
        if request.user is None or request.passphrase is None:
            raise InvalidRequest("user, passphrase: the setting web-step-up asks for both.")
        services().vault.principals.unlock(asking.access, request.user, request.passphrase, guesser())
    elif mode == STEP_UP_APPROVAL and asking.is_page:
        shown = {"action": "web.confirm", "session": asking.id, "connections": [], "names": []}
        try:
            services().approvals.require(requester(asking), shown, request.wait)
        except ApprovalRequired as error:
            text = "Nobody has approved this page yet: decide with `connmgr approve`, and send the request again."
            raise ApprovalRequired(text, **error.details) from error
        services().approvals.begun()
    asking.stepped_up = boot_time()
    return WebConfirmResponse(valid=STEP_UP_SECONDS)


@group.endpoint("/logout")
def logout() -> None:
    """End the session whose token the request carries, and everything that waits or streams for it.

    A token of `/token/create` that is sent itself has no session of its own, and stays valid until it is revoked.
    """
    services().tokens.leave(caller())
