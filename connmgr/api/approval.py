"""``/approval``: requests of tokens that need somebody's approval."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from marshmallow import ValidationError, fields, validates_schema

from connmgr.api.account import caller, detail
from connmgr.api.connection_data import locked_ones
from connmgr.api.group import Group
from connmgr.api.schemas import Id
from connmgr.api.services import services
from connmgr.errors import SecretLocked, UnknownApproval
from connmgr.fields import Boolean, Integer, List, OneOf, Range, Schema, Text
from connmgr.rights.approval import PENDING, STATES, VERDICTS, Approval, shown
from connmgr.rights.approvals import DECISION_MINUTES, MAX_GRANT_SECONDS

APPROVAL = "c8a3a5d4-3f0e-4b1a-9d53-5d1d9e0b6c11"

group = Group(
    "approval",
    "A rule of a token may ask for an approval. The request is then answered `approval_required`, and waits "
    "here for a decision. The decision holds for exactly this request: the same token, connections, words or "
    "text, directory, variables, terminal and input, and for the connection and the state of its shell that were "
    "shown. Daemons that share a vault share its approvals.",
)


class ApprovalQueryRequest(Schema):
    states = List(
        Text(validate=OneOf(STATES)),
        load_default=[PENDING],
        metadata={"description": f"In one of these states: {', '.join(f'`{state}`' for state in STATES)}."},
    )


class ApprovalInfo(Schema):
    approval = fields.String(required=True, metadata={"format": "uuid", "description": "The approval."})
    state = fields.String(
        required=True,
        metadata={
            "description": "`pending`; `once`: approved for one request; `granted`: approved repeatedly; `denied`; "
            "`used`: the one request was sent.",
            "enum": STATES,
        },
    )
    token = fields.String(required=True, metadata={"format": "uuid", "description": "The token that asks."})
    tokenName = fields.String(required=True, metadata={"description": "The token's name."})
    asked = fields.Dict(
        required=True,
        metadata={
            "description": "The whole request to decide about: the `action`, the uuids of the `connections`, their "
            "`names`, and the members of the request that decide what is done. `on` has for each connection the "
            "`hosts` that are dialled, the `user`, and of its shell the `directory` (null: where a new shell starts), "
            "changed `variables` that steer programs, and the names of `otherVariables`. `terminal` says whether it "
            "gets one, `moved` what is different since it was asked before. Empty once it was used."
        },
    )
    locked = Boolean(
        metadata={
            "description": "Present, and true, if the caller cannot open the secrets of a connection: `asked` then has "
            "only names, and the caller cannot decide."
        }
    )
    created = fields.String(required=True, metadata={"format": "date-time", "description": "When it was asked for."})
    expires = fields.String(
        required=True, metadata={"format": "date-time", "description": "When the question or the decision expires."}
    )
    decidedBy = fields.String(
        required=True,
        allow_none=True,
        metadata={"format": "uuid", "description": "The token that decided; null: the owner, or nobody yet."},
    )


class ApprovalQueryResponse(Schema):
    approvals = fields.List(
        fields.Nested(ApprovalInfo), required=True, metadata={"description": "The oldest first, without expired ones."}
    )


class ApprovalDecideRequest(Schema):
    approval = Id(required=True, metadata={"description": "The approval."})
    decision = Text(
        required=True,
        validate=OneOf(VERDICTS),
        metadata={
            "description": f"`once`: the request may be sent once, within {DECISION_MINUTES} minutes. `grant`: it may "
            "be sent repeatedly, for `seconds`. `deny`: it is answered `approval_denied`, "
            f"for {DECISION_MINUTES} minutes."
        },
    )
    seconds = Integer(
        validate=Range(min=1, max=MAX_GRANT_SECONDS),
        metadata={"description": f"Of `grant`: how long it lasts. Without it: {DECISION_MINUTES} minutes."},
    )

    @validates_schema
    def check_seconds(self, data: dict[str, Any], **_: Any) -> None:
        if "seconds" in data and data["decision"] != "grant":
            raise ValidationError("Goes only with the decision grant.", "seconds")


_INFO = {
    "approval": APPROVAL,
    "state": "pending",
    "token": "5b1f4f0c-52c7-4f0e-9a53-0d6f5a1be5a4",
    "tokenName": "nightly backup",
    "asked": {
        "action": "shell.exec",
        "connections": ["f0ec68aa-63f5-405c-b178-9a4454556d6b"],
        "names": ["local machine"],
        "argv": ["systemctl", "restart", "nginx"],
    },
    "created": "2026-01-31T08:15:00.000000Z",
    "expires": "2026-01-31T08:25:00.000000Z",
    "decidedBy": None,
}


@group.endpoint(
    "/query",
    ApprovalQueryRequest,
    ApprovalQueryResponse,
    action="approval.query",
    reads=True,
    about=("states",),
    example={"states": ["pending"]},
    answer={"approvals": [_INFO]},
)
def query(request: dict[str, Any]) -> dict[str, Any]:
    """List the requests that tokens ask about, and the decisions.

    A token sees approvals about connections that it sees.
    """
    found = [one for one in services().approvals.query(request["states"]) if _is_visible(one)]
    hidden = locked_ones(id for one in found for id in one.asked.get("connections", ()))
    return {"approvals": [_veiled(one) if _is_on(one, hidden) else shown(one) for one in found]}


@group.endpoint(
    "/decide",
    ApprovalDecideRequest,
    ApprovalInfo,
    action="approval.decide",
    about=("approval", "decision", "seconds"),
    raises=[UnknownApproval, SecretLocked],
    example={"approval": APPROVAL, "decision": "once"},
    answer=_INFO | {"state": "once"},
)
def decide(request: dict[str, Any]) -> dict[str, Any]:
    """Decide about an approval. A decision may be changed until the approval expires.

    No token decides about its own requests, nor about those of the tokens that it was created with.
    """
    approvals = services().approvals
    found = approvals.get(request["approval"])
    if not _is_visible(found):
        raise UnknownApproval(request["approval"])
    if _is_on(found, locked_ones(found.asked.get("connections", ()))):
        raise SecretLocked(
            "The session cannot open a connection of this request, so it is not shown: unlock the vault."
        )
    detail(ofToken=found.token)
    decided = approvals.decide(
        found.id, request["decision"], caller().grant, request.get("seconds", DECISION_MINUTES * 60)
    )
    return shown(decided)


def _is_on(one: Approval, connections: Collection[str]) -> bool:
    return any(id in connections for id in one.asked.get("connections", ()))


def _veiled(one: Approval) -> dict[str, Any]:
    """Return an approval, its command hidden where the caller cannot open the connection."""
    named = {name: value for name, value in one.asked.items() if name in ("action", "connections", "names")}
    return {**shown(one), "asked": named, "locked": True}


def _is_visible(one: Approval) -> bool:
    grant, named = caller().grant, one.asked.get("connections", [])
    if grant is None or grant.sees_all:
        return True
    return bool(named) and services().authorisation.knows(caller(), named)
