"""``/approval``: requests of tokens that need somebody's approval."""

from __future__ import annotations

from collections.abc import Collection

from connmgr.api.connection_data import locked_ones
from connmgr.api.context import caller, detail
from connmgr.api.endpoint import Group
from connmgr.api.services import services
from connmgr.contract.approval import (
    DECISION_MINUTES,
    PATTERN_MINUTES,
    ApprovalDecideRequest,
    ApprovalInfo,
    ApprovalQueryRequest,
    ApprovalQueryResponse,
)
from connmgr.contract.message import replace
from connmgr.errors import SecretLocked, UnknownApproval
from connmgr.rights.approvals import Approval

APPROVAL = "c8a3a5d4-3f0e-4b1a-9d53-5d1d9e0b6c11"

group = Group(
    "approval",
    "A rule of a token may ask for an approval. The request is then answered `approval_required`, and waits "
    "here for a decision. The decision holds for exactly this request: the same token, connections, words or "
    "text, directory, variables, terminal and input, and for the connection and the state of its shell that were "
    "shown. Daemons that share a vault share its approvals.",
)


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


@group.endpoint("/query", reads=True, about=("states",), example={"states": ["pending"]}, answer={"approvals": [_INFO]})
def query(request: ApprovalQueryRequest) -> ApprovalQueryResponse:
    """List the requests that tokens ask about, and the decisions.

    A token sees approvals about connections that it sees.
    """
    visible = [approval for approval in services().approvals.query(request.states) if _is_visible(approval)]
    hidden = locked_ones(id for approval in visible for id in approval.asked.get("connections", ()))
    return ApprovalQueryResponse(approvals=[_info(approval, locked=_is_on(approval, hidden)) for approval in visible])


@group.endpoint(
    "/decide",
    about=("approval", "decision", "seconds"),
    raises=[UnknownApproval, SecretLocked],
    example={"approval": APPROVAL, "decision": "once"},
    answer=_INFO | {"state": "once"},
)
def decide(request: ApprovalDecideRequest) -> ApprovalInfo:
    """Decide about an approval. A decision may be changed until the approval expires.

    No token decides about its own requests, nor about those of the tokens that it was created with. A `pattern` becomes
    a rule of each token whose rules ask: `/token/info` and `/token/query` show it until it ends.
    """
    approvals = services().approvals
    approval = approvals.get(request.approval)
    if not _is_visible(approval):
        raise UnknownApproval(request.approval)
    if _is_on(approval, locked_ones(approval.asked.get("connections", ()))):
        raise SecretLocked(
            "The request is not shown, because a connection that it names is locked: unlock the vault first."
        )
    detail(ofToken=approval.token)
    is_pattern = request.decision == "pattern"
    seconds = (PATTERN_MINUTES if is_pattern else DECISION_MINUTES) * 60 if request.seconds is None else request.seconds
    decided = approvals.decide(approval.id, request.decision, caller().grant, seconds)
    if approval.proposal is not None:
        # What was decided earlier about the same is taken back.
        services().grants.learn(approval.proposal["rules"], approval.id, seconds if is_pattern else 0)
    if is_pattern and approval.proposal is not None:
        detail(pattern=" ".join(approval.proposal["words"]), patternSeconds=seconds)
    return _info(decided)


def _is_on(approval: Approval, connections: Collection[str]) -> bool:
    return any(id in connections for id in approval.asked.get("connections", ()))


def _info(approval: Approval, *, locked: bool = False) -> ApprovalInfo:
    """Return an approval, its command hidden where the caller cannot open the connection."""
    if not locked:
        return approval.info
    # Nothing of the words, which may contain secrets of the connection.
    names = {name: value for name, value in approval.asked.items() if name in ("action", "connections", "names")}
    return replace(approval.info, asked=names, locked=True)


def _is_visible(approval: Approval) -> bool:
    grant, named = caller().grant, approval.asked.get("connections", [])
    if grant is None or grant.sees_all:
        return True
    return bool(named) and services().authorisation.knows(caller(), named)
