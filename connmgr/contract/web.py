"""``/web``: how the daemon's page gets the rights of whoever opens it, and gives them back."""

from __future__ import annotations

from typing import Annotated

from connmgr.contract.message import SECRET, Length, Message

LOGIN_SECONDS = 60.0
"""How long a ticket for the page is valid."""

MAX_TICKET = 200


class WebTicketResponse(Message):
    ticket: Annotated[str, SECRET, "256 random bits, URL-safe; the page takes it at `/#login=<ticket>`."]
    valid: Annotated[float, "Seconds for which it is valid."]


class WebLoginRequest(Message):
    ticket: Annotated[str, SECRET, Length(max=MAX_TICKET), "The `ticket` that `/web/ticket` returned."]


class WebLoginResponse(Message):
    session_token: Annotated[str, SECRET, "256 random bits, URL-safe."]
    idle: Annotated[float, "Seconds of idleness after which it expires; 0: never while the daemon runs."]
