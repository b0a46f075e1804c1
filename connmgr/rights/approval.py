"""An approval: the request of a token and the decision about it, as the vault stores it and as clients see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from connmgr.contract.approval import DENIED as DENIED
from connmgr.contract.approval import GRANTED as GRANTED
from connmgr.contract.approval import ONCE as ONCE
from connmgr.contract.approval import PENDING as PENDING
from connmgr.contract.approval import STATES as STATES
from connmgr.contract.approval import USED as USED
from connmgr.contract.approval import Verdict as Verdict
from connmgr.vault.documents import Document


@dataclass(frozen=True, kw_only=True)
class Approval:
    """The request of a token and the decision about it. Times are aware and in UTC."""

    id: str
    state: str
    token: str
    token_name: str
    asked: Mapping[str, Any]
    """The whole request; empty once the approval is over."""

    created: datetime
    expires: datetime
    askers: tuple[str, ...] = ()
    """The ids of the tokens whose rules ask: the requesting token, or some of its ancestors."""

    root: str = ""
    """The id of the token made by the owner from which the requesting token descends; they may be the same."""

    on: tuple[Mapping[str, Any], ...] = ()
    """The grounds on which it was asked, as :meth:`connmgr.rights.ground.Ground.shown` returns them."""

    decided_by: str | None = None
    """The id of the token that decided; None for the owner, or without a decision."""


def shown(approval: Approval) -> dict[str, Any]:
    """Return an approval as clients and plugins see it, as JSON."""
    return {
        "approval": approval.id,
        "state": approval.state,
        "token": approval.token,
        "tokenName": approval.token_name,
        "asked": dict(approval.asked),
        "created": written(approval.created),
        "expires": written(approval.expires),
        "decidedBy": approval.decided_by,
    }


def written(moment: datetime) -> str:
    """Return a time as clients see it."""
    return moment.astimezone(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")


def approval_of(document: Document) -> Approval:
    """Return the approval in a document of the vault."""
    body = document.body
    return Approval(
        id=document.id,
        state=body["state"],
        token=body["token"],
        token_name=body["tokenName"],
        asked=body["asked"],
        created=document.created,
        expires=document.expires or document.created,
        askers=tuple(body.get("askers", ())),
        root=body.get("root", body["token"]),
        on=tuple(body["asked"].get("on", body.get("on", ()))),
        decided_by=body.get("decidedBy"),
    )
