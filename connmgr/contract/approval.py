"""``/approval``: requests of tokens that need somebody's approval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from connmgr.contract.message import ID, Json, Message, OneOf, Range, SchemaMembers, Wrong

PENDING: Final = "pending"
ONCE: Final = "once"
GRANTED: Final = "granted"
DENIED: Final = "denied"
USED: Final = "used"
STATES = (PENDING, ONCE, GRANTED, DENIED, USED)
Verdict = Literal["once", "grant", "deny"]
DECISION_MINUTES = 10
"""Minutes that a request waits for a decision, and a decision for the repeated request."""

MAX_GRANT_SECONDS = 86400

Uuid = SchemaMembers({"format": "uuid"})


class ApprovalQueryRequest(Message):
    states: Annotated[
        Sequence[Annotated[str, OneOf(STATES)]],
        f"In one of these states: {', '.join(f'`{state}`' for state in STATES)}.",
    ] = (PENDING,)


class ApprovalInfo(Message):
    """A request of a token, and the decision about it."""

    id: Annotated[str, Json("approval"), Uuid, "The approval."]
    state: Annotated[
        str,
        SchemaMembers({"enum": STATES}),
        "`pending`; `once`: approved for one request; `granted`: approved repeatedly; `denied`; `used`: the one "
        "request was sent.",
    ]
    token: Annotated[str, Uuid, "The token that requested it."]
    token_name: Annotated[str, "The token's name."]
    asked: Annotated[
        Mapping[str, Any],
        "The whole request to decide about: the `action`, the uuids of the `connections`, their `names`, and the "
        "members of the request that decide what is done. `on` has for each connection the `hosts` that are dialled, "
        "the `user`, and of its shell the `directory` (null: where a new shell starts), changed `variables` that steer "
        "programs, and the names of `otherVariables`. `terminal` says whether it gets a terminal, `moved` what has "
        "changed since it was asked for the first time. Empty once it was used.",
    ]
    locked: Annotated[
        bool | None,
        "Present, and true, if the caller cannot open the secrets of a connection: `asked` then has only names, and "
        "the caller cannot decide.",
    ] = None
    created: Annotated[datetime, "When it was asked for."]
    expires: Annotated[datetime, "When the question or the decision expires."]
    decided_by: Annotated[str | None, Uuid, "The token that decided; null: the owner, or not decided yet."]


class ApprovalQueryResponse(Message):
    approvals: Annotated[list[ApprovalInfo], "The oldest first, without expired ones."]


class ApprovalDecideRequest(Message):
    approval: Annotated[str, ID, "The approval."]
    decision: Annotated[
        Verdict,
        f"`once`: the request may be sent once, within {DECISION_MINUTES} minutes. `grant`: it may be sent repeatedly, "
        f"for `seconds`. `deny`: it is answered `approval_denied`, for {DECISION_MINUTES} minutes.",
    ]
    seconds: Annotated[
        int | None,
        Range(1, MAX_GRANT_SECONDS),
        f"Of `grant`: how long it lasts. Without it: {DECISION_MINUTES} minutes.",
    ] = None

    def check(self) -> None:
        super().check()
        if self.seconds is not None and self.decision != "grant":
            raise Wrong("Goes only with the decision grant.", "seconds")
