"""``/web``: how the daemon's page gets the rights of whoever opens it, and gives them back."""

from __future__ import annotations

from typing import Annotated

from connmgr.contract.common import AwaitsApproval
from connmgr.contract.message import SECRET, Length, Message
from connmgr.contract.vault import Passphrase, User

LOGIN_SECONDS = 60.0
"""How long a ticket for the page is valid."""

MAX_TICKET = 200

STEP_UP_SECONDS = 900.0
"""How long a page may do what needs a step-up."""


class WebTicketRequest(Message):
    same_user: Annotated[
        bool,
        "Whether it is only for programs of the daemon's own user on this machine, such as the browser that a command "
        "starts: other users may see its words. On Linux; elsewhere the daemon cannot tell.",
    ] = False


class WebTicketResponse(Message):
    ticket: Annotated[str, SECRET, "256 random bits, URL-safe; the page takes it at `/#login=<ticket>`."]
    valid: Annotated[float, "Seconds for which it is valid."]


class WebLoginRequest(Message):
    ticket: Annotated[str, SECRET, Length(max=MAX_TICKET), "The `ticket` that `/web/ticket` returned."]


class WebLoginResponse(Message):
    session_token: Annotated[str, SECRET, "256 random bits, URL-safe."]
    idle: Annotated[float, "Seconds of idleness after which it expires; 0: never while the daemon runs."]


class WebConfirmRequest(AwaitsApproval):
    user: Annotated[User | None, "The vault user whose passphrase it is; where the setting is `passphrase`."] = None
    passphrase: Annotated[Passphrase | None, SECRET, "The user's passphrase; where the setting is `passphrase`."] = None


class WebConfirmResponse(Message):
    valid: Annotated[float, "Seconds for which the page may do what needs it."]
