"""``/token``: tokens with limited rights."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import flask

from connmgr import errors
from connmgr.api.body import load
from connmgr.api.context import caller, detail
from connmgr.api.endpoint import Endpoint, Group
from connmgr.api.running import EXAMPLE
from connmgr.api.selection import elevated
from connmgr.api.services import services
from connmgr.contract.message import Absent, message_of, time_to_json, to_json
from connmgr.contract.token import (
    LoanInfo,
    TokenCheckRequest,
    TokenCheckResponse,
    TokenCreateRequest,
    TokenCreateResponse,
    TokenInfo,
    TokenLendRequest,
    TokenOwnResponse,
    TokenQueryResponse,
    TokenRenewRequest,
    TokenRequest,
)
from connmgr.rights.approvals import without_learnt
from connmgr.rights.grant import Grant
from connmgr.rights.rules import load_rules, rule_of
from connmgr.rights.scopes import ACTIONS, allowed
from connmgr.secrets.loans import Loan, until
from connmgr.secrets.principals import Access, Principal
from connmgr.vault.documents import Document

TOKEN = "5b1f4f0c-52c7-4f0e-9a53-0d6f5a1be5a4"  # noqa: S105 - the id of one, in an example
CREATING = (errors.ScopeDenied, errors.TokenLimit)

group = Group(
    "token",
    "Tokens for others: each has scopes, sees certain connections, obeys rules, and expires. A client sends its "
    "token at the handshake (`token`), or with each request as `Authorization: Bearer`. A client with the auth "
    "file or the API key is the owner, and may do everything.",
)


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
    "readOnly": False,
    "state": "valid",
    "usedToday": 0,
    "lastUsed": None,
    "lent": None,
}


@group.endpoint(
    "/create",
    has_content=True,
    about=("name", "scopes"),
    raises=[*CREATING, errors.VaultLocked, errors.IntegrityError],
    example={name: _INFO[name] for name in ("name", "scopes", "connections", "rules")} | {"expires": 604800},
    answer={**_INFO, "token": "cmgr_kq3VtC1m8o5u0sYzJd7xQ2nLr9bWfHgA4eTiPjKcMvU"},
)
def create(request: TokenCreateRequest) -> TokenCreateResponse:
    """Create a token, and show it once.

    A token with `token.create` may create others. They never have more rights than it has, and end with it.
    With `lendSecrets` it begins with a loan, as by `/token/lend`; a caller who cannot lend creates no token.
    """
    loan = request.lend_secrets
    # Before the token exists: a caller who cannot lend creates none.
    lending = None if loan is None else _lending(caller().grant)
    _check_saved_commands(list(request.rules))
    secret, document, grant = services().grants.create(request, caller().grant)
    detail(created=document.id)
    if lending is not None and loan is not None:
        _lend(lending, grant, loan.get("seconds"))
    shown = _shown(
        document, grant.invalid(services().vault.database.now()), _lent(grant.lineage_ids), read_only=grant.read_only
    )
    return TokenCreateResponse.read({**shown, "token": secret})


@group.endpoint(
    "/info",
    reads=True,
    answer={
        **{name: _INFO[name] for name in ("id", "name", "expires", "scopes")},
        "actions": ["shell.exec", "token.info"],
        "commands": "argv",
        **{name: _INFO[name] for name in ("connections", "categories", "rules", "usedToday", "parent", "lent")},
        **dict.fromkeys(("quotaPerDay", "maxConcurrent", "from")),
        "readOnly": False,
    },
)
def info() -> TokenOwnResponse:
    """Describe the caller's own token: what it may do, on what, and how often."""
    grant = caller().grant
    if grant is None:
        return TokenOwnResponse(
            id=None,
            name=None,
            expires=None,
            scopes=["*"],
            actions=sorted(ACTIONS),
            commands="text",
            connections=["*"],
            categories=["*"],
            rules=[],
            quota_per_day=None,
            used_today=None,
            max_concurrent=None,
            from_=None,
            parent=None,
            read_only=False,
            lent=None,
        )
    actions, commands = allowed(grant.scopes, read_only=grant.read_only)
    stored = _info(services().grants.document(grant), None, _lent(grant.lineage_ids), read_only=grant.read_only)
    return message_of(
        TokenOwnResponse,
        stored,
        scopes=sorted(grant.scopes),
        actions=sorted(actions),
        commands=commands,
        parent=None if isinstance(stored.parent, Absent) else stored.parent,
    )


@group.endpoint("/query", reads=True, answer={"tokens": [_INFO]})
def query() -> TokenQueryResponse:
    """List the tokens, invalid ones for 30 days too. A token lists only the tokens that were created with it."""
    at = services().vault.database.now()
    return TokenQueryResponse(
        tokens=[
            _info(
                token.document,
                token.invalid(at),
                _lent([above.id for above in token.line]),
                read_only=any(above.body.get("readOnly") for above in token.line),
            )
            for token in services().grants.all(caller().grant)
        ]
    )


@group.endpoint("/revoke", about=("id",), raises=[errors.UnknownToken], example={"id": TOKEN})
def revoke(request: TokenRequest) -> None:
    """Revoke a token for ever, together with all tokens that were created with it, and end what they run.

    Their commands, streams and terminals end within a second, on every daemon of the vault. Their jobs are killed as
    soon as their machines answer.
    """
    services().grants.revoke(request.id, caller().grant)


@group.endpoint(
    "/renew",
    about=("id",),
    raises=[errors.UnknownToken, errors.TokenRevoked, errors.ScopeDenied],
    example={"id": TOKEN, "expires": 604800},
    answer=_INFO,
)
def renew(request: TokenRenewRequest) -> TokenInfo:
    """Change the time when a token expires. No token renews itself."""
    document, grant = services().grants.renew(request.id, request.expires, caller().grant)
    return _info(
        document, grant.invalid(services().vault.database.now()), _lent(grant.lineage_ids), read_only=grant.read_only
    )


