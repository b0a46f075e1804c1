"""``/token``: tokens with limited rights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

import flask
from marshmallow import ValidationError, fields, validates_schema

from connmgr import errors
from connmgr.api.account import caller, detail
from connmgr.api.body import load
from connmgr.api.elevate import elevated
from connmgr.api.endpoint import Endpoint
from connmgr.api.group import Group
from connmgr.api.running import EXAMPLE
from connmgr.api.schemas import Id, UtcTime
from connmgr.api.services import services
from connmgr.fields import Boolean, Integer, Length, List, Number, Range, Schema, Text
from connmgr.rights.grant import MAX_DAYS, MAX_FILTERS, Grant
from connmgr.rights.rules import load_rules, rule_of
from connmgr.rights.scopes import ACTIONS, SCOPES, allowed
from connmgr.secrets.loans import Loan, until
from connmgr.secrets.principals import Access, Principal
from connmgr.vault.documents import Document
from connmgr.vault.tables import now

TOKEN = "5b1f4f0c-52c7-4f0e-9a53-0d6f5a1be5a4"  # noqa: S105 - the id of one, in an example
CREATING = (errors.ScopeDenied, errors.TokenLimit)

group = Group(
    "token",
    "Tokens for others: each has scopes, sees certain connections, obeys rules, and expires. A client sends its "
    "token at the handshake (`token`), or with each request as `Authorization: Bearer`. A client with the auth "
    "file or the API key is the owner, and may do everything.",
)


class Expiry(fields.Field[datetime]):
    """When a token expires: seconds from now, or a time with its zone, as RFC 3339 writes it."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.metadata = {"type": ["number", "string"], **self.metadata}

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> datetime:
        try:
            if isinstance(value, int | float) and not isinstance(value, bool):
                return now() + timedelta(seconds=value)
            given = datetime.fromisoformat(value.replace("Z", "+00:00") if isinstance(value, str) else "")
        except (OverflowError, ValueError):
            raise ValidationError("Neither a number of seconds nor a time as 2026-01-31T08:15:00Z.") from None
        if given.tzinfo is None:
            raise ValidationError("The time has no zone: write it as 2026-01-31T08:15:00Z.")
        return given.astimezone(timezone.utc)


