"""``/token``: tokens with limited rights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

from connmgr.contract.message import ABSENT, ID, SECRET, Absent, Fact, Length, Message, Range, SchemaMembers, Wrong

SCOPES: Mapping[str, str] = {
    "connection.read": "List connections and categories, and show them without their secrets.",
    "connection.write": "Add, change and remove connections, seal secrets, trust host keys.",
    "category.write": "Add and remove categories.",
    "shell.argv": "Run programs by an argv, which no shell reads.",
    "elevate": "Become another user by sudo on the connections in sight; what runs then needs its own scope too.",
    "shell.any": "Run any command text, and programs by an argv.",
    "job": "Start, watch and end jobs; what a job runs needs `shell.argv` or `shell.any` too.",
    "terminal": "Open and use terminals; what one runs needs `shell.argv` or `shell.any` too, a shell the latter.",
    "fs.read": "Read files and list directories.",
    "fs.write": "Write, move and remove files.",
    "tunnel": "Open TCP streams from the remote host, and tunnels.",
    "ssh.agent": "Use connections that forward an ssh-agent, and lend an agent for a login.",
    "ssh.certificate": "Add and change connections that log in by certificates of the vault's signers.",
    "secret.decrypt": "Open sealed secrets, and use them in the data of connections.",
    "approval.decide": "Decide what waits for approval.",
    "vault.admin": "Administer the vault's users, saved commands, and the daemon.",
    "token.create": "Create tokens with no more rights, and revoke and renew them.",
    "audit.read": "Read the audit log, without the commands of others.",
    "metrics.read": "Read figures of the daemon.",
}

MAX_DAYS = 90
"""Longest life of a token."""

MAX_FILTERS = 100
"""Most filters of each kind per token."""

EXPIRY = Fact("EXPIRY", write=lambda expires: expires.isoformat() if isinstance(expires, datetime) else expires)
"""A time in the future: seconds from now, or a time with its zone."""

LOAN = Fact("LOAN")
"""Whether secrets are lent, and for how long."""

Rules = Sequence[Mapping[str, Any]]


class LoanInfo(Message):
    user: Annotated[str, "The vault user whose secrets are lent."]
    began: Annotated[datetime, "When the loan began."]
    until: Annotated[datetime, "When its time is over. A lock of its lender ends it too."]


Lent = Annotated[LoanInfo | None, "The loan of sealed secrets by which the token uses them now, or null."]


class TokenMembers(Message):
    """What a token is made of, in requests and answers."""

    name: Annotated[str, Length(1, 200), "Who or what it is for. A label: several may have the same."]
    scopes: Annotated[
        list[str],
        Length(max=len(SCOPES)),
        "The kinds of action that it may use: " + ", ".join(f"`{scope}`" for scope in SCOPES) + ".",
    ]
    connections: Annotated[
        Sequence[str],
        Length(max=MAX_FILTERS),
        "Filters for the paths of connections, as in `/connection/query`; one must match. The connections below a "
        "matching one need not match; the token may use them directly only if they do.",
    ] = ("*",)
    categories: Annotated[Sequence[str], Length(max=MAX_FILTERS), "The same for the connection's category."] = ("*",)
    rules: Annotated[
        Rules,
        SchemaMembers({"default": []}),
        "Rules that allow or deny requests, or ask for an approval: see the guide on giving access.",
    ] = ()
    quota_per_day: Annotated[int | None, Range(1, 10**9), "Most requests in a day of UTC."] = None
    max_concurrent: Annotated[int | None, Range(1, 10_000), "Most requests under way at once."] = None
    from_: Annotated[
        list[str] | None,
        Length(1, MAX_FILTERS),
        "IP addresses and networks from which it may be used. Without it: any.",
    ] = None
    read_only: Annotated[
        bool,
        "True: it may only look. What it runs is in a sandbox on its machine that cannot write, and what changes "
        "anything is refused; so it is for the tokens that are created with it.",
    ] = False


class TokenCreateRequest(TokenMembers):
    expires: Annotated[
        datetime | timedelta, EXPIRY, f"Seconds from now, or a time with its zone; at most {MAX_DAYS} days from now."
    ]
    lend_secrets: Annotated[
        Mapping[str, float] | None,
        LOAN,
        "Lend the token the use of sealed secrets, as `/token/lend` does: true, as long as it does not expire, or "
        '`{"seconds": 3600}`.',
    ] = None


class TokenInfo(TokenMembers):
    id: Annotated[str, ID, "The token's uuid, which `/token/revoke` takes."]
    expires: Annotated[datetime, "When it expires."]
    created: Annotated[datetime, "When it was created."]
    parent: Annotated[str | Absent | None, ID, "The token that it was created with; null: the owner."] = ABSENT
    state: Annotated[
        str,
        SchemaMembers({"enum": ["valid", "expired", "revoked"]}),
        "`valid`, `expired` or `revoked`. It ends with the token that it was created with.",
    ]
    used_today: Annotated[int, "Requests of this day in UTC, as of the last count."]
    last_used: Annotated[str | Absent | None, "About when it was last used, or null."] = ABSENT
    lent: Lent


class TokenCreateResponse(TokenInfo):
    token: Annotated[
        str,
        SECRET,
        "The token: 256 random bits. This is the only time that it is shown; it is not stored.",
    ]


class TokenQueryResponse(Message):
    tokens: Annotated[list[TokenInfo], "The oldest first."]


class TokenRequest(Message):
    id: Annotated[str, ID, "The token's uuid."]


class TokenRenewRequest(TokenRequest):
    expires: Annotated[
        datetime | timedelta | None,
        EXPIRY,
        "As in `/token/create`. Without it: the original lifetime, counted from now.",
    ] = None


class TokenLendRequest(TokenRequest):
    seconds: Annotated[
        float | None,
        Range(0, MAX_DAYS * 86400, above=True),
        "How long. Without it: as long as the token does not expire.",
    ] = None
    end: Annotated[bool, "True ends the loan instead."] = False

    def check(self) -> None:
        super().check()
        if self.end and self.seconds is not None:
            raise Wrong("Not together with end.", "seconds")


class TokenCheckRequest(Message):
    path: Annotated[str, "The endpoint of the request to check."]
    request: Annotated[dict[str, Any], "The body of the request to check."]
    id: Annotated[str | None, ID, "The token of the request to check. Without it: the caller's own."] = None


class TokenCheckResponse(Message):
    effect: Annotated[
        str,
        SchemaMembers({"enum": ["allow", "ask", "deny", "unknown"]}),
        "The outcome that the request would have. `unknown`: it depends on what the paths hold.",
    ]
    code: Annotated[str | None, "The code of the error, if it would be refused for another reason."] = None
    message: Annotated[str | None, "The message of that error."] = None
    rule: Annotated[
        int | str | Absent | None,
        SchemaMembers({"type": ["integer", "string"]}),
        "The rule that decides: its name, or its number among the token's rules, from 0; null: none.",
    ] = ABSENT
    argv: Annotated[list[str] | None, "The argv that would run in place of the requested command."] = None


class TokenOwnResponse(Message):
    id: Annotated[str | None, ID, "The token's uuid; null: the owner."]
    name: Annotated[str | None, "Who or what it is for."]
    expires: Annotated[datetime | None, "When it expires."]
    scopes: Annotated[list[str], "The kinds of action that it may use; `*`: the owner."]
    actions: Annotated[list[str], "The actions that the scopes allow, by their names in the audit log."]
    commands: Annotated[
        str | None,
        SchemaMembers({"enum": ["text", "argv", None]}),
        "The form of commands that it may run: any `text`, only an `argv`, or none.",
    ]
    connections: Annotated[Sequence[str], "Filters for the paths of connections that it sees."]
    categories: Annotated[Sequence[str], "Filters for the categories of these connections."]
    rules: Annotated[Rules, "Its rules, as in `/token/create`."]
    quota_per_day: Annotated[int | None, "Most requests in a day of UTC; null: no limit."]
    used_today: Annotated[int | None, "Requests of this day in UTC, as of the last count; null: the owner."]
    max_concurrent: Annotated[int | None, "Most requests under way at once; null: no limit."]
    from_: Annotated[list[str] | None, "Addresses from which it may be used; null: any."]
    parent: Annotated[str | None, ID, "The token that it was created with, whose limits apply too; null: the owner."]
    read_only: Annotated[bool, "Whether it, or a token above it, may only look."]
    lent: Lent
