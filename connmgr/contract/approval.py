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
Verdict = Literal["once", "grant", "pattern", "deny"]
LASTING = ("grant", "pattern")
"""The decisions that last for ``seconds``."""
DECISION_MINUTES = 10
"""Minutes that a request waits for a decision, and a decision for the repeated request."""

PATTERN_MINUTES = 30
MAX_GRANT_SECONDS = 86400

Uuid = SchemaMembers({"format": "uuid"})


class ApprovalQueryRequest(Message):
    states: Annotated[
        Sequence[Annotated[str, OneOf(STATES)]],
        f"In one of these states: {', '.join(f'`{state}`' for state in STATES)}.",
    ] = (PENDING,)


class ProposedPattern(Message):
    """A pattern that may be approved in place of one request."""

    words: Annotated[
        Sequence[str],
        "The program and its words. `NAME` stands for any name of a service: letters, digits, `_`, `-`, `@` and `:`, "
        "and perhaps `.service`; no option, no path.",
    ]
    names: Annotated[Sequence[str], "The paths of the connections on which it would hold."]
    seconds: Annotated[int, "How long, unless the decision says otherwise."]


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
    pattern: Annotated[
        ProposedPattern | None,
        "Present where the decision `pattern` is possible: it gives the token a rule that allows this.",
    ] = None


class ApprovalQueryResponse(Message):
    approvals: Annotated[list[ApprovalInfo], "The oldest first, without expired ones."]


class ApprovalDecideRequest(Message):
    approval: Annotated[str, ID, "The approval."]
    decision: Annotated[
        Verdict,
        f"`once`: the request may be sent once, within {DECISION_MINUTES} minutes. `grant`: it may be sent repeatedly, "
        f"for `seconds`. `pattern`: as `grant`, and the token gets a rule that allows the proposed `pattern` as long. "
        f"`deny`: it is answered `approval_denied`, for {DECISION_MINUTES} minutes. Another decision takes the rule "
        "back.",
    ]
    seconds: Annotated[
        int | None,
        Range(1, MAX_GRANT_SECONDS),
        f"Of `grant` and `pattern`: how long it lasts. Without it: {DECISION_MINUTES} minutes, and {PATTERN_MINUTES}.",
    ] = None

    def check(self) -> None:
        super().check()
        if self.seconds is not None and self.decision not in LASTING:
            raise Wrong("Only for the decisions grant and pattern.", "seconds")