class Loaned(fields.Field[Mapping[str, float] | None]):
    """Whether secrets are lent, and for how long: true, or an object with "seconds"."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.metadata = {"type": ["boolean", "object"], **self.metadata}

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Mapping[str, float] | None:
        if isinstance(value, bool):
            return {} if value else None
        seconds = value.get("seconds") if isinstance(value, Mapping) and set(value) == {"seconds"} else None
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= MAX_DAYS * 86400:
            raise ValidationError('Neither true nor {"seconds": …} with a number above 0, at most 90 days.')
        return {"seconds": seconds}


class LoanInfo(Schema):
    user = fields.String(required=True, metadata={"description": "The vault user whose secrets are lent."})
    began = UtcTime(required=True, metadata={"description": "When the loan began."})
    until = UtcTime(required=True, metadata={"description": "When its time is over. A lock of its lender ends it too."})


LENT = fields.Nested(
    LoanInfo,
    required=True,
    allow_none=True,
    metadata={"description": "The loan of sealed secrets by which the token uses them now, or null."},
)


class _Members(Schema):
    name = Text(
        required=True,
        validate=Length(min=1, max=200),
        metadata={"description": "Who or what it is for. A label: several may have the same."},
    )
    scopes = List(
        Text(),
        required=True,
        validate=Length(max=len(SCOPES)),
        metadata={
            "description": "The kinds of action that it may use: " + ", ".join(f"`{one}`" for one in SCOPES) + "."
        },
    )
    connections = List(
        Text(),
        load_default=["*"],
        validate=Length(max=MAX_FILTERS),
        metadata={
            "description": "Filters for the paths of connections, as in `/connection/query`; one must match. The "
            "connections below a matching one need not match; the token may use them directly only if they do."
        },
    )
    categories = List(
        Text(),
        load_default=["*"],
        validate=Length(max=MAX_FILTERS),
        metadata={"description": "The same for the connection's category."},
    )
    rules = List(
        fields.Dict(),
        load_default=[],
        metadata={
            "description": "Rules that allow or deny requests, or ask for an approval: see the guide on giving access."
        },
    )
    quotaPerDay = Integer(validate=Range(min=1, max=10**9), metadata={"description": "Most requests in a day of UTC."})
    maxConcurrent = Integer(
        validate=Range(min=1, max=10_000), metadata={"description": "Most requests under way at once."}
    )
    from_ = List(
        Text(),
        data_key="from",
        attribute="from",
        validate=Length(min=1, max=MAX_FILTERS),
        metadata={"description": "IP addresses and networks from which it may be used. Without it: any."},
    )


class TokenCreateRequest(_Members):
    expires = Expiry(
        required=True,
        metadata={"description": f"Seconds from now, or a time with its zone; at most {MAX_DAYS} days from now."},
    )
    lendSecrets = Loaned(
        metadata={
            "description": "Lend the token the use of sealed secrets, as `/token/lend` does: true, as long as it does "
            'not expire, or `{"seconds": 3600}`.'
        }
    )


class TokenInfo(_Members):
    id = Id(required=True, metadata={"description": "The token's uuid, which `/token/revoke` takes."})
    expires = UtcTime(required=True, metadata={"description": "When it expires."})
    created = UtcTime(required=True, metadata={"description": "When it was created."})
    parent = Id(allow_none=True, metadata={"description": "The token that it was created with; null: the owner."})
    state = fields.String(
        required=True,
        metadata={
            "description": "`valid`, `expired` or `revoked`. It ends with the token that it was created with.",
            "enum": ["valid", "expired", "revoked"],
        },
    )
    usedToday = fields.Integer(
        required=True, metadata={"description": "Requests of this day in UTC, as of the last count."}
    )
    lastUsed = fields.String(allow_none=True, metadata={"description": "About when it was last used, or null."})
    lent = LENT


class TokenCreateResponse(TokenInfo):
    token = fields.String(
        required=True,
        metadata={
            "description": "The token: 256 random bits. This is the only time that it is shown; it is not stored."
        },
    )


class TokenQueryResponse(Schema):
    tokens = fields.List(fields.Nested(TokenInfo), required=True, metadata={"description": "The oldest first."})


class TokenRequest(Schema):
    id = Id(required=True, metadata={"description": "The token's uuid."})


class TokenRenewRequest(TokenRequest):
    expires = Expiry(
        metadata={"description": "As in `/token/create`. Without it: the original lifetime, counted from now."}
    )


class TokenLendRequest(TokenRequest):
    seconds = Number(
        validate=Range(min=0, min_inclusive=False, max=MAX_DAYS * 86400),
        metadata={"description": "How long. Without it: as long as the token does not expire."},
    )
    end = Boolean(load_default=False, metadata={"description": "True ends the loan instead."})

    @validates_schema
    def check_end(self, data: dict[str, Any], **_: Any) -> None:
        if data["end"] and "seconds" in data:
            raise ValidationError("A loan that is ended takes no time.", "seconds")


class TokenCheckRequest(Schema):
    path = Text(required=True, metadata={"description": "The endpoint of the request to check."})
    request = fields.Dict(required=True, metadata={"description": "The body of the request to check."})
    id = Id(metadata={"description": "The token of the request to check. Without it: the caller's own."})


class TokenCheckResponse(Schema):
    effect = fields.String(
        required=True,
        metadata={
            "description": "The outcome that the request would have. `unknown`: it depends on what the paths hold.",
            "enum": ["allow", "ask", "deny", "unknown"],
        },
    )
    code = fields.String(metadata={"description": "The code of the error, if it would be refused for another reason."})
    message = fields.String(metadata={"description": "The message of that error."})
    rule = fields.Raw(
        allow_none=True,
        metadata={
            "type": ["integer", "string"],
            "description": "The rule that decides: its name, or its number among the token's rules, from 0; null: "
            "none.",
        },
    )
    argv = fields.List(
        fields.String(), metadata={"description": "The argv that would run in place of the requested command."}
    )


class TokenOwnResponse(Schema):
    id = Id(required=True, allow_none=True, metadata={"description": "The token's uuid; null: the owner."})
    name = fields.String(required=True, allow_none=True, metadata={"description": "Who or what it is for."})
    expires = UtcTime(required=True, allow_none=True, metadata={"description": "When it expires."})
    scopes = fields.List(
        fields.String(), required=True, metadata={"description": "The kinds of action that it may use; `*`: the owner."}
    )
    actions = fields.List(
        fields.String(),
        required=True,
        metadata={"description": "The actions that the scopes allow, by their names in the audit log."},
    )
    commands = fields.String(
        required=True,
        allow_none=True,
        metadata={
            "description": "The form of commands that it may run: any `text`, only an `argv`, or none.",
            "enum": ["text", "argv", None],
        },
    )
    connections = fields.List(
        fields.String(), required=True, metadata={"description": "Filters for the paths of connections that it sees."}
    )
    categories = fields.List(
        fields.String(), required=True, metadata={"description": "Filters for the categories of these connections."}
    )
    rules = fields.List(fields.Dict(), required=True, metadata={"description": "Its rules, as in `/token/create`."})
    quotaPerDay = fields.Integer(
        required=True, allow_none=True, metadata={"description": "Most requests in a day of UTC; null: no limit."}
    )
    usedToday = fields.Integer(
        required=True,
        allow_none=True,
        metadata={"description": "Requests of this day in UTC, as of the last count; null: the owner."},
    )
    maxConcurrent = fields.Integer(
        required=True, allow_none=True, metadata={"description": "Most requests under way at once; null: no limit."}
    )
    from_ = fields.List(
        fields.String(),
        data_key="from",
        attribute="from",
        required=True,
        allow_none=True,
        metadata={"description": "Addresses from which it may be used; null: any."},
    )
    parent = Id(
        required=True,
        allow_none=True,
        metadata={"description": "The token that it was created with, whose limits apply too; null: the owner."},
    )
    lent = LENT


_LIMITS = ("quotaPerDay", "maxConcurrent", "from")

_INFO = {
    "id": TOKEN,
    "name": "nightly backup",
    "scopes": ["shell.argv"],
    "connections": ["web*"],
    "categories": ["*"],
    "rules": [{"effect": "allow", "argv": ["/usr/bin/systemctl", "status", {"in": ["nginx", "redis"]}]}],
    "created": "2026-01-31T08:15:00.000000Z",
    "expires": "2026-02-07T08:15:00.000000Z",
    "parent": None,
    "state": "valid",
    "usedToday": 0,
    "lastUsed": None,
    "lent": None,
}


@group.endpoint(
    "/create",
    TokenCreateRequest,
    TokenCreateResponse,
    has_content=True,
    action="token.create",
    about=("name", "scopes"),
    raises=[*CREATING, errors.VaultLocked, errors.IntegrityError],
    example={name: _INFO[name] for name in ("name", "scopes", "connections", "rules")} | {"expires": 604800},
    answer={**_INFO, "token": "cmgr_kq3VtC1m8o5u0sYzJd7xQ2nLr9bWfHgA4eTiPjKcMvU"},
)
def create(request: dict[str, Any]) -> dict[str, Any]:
    """Create a token, and show it once.

    A token with `token.create` may create others. They never have more rights than it has, and end with it.
    With `lendSecrets` it begins with a loan, as by `/token/lend`; a caller who cannot lend creates no token.
    """
    loan = request.pop("lendSecrets", None)
    lending = None if loan is None else _lending(caller().grant)
    _check_saved_commands(request["rules"])
    secret, document, grant = services().grants.create(request, caller().grant)
    detail(created=document.id)
    if lending is not None:
        _lend(lending, grant, loan.get("seconds"))
    return {**_info(document, grant.invalid(now())), "lent": _lent(grant), "token": secret}


@group.endpoint(
    "/info",
    None,
    TokenOwnResponse,
    action="token.info",
    reads=True,
    answer={
        **{name: _INFO[name] for name in ("id", "name", "expires", "scopes")},
        "actions": ["shell.exec", "token.info"],
        "commands": "argv",
        **{name: _INFO[name] for name in ("connections", "categories", "rules", "usedToday", "parent", "lent")},
        **dict.fromkeys(("quotaPerDay", "maxConcurrent", "from")),
    },
)
def info() -> dict[str, Any]:
    """Describe the caller's own token: what it may do, on what, and how often."""
    grant = caller().grant
    if grant is None:
        return dict.fromkeys(("id", "name", "expires", *_LIMITS, "usedToday", "parent", "lent")) | {
            "scopes": ["*"],
            "actions": sorted(ACTIONS),
            "commands": "text",
            "connections": ["*"],
            "categories": ["*"],
            "rules": [],
        }
    actions, commands = allowed(grant.scopes)
    stored = _info(services().grants.document(grant), None)
    return {
        **{name: stored.get(name) for name in (*_LIMITS, "usedToday", "parent")},
        **{name: stored[name] for name in ("connections", "categories", "rules")},
        "lent": _lent(grant),
        "id": grant.id,
        "name": grant.name,
        "expires": grant.expires,
        "scopes": sorted(grant.scopes),
        "actions": sorted(actions),
        "commands": commands,
    }