@group.endpoint(
    "/lend",
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
def lend(request: TokenLendRequest) -> TokenInfo:
    """Lend a token the use of the sealed secrets that the vault user of this session can open, or end that.

    The token can then open and use the connections that it sees, but neither read these secrets nor store or send them
    elsewhere: for `/secret/decrypt`, and for changes of connections, they stay locked. A connection that any token has
    added or changed gets none, until the owner gives it new data. The loan ends with the lock of this session, its
    time, the token, a change of the user's passphrase and the daemon; what runs by it ends with it, except jobs. A
    token that has a loan may lend it to tokens that it has created, and these have no more than it has.
    """
    creator = caller().grant
    if creator is not None and request.id == creator.id:
        raise errors.ScopeDenied("A token cannot lend to itself.")
    grant = services().grants.get(request.id, creator)
    if request.end:
        services().loans.end([grant.id], "it was ended by a request")
    else:
        grant.require_valid(services().vault.database.now())
        _lend(_lending(grant.parent), grant, request.seconds)
    document = services().grants.document(grant)
    return _info(
        document, grant.invalid(services().vault.database.now()), _lent(grant.lineage_ids), read_only=grant.read_only
    )


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
        lending = _Lending(own.access, own.id, services().vault.principals.lendable(own.access))
    else:
        mine = services().loans.of(own.grant.lineage_ids)
        if mine is None:
            raise errors.ScopeDenied("The token has no loan, so it has nothing to lend.")
        lending = _Lending(mine.lender, mine.session, mine.principal)
    if parent is not None:
        above = services().loans.of(parent.lineage_ids)
        if above is None or above.principal != lending.user:
            raise errors.ScopeDenied(
                f"A token cannot have a loan that its parent token lacks, and the parent has none by "
                f"{lending.user.name}: run `connmgr token lend {parent.id}` first."
            )
    return lending


def _lend(lending: _Lending, grant: Grant, seconds: float | None) -> None:
    began = services().vault.database.now()
    ends = until(seconds, min(token.expires for token in grant.lineage), began)
    services().loans.lend(
        Loan(grant.id, grant.name, grant.lineage_ids, lending.access, lending.session, lending.user, ends, began)
    )
    detail(lentBy=lending.user.name, lentUntil=time_to_json(ends))


def _lent(lineage: Sequence[str]) -> LoanInfo | None:
    loan = services().loans.of(lineage)
    return None if loan is None else LoanInfo(user=loan.principal.name, began=loan.began, until=loan.until)


@group.endpoint(
    "/check",
    has_content=True,
    reads=True,
    about=("path", "id"),
    raises=[errors.UnknownToken, errors.NotFound],
    example={"path": "/shell/exec", "request": {"connection": EXAMPLE, "argv": ["systemctl", "status", "nginx"]}},
    answer={"effect": "allow", "rule": 0, "argv": ["/usr/bin/systemctl", "status", "nginx"]},
)
def check(request: TokenCheckRequest) -> TokenCheckResponse:
    """Tell the outcome that a request would have, and which rule decides, without executing it.

    Neither approvals nor plugins are asked. Absolute paths are checked as they are written; on the remote host they may
    lead elsewhere. Lists and patterns are allowed where they leave out what may not be read.
    """
    endpoint = flask.current_app.view_functions.get(request.path)
    if not isinstance(endpoint, Endpoint) or endpoint.public or endpoint.request is None:
        raise errors.NotFound(f"No endpoint with a JSON request has the path {request.path[:200]}.")
    grant = caller().grant if request.id is None else services().grants.get(request.id, caller().grant)
    checked = elevated(load(endpoint.request, request.request), grant.id if grant else None, gives=False)
    if endpoint.selects is not None:
        checked = endpoint.selects(checked)
    if grant is None:
        return TokenCheckResponse(effect="allow", rule=None)
    try:
        grant.require_valid(services().vault.database.now())
        decision = services().authorisation.dry_run(grant, endpoint.action, checked)
    except errors.RequestError as error:
        return TokenCheckResponse(effect="deny", rule=None, code=error.code, message=error.message)
    if decision is None:
        return TokenCheckResponse(effect="unknown", rule=None)
    # Content that arrives later cannot be approved in advance.
    effect = "deny" if decision.effect == "ask" and endpoint.raw_body else decision.effect
    argv = None if decision.argv is None else list(decision.argv)
    return TokenCheckResponse(effect=effect, rule=rule_of(decision), argv=argv)


def _info(document: Document, why: errors.ConnmgrError | None, lent: LoanInfo | None, *, read_only: bool) -> TokenInfo:
    return TokenInfo.read(_shown(document, why, lent, read_only=read_only))


def _shown(
    document: Document, why: errors.ConnmgrError | None, lent: LoanInfo | None, *, read_only: bool
) -> dict[str, Any]:
    """Return a token as members of JSON; most of its document has that form."""
    counts, expires = document.counts, document.expires
    assert expires is not None, "every token expires"  # noqa: S101 - the vault's documents may lack it, tokens do not
    at = services().vault.database.now()
    today = counts.get("day") == at.date().isoformat()
    return {
        **document.body,
        "rules": without_learnt(document.body["rules"], at),
        "id": document.id,
        "created": time_to_json(document.created),
        "expires": time_to_json(expires),
        "state": why.code.removeprefix("token_") if why else "valid",
        "usedToday": counts.get("used", 0) if today else 0,
        "lastUsed": counts.get("lastUsed"),
        "readOnly": read_only,
        "lent": None if lent is None else to_json(lent),
    }