@group.endpoint("/query", None, TokenQueryResponse, action="token.query", reads=True, answer={"tokens": [_INFO]})
def query() -> dict[str, Any]:
    """List the tokens, invalid ones for 30 days too. A token lists only the tokens that were created with it."""
    at = now()
    return {
        "tokens": [
            _info(one.document, one.invalid(at)) | {"lent": _loan_of([above.id for above in one.line])}
            for one in services().grants.all(caller().grant)
        ]
    }


@group.endpoint(
    "/revoke",
    TokenRequest,
    action="token.revoke",
    about=("id",),
    raises=[errors.UnknownToken],
    example={"id": TOKEN},
)
def revoke(request: dict[str, Any]) -> None:
    """Revoke a token for ever, together with all tokens that were created with it, and end what they run.

    Their commands, streams and terminals end within a second, on every daemon of the vault. Their jobs are killed as
    soon as their machines answer.
    """
    services().grants.revoke(request["id"], caller().grant)


@group.endpoint(
    "/renew",
    TokenRenewRequest,
    TokenInfo,
    action="token.renew",
    about=("id",),
    raises=[errors.UnknownToken, errors.TokenRevoked, errors.ScopeDenied],
    example={"id": TOKEN, "expires": 604800},
    answer=_INFO,
)
def renew(request: dict[str, Any]) -> dict[str, Any]:
    """Change the time when a token expires. No token renews itself."""
    document, grant = services().grants.renew(request["id"], request.get("expires"), caller().grant)
    return _info(document, grant.invalid(now())) | {"lent": _lent(grant)}


@group.endpoint(
    "/lend",
    TokenLendRequest,
    TokenInfo,
    action="token.lend",
    about=("id", "end"),
    raises=[
        errors.UnknownToken,
        errors.TokenRevoked,
        errors.TokenExpired,
        errors.ScopeDenied,
        errors.VaultLocked,
        errors.IntegrityError,
    ],
    example={"id": TOKEN, "seconds": 3600},
    answer={
        **_INFO,
        "lent": {"user": "alice", "began": "2026-01-31T08:15:00.000000Z", "until": "2026-01-31T09:15:00.000000Z"},
    },
)
def lend(request: dict[str, Any]) -> dict[str, Any]:
    """Lend a token the use of the sealed secrets that the vault user of this session can open, or end that.

    The token can then open and use the connections that it sees, but neither read these secrets nor store or send them
    elsewhere: for `/secret/decrypt`, and for changes of connections, they stay locked. A connection that any token has
    added or changed gets none, until the owner gives it new data. The loan ends with the lock of this session, its
    time, the token, a change of the user's passphrase and the daemon; what runs by it ends with it, except jobs. A
    token that has a loan may lend it to tokens that it has created, and these have no more than it has.
    """
    creator = caller().grant
    if creator is not None and request["id"] == creator.id:
        raise errors.ScopeDenied("No token lends to itself.")
    grant = services().grants.get(request["id"], creator)
    if request["end"]:
        services().loans.end([grant.id], "it was ended by a request")
    else:
        grant.require_valid(now())
        _lend(_lending(grant.parent), grant, request.get("seconds"))
    return _info(services().grants.document(grant), grant.invalid(now())) | {"lent": _lent(grant)}


def _check_saved_commands(rules: list[Any]) -> None:
    """Refuse a rule over a saved command of now that would allow nothing, because its arguments are too free."""
    for rule in load_rules(rules).over_saved_commands:
        if rule.effect == "deny" or rule.may_run_others:
            continue
        with suppress(errors.UnknownCommand):
            # One that is saved later is checked when a token uses it.
            if why := services().commands.get(rule.command).too_free(rule.effect, rule.arguments):
                raise errors.InvalidRequest(f"rules[{rule.index}].command: {why}")


class _Lending(NamedTuple):
    """Who lends: the access that opens the secrets, its session and its user."""

    access: Access
    session: str
    user: Principal


def _lending(parent: Grant | None) -> _Lending:
    """Return the caller as the lender to a token that was created with ``parent``.

    :raises VaultLocked: it is the owner, and its session has unlocked no vault user.
    :raises InvalidRequest: the vault has no users, so there is nothing to lend.
    :raises ScopeDenied: it is a token without a loan; or the parent has no loan by the same user.
    """
    own = caller()
    if own.grant is None:
        found = _Lending(own.access, own.id, services().vault.principals.lendable(own.access))
    else:
        mine = services().loans.of([one.id for one in own.grant.lineage])
        if mine is None:
            raise errors.ScopeDenied("A token lends only what is lent to it, and nothing is.")
        found = _Lending(mine.lender, mine.session, mine.principal)
    if parent is not None:
        above = services().loans.of([one.id for one in parent.lineage])
        if above is None or above.principal != found.user:
            raise errors.ScopeDenied(
                f"The token was created with another one, which has no loan by {found.user.name}, and it may have no "
                f"more than that one: `connmgr token lend {parent.id}` first."
            )
    return found


def _lend(lending: _Lending, grant: Grant, seconds: float | None) -> None:
    lineage = [one.id for one in grant.lineage]
    ends = until(seconds, min(one.expires for one in grant.lineage))
    services().loans.lend(Loan(grant.id, grant.name, lineage, lending.access, lending.session, lending.user, ends))
    detail(lentBy=lending.user.name, lentUntil=UtcTime.text(ends))


def _lent(grant: Grant) -> dict[str, Any] | None:
    return _loan_of([one.id for one in grant.lineage])


def _loan_of(lineage: Sequence[str]) -> dict[str, Any] | None:
    loan = services().loans.of(lineage)
    return None if loan is None else {"user": loan.principal.name, "began": loan.began, "until": loan.until}


@group.endpoint(
    "/check",
    TokenCheckRequest,
    TokenCheckResponse,
    has_content=True,
    action="token.check",
    reads=True,
    about=("path", "id"),
    raises=[errors.UnknownToken, errors.NotFound],
    example={"path": "/shell/exec", "request": {"connection": EXAMPLE, "argv": ["systemctl", "status", "nginx"]}},
    answer={"effect": "allow", "rule": 0, "argv": ["/usr/bin/systemctl", "status", "nginx"]},
)
def check(request: dict[str, Any]) -> dict[str, Any]:
    """Tell the outcome that a request would have, and which rule decides, without executing it.

    Neither approvals nor plugins are asked. Absolute paths are checked as they are written; on the far side they may
    lead elsewhere. Lists and patterns are allowed where they leave out what may not be read.
    """
    endpoint = flask.current_app.view_functions.get(request["path"])
    if not isinstance(endpoint, Endpoint) or endpoint.public or endpoint.request is None:
        raise errors.NotFound("There is no such endpoint that takes a request.")
    grant = services().grants.get(request["id"], caller().grant) if "id" in request else caller().grant
    asked = elevated(load(endpoint.request, request["request"]), grant.id if grant else None, gives=False)
    if endpoint.selects is not None:
        asked = endpoint.selects(asked)
    if grant is None:
        return {"effect": "allow", "rule": None}
    try:
        grant.require_valid(now())
        decision = services().authorisation.foretold(grant, endpoint.action, asked, endpoint.subjects)
    except errors.RequestError as error:
        return {"effect": "deny", "rule": None, "code": error.code, "message": error.message}
    if decision is None:
        return {"effect": "unknown", "rule": None}
    argv = {} if decision.argv is None else {"argv": list(decision.argv)}
    # Content that arrives later cannot be approved in advance.
    effect = "deny" if decision.effect == "ask" and endpoint.raw_body else decision.effect
    return {"effect": effect, "rule": rule_of(decision), **argv}


def _info(document: Document, why: errors.ConnmgrError | None) -> dict[str, Any]:
    counts = document.counts
    today = counts.get("day") == now().date().isoformat()
    return {
        **document.body,
        "id": document.id,
        "created": document.created,
        "expires": document.expires,
        "state": why.code.removeprefix("token_") if why else "valid",
        "usedToday": counts.get("used", 0) if today else 0,
        "lastUsed": counts.get("lastUsed"),
    }
