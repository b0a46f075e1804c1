"""The tokens of the vault: creating, finding, renewing and revoking them; counting what they are used for; and ending
what runs by them when they end.

A token is a document. Authorisation reads it as a :class:`Grant`, whose lineage has the tokens above it. Tokens in use
stay in memory: the requests of each are counted there, and a thread looks whether another daemon has changed one.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Any
from weakref import WeakValueDictionary

from connmgr.contract.event import TOKEN
from connmgr.contract.message import members
from connmgr.contract.token import MAX_DAYS, SCOPES, TokenCreateRequest
from connmgr.errors import (
    ConnmgrError,
    IntegrityError,
    InvalidRequest,
    InvalidToken,
    QuotaExceeded,
    ScopeDenied,
    TokenLimit,
    TokenRevoked,
    UnknownToken,
)
from connmgr.events import Publish, unheard
from connmgr.plugin import Asker
from connmgr.poller import Poller, Trouble
from connmgr.rights.approvals import learnt, without_learnt
from connmgr.rights.grant import REVOKED, Grant, why_invalid
from connmgr.rights.rules import load_rules
from connmgr.secrets.loans import Borrower, Loans
from connmgr.secrets.principals import Access
from connmgr.vault.documents import Document, Documents, counted

logger = logging.getLogger("connmgr.rights")

PREFIX = "cmgr_"
"""The beginning of every token, by which people and scanners of code recognise one."""

MAX_TOKENS = 1000
MAX_BELOW = 100
"""Most tokens created with one token that are stored."""

GRACE = timedelta(minutes=1)
"""Tolerance for a request for the longest time, which arrives a moment later."""

KEEP_INVALID = timedelta(days=30)
"""Time for which a token is listed after its end."""

LOOK_SECONDS = 0.4
"""Interval of checks whether another daemon of the vault has changed a token in use here."""

STALE_SECONDS = 0.9
"""A token not checked for this long is read again before it is used."""

COUNT_SECONDS = 30.0
"""Interval at which the uses of a token without a quota are stored."""

Ended = Callable[[Mapping[str, ConnmgrError], bool], None]
"""Ends what runs by the tokens with these ids, each for its reason; the second argument says whether jobs end too."""


class Grants:
    """All tokens, and those that are ``in_use``. Safe to use from several threads.

    ``key`` has 32 bytes and keys the digests that the vault stores. ``ended`` is called, from any thread, when tokens
    in use were revoked or have expired.
    """

    def __init__(self, documents: Documents, key: bytes, ended: Ended, publish: Publish = unheard) -> None:
        self._documents, self._key, self._ended, self._publish = documents, key, ended, publish
        self.in_use = TokensInUse(documents, ended)

    def create(self, request: TokenCreateRequest, creator: Grant | None) -> tuple[str, Document, Grant]:
        """Create a token.

        :returns: its text, which is not stored, the stored document, and the grant.
        :raises InvalidRequest: a member is malformed; the message names its place.
        :raises ScopeDenied: it would exceed the rights of its ``creator``.
        :raises TokenLimit: there are too many.
        """
        _check_scopes(request.scopes, creator)
        secret = PREFIX + secrets.token_urlsafe(32)
        at = self._documents.now()
        end = _end_of(request.expires, creator, at)
        body = {
            # Tuples are the defaults of lists; a document has lists, as it will when it is read again.
            **{name: list(value) if isinstance(value, tuple) else value for name, value in members(request).items()},
            "parent": creator.id if creator else None,
            "lasts": (end - at).total_seconds(),
        }
        stored_body = {name: value for name, value in body.items() if name not in ("expires", "lendSecrets")}
        document = Document(key=self._digest(secret), body=stored_body, expires=end, created=at)
        grant = Grant.load(document, creator, is_new=True)
        self._make_room(creator)
        if not self._documents.add(document, most=MAX_TOKENS):
            raise TokenLimit(f"There are {MAX_TOKENS} valid tokens already: revoke some first.")
        self._tell("created", grant)
        return secret, document, grant

    def find(self, secret: str) -> Live:
        """Return the token with the text ``secret``, valid or not.

        :raises InvalidToken: no token has this text.
        """
        document = self._documents.by_key(self._digest(secret))
        if document is None:
            raise InvalidToken("Unknown token: check its text, or ask for a new one.")
        return self.in_use.keep(document)

    def live(self, id: str) -> Live:
        """Return the token ``id``, valid or not, which is in use from now on.

        :raises TokenRevoked: it was removed, some time after its end.
        """
        document = self._documents.get(id)
        if document is None:
            raise TokenRevoked(REVOKED)
        return self.in_use.keep(document)

    def document(self, grant: Grant) -> Document:
        """Return the stored document of a token.

        :raises InvalidToken: it was removed meanwhile.
        """
        document = self._documents.get(grant.id)
        if document is None:
            raise InvalidToken("Unknown token: it was removed meanwhile.")
        return document

    def all(self, creator: Grant | None) -> list[StoredToken]:
        """Return all tokens for the owner, or those created with ``creator``."""
        tokens = stored_tokens(self._documents.all())
        return tokens if creator is None else [token for token in tokens if token.comes_from(creator.id)]

    def get(self, id: str, creator: Grant | None) -> Grant:
        """Return a token, valid or not, that is ``creator`` or descends from it; else raise :class:`UnknownToken`."""
        return creator if creator is not None and creator.id == id else self._require(id, creator)

    def revoke(self, id: str, creator: Grant | None) -> None:
        """Make a token and all its descendants invalid from now on; end what they run here.

        :raises UnknownToken: the token does not exist, or does not descend from ``creator``.
        """
        grant = self._require(id, creator)
        at = self._documents.now().isoformat()
        self._documents.change(id, lambda document: replace(document, body={**document.body, "revoked": at}))
        self.in_use.end_those_of(id)
        # Descendants that nobody uses here, too: another daemon, or this one before its restart, may have started jobs.
        below = [token.document.id for token in self.all(None) if token.comes_from(id)]
        self._ended(dict.fromkeys([id, *below], TokenRevoked(REVOKED)), True)
        self._tell("revoked", grant)

    def renew(self, id: str, expires: datetime | timedelta | None, creator: Grant | None) -> tuple[Document, Grant]:
        """Change the expiry of a token; None means its original lifetime, from now.

        :raises UnknownToken: the token does not exist, or does not descend from ``creator``.
        :raises TokenRevoked: it was revoked.
        :raises InvalidRequest, ScopeDenied: as :meth:`create`.
        """
        if self._require(id, creator).revoked:
            raise TokenRevoked("A revoked token cannot be renewed: create a new one.")

        def renewed(document: Document) -> Document:
            end = timedelta(seconds=document.body["lasts"]) if expires is None else expires
            return replace(document, expires=_end_of(end, creator, self._documents.now()))

        changed = self._documents.change(id, renewed)
        if changed is None:
            raise UnknownToken(id)
        grant = grant_of(self._documents, changed)
        self._tell("renewed", grant)
        return changed, grant

    def learn(self, rules: Mapping[str, Mapping[str, Any]], approval: str, seconds: float) -> None:
        """Give each token, by its id, the rule of an ``approval`` for ``seconds``, in place of an earlier one of it.

        Without ``seconds`` the rules that it has given are taken back.
        :raises InvalidRequest: a token has too many rules.
        """
        for id, rule in rules.items():

            def learnt_by(document: Document, rule: Mapping[str, Any] = rule) -> Document:
                at = self._documents.now()
                rules_now = without_learnt(document.body["rules"], at, approval)
                rules_now += [learnt(rule, approval, at, seconds)] if seconds else []
                load_rules(rules_now, are_stored=True)
                return replace(document, body={**document.body, "rules": rules_now})

            self._documents.change(id, learnt_by)
            self.in_use.read_those_of(id)

    def _tell(self, change: str, grant: Grant) -> None:
        above = tuple(ancestor.id for ancestor in grant.lineage[1:])
        self._publish(TOKEN, change, id=grant.id, facts=above, name=grant.name, expires=grant.expires)

    def _digest(self, secret: str) -> str:
        return blake2b(secret.encode(errors="surrogatepass"), key=self._key, digest_size=32).hexdigest()

    def _require(self, id: str, creator: Grant | None) -> Grant:
        document = self._documents.get(id)
        grant = None if document is None else grant_of(self._documents, document)
        if grant is None or (creator is not None and all(ancestor.id != creator.id for ancestor in grant.lineage[1:])):
            raise UnknownToken(id)
        return grant

    def _make_room(self, creator: Grant | None) -> None:
        """Remove tokens that ended long ago, or if there are too many, all ended ones, with their descendants.

        :raises TokenLimit: ``creator`` has created too many.
        """
        tokens = self.all(None)
        if creator is not None and sum(token.comes_from(creator.id) for token in tokens) >= MAX_BELOW:
            raise TokenLimit(f"{MAX_BELOW} tokens were created with this one already: revoke some first.")
        self._documents.remove(dispensable(tokens, self._documents.now(), is_full=len(tokens) >= MAX_TOKENS))


def _check_scopes(scopes: Sequence[str], creator: Grant | None) -> None:
    """Refuse unknown scopes, and scopes that the ``creator`` lacks.

    :raises InvalidRequest, ScopeDenied: the message says which.
    """
    for place, scope in enumerate(scopes):
        if scope not in SCOPES:
            raise InvalidRequest(f"scopes[{place}]: Unknown scope {scope!r}. The scopes are: {', '.join(SCOPES)}.")
    if creator is not None and (more := sorted(set(scopes) - creator.scopes)):
        raise ScopeDenied(f"A token cannot give a right that it lacks: it does not have the scope {more[0]}.")


def _end_of(expires: datetime | timedelta, creator: Grant | None, at: datetime) -> datetime:
    """Return when a token of a ``creator`` expires, if ``expires`` was requested at the time ``at``.

    A request for the creator's own full lifetime ends with the creator.
    :raises InvalidRequest: the time is past, or more than 90 days away.
    :raises ScopeDenied: it is after the creator's own end.
    """
    if isinstance(expires, timedelta):
        expires = at + expires
    if not at < expires <= at + timedelta(days=MAX_DAYS) + GRACE:
        raise InvalidRequest(f"expires: Must be in the future, and at most {MAX_DAYS} days from now.")
    latest = min((ancestor.expires for ancestor in creator.lineage), default=expires) if creator else expires
    if expires > latest + GRACE:
        raise ScopeDenied("A token cannot give a right that it lacks: it expires before that time.")
    return min(expires, latest)


@dataclass(eq=False)
class Live:
    """A token in use: its grant as last read, and its counts. The fields belong to :class:`TokensInUse`."""

    grant: Grant
    codes: Mapping[str, bytes]
    """The codes of the documents from which its grant was made."""

    looked_at: float
    running: int = 0
    day: str = ""
    used: int = 0
    """Requests of ``day``, in UTC, that the vault has recorded."""

    uncounted: int = 0
    counted_at: float = field(default_factory=time.monotonic)
    ended: bool = False
    """True when it has become invalid; whatever it runs then stops."""

    why: ConnmgrError | None = None
    """Why it has ended."""

    reading: threading.Lock = field(default_factory=threading.Lock)
    """Held from before its documents are read until the grant is that of them."""


class TokensInUse:
    """The tokens that were used here. Safe to use from several threads.

    ``ended`` is called, from any thread, when some were revoked or have expired.
    """

    def __init__(self, documents: Documents, ended: Ended) -> None:
        self._documents, self._ended = documents, ended
        self._lock = threading.Lock()
        self._live: dict[str, Live] = {}
        # Ended tokens too, while callers refer to them: a token that is renewed must not exist twice, with two counts.
        self._known: WeakValueDictionary[str, Live] = WeakValueDictionary()
        # While the vault is out of reach every request is refused after STALE_SECONDS, because its token cannot be read
        # again.
        trouble = Trouble(logger, "Tokens cannot be read", "Tokens can be read again.")
        self._poller = Poller("tokens", self._look, LOOK_SECONDS, logger, trouble)

    def keep(self, document: Document) -> Live:
        """Return the token stored as ``document``, which is in use from now on, valid or not.

        :raises InvalidToken: an ancestor was removed.
        """
        grant = grant_of(self._documents, document)
        # Not read yet: no document has an empty code, so whoever looks at it reads it again.
        made = Live(grant, {ancestor.id: b"" for ancestor in grant.lineage}, -math.inf)
        with self._lock:
            live = self._known.setdefault(document.id, made)
            if not live.ended:
                self._live[document.id] = live
            _take_counts(live, document)
        self._poller.begin()
        if live is made or live.ended:
            # Also a new one: it may have been revoked since its document was read, when nobody knew it here.
            self._read(live)
        self._keep_above(grant)
        return live

    def begin(self, live: Live, address: str | None, *, counts: bool = True) -> None:
        """Note a use of a token from ``address``; :meth:`end` follows even if this raises.

        It ``counts`` as a request of the day, unless it is a further turn of one.
        :raises InvalidToken: an ancestor was removed.
        :raises TokenRevoked, TokenExpired: it is no longer valid.
        :raises ScopeDenied: it may not be used from there.
        :raises QuotaExceeded: the limit of simultaneous or daily requests is reached.
        """
        with self._lock:
            live.running += 1
        at = self._documents.now()
        if self._invalid(live.grant) or time.monotonic() - live.looked_at > STALE_SECONDS:
            # It may have been renewed; or revoked by another daemon, which the watcher could not read in time.
            self._read(live)
        grant = live.grant
        if (why := self._invalid(grant)) is not None:
            raise why
        grant.require_address(address)
        with self._lock:
            self._count(live, at, counts=counts)

    def end(self, live: Live) -> None:
        """Note that a use is over."""
        with self._lock:
            live.running -= 1

    def end_those_of(self, id: str) -> None:
        """End a revoked token and its descendants, as far as they are in use."""
        self._end(self.read_those_of(id))

    def read_those_of(self, id: str) -> list[Live]:
        """Read a changed token and its descendants again, as far as they are in use, and return them."""
        with self._lock:
            affected = [
                live for live in self._live.values() if any(ancestor.id == id for ancestor in live.grant.lineage)
            ]
        for live in affected:
            self._read(live)
        return affected

    def close(self) -> None:
        """Store the counts, and end the thread."""
        self._poller.close(None)
        self._write_counts(at_once=True)

    def _invalid(self, grant: Grant) -> ConnmgrError | None:
        """Return the error of a token that is invalid now, or None."""
        at = self._documents.now()
        for ancestor in grant.lineage:
            if self._documents.has_expired(ancestor.id, ancestor.expires):
                at = max(at, ancestor.expires)
        return grant.invalid(at)

    def _keep_above(self, grant: Grant) -> None:
        """Keep the ancestors of a token in use in memory too, and count for them."""
        if grant.parent is not None and grant.parent.id not in self._live:
            above = self._documents.get(grant.parent.id)
            if above is not None and not self._invalid(grant.parent):
                self.keep(above)

    def _read(self, live: Live) -> None:
        """Read a token and its ancestors again."""
        # One after the other: who has read it before it was revoked must not write over what was read afterwards.
        with live.reading:
            at, codes = time.monotonic(), self._documents.codes(ancestor.id for ancestor in live.grant.lineage)
            try:
                document = self._documents.get(live.grant.id)
                grant = replace(live.grant, revoked=True) if document is None else grant_of(self._documents, document)
            except (IntegrityError, InvalidToken):
                # Somebody changed the token or an ancestor outside of connmgr, or removed it: no right is left.
                document, grant = None, replace(live.grant, revoked=True)
            with self._lock:
                live.grant, live.codes, live.looked_at = grant, codes, at
                if live.ended and not self._invalid(grant):
                    # The token was renewed.
                    live.ended, live.why = False, None
                    self._live[grant.id] = live
        self._keep_above(grant)

    def _count(self, live: Live, at: datetime, *, counts: bool) -> None:
        day = at.date().isoformat()
        lives = [counted_token for grant in live.grant.lineage if (counted_token := self._live.get(grant.id))]
        for counted_token in lives:
            if counted_token.day != day:
                counted_token.day, counted_token.used, counted_token.uncounted = day, 0, 0
            most, quota = counted_token.grant.max_concurrent, counted_token.grant.quota_per_day
            if most is not None and self._under_way(counted_token.grant.id) > most:
                raise QuotaExceeded(
                    f"Limit of {most} simultaneous requests reached for this token; wait until one has ended."
                )
            if counts and quota is not None and counted_token.used + counted_token.uncounted >= quota:
                raise QuotaExceeded(f"Daily quota of {quota} requests used up; it resets at 00:00 UTC.")
        for counted_token in lives:
            counted_token.uncounted += counts

    def _under_way(self, id: str) -> int:
        """Return the number of requests under way of a token and its descendants."""
        return sum(
            live.running for live in self._live.values() if any(ancestor.id == id for ancestor in live.grant.lineage)
        )

    def _look(self) -> float:
        with self._lock:
            lives = list(self._live.values())
        at = time.monotonic()
        codes = self._documents.codes({ancestor.id for live in lives for ancestor in live.grant.lineage})
        for live in lives:
            if any(codes.get(id) != code for id, code in live.codes.items()):
                self._read(live)
            live.looked_at = at
        self._end([live for live in lives if self._invalid(live.grant)])
        self._write_counts()
        return LOOK_SECONDS

    def _end(self, lives: Collection[Live]) -> None:
        with self._lock:
            ending = [live for live in lives if not live.ended]
            for live in ending:
                live.ended, live.why = True, self._invalid(live.grant)
                self._live.pop(live.grant.id, None)
        if ending:
            self._ended({live.grant.id: live.why or TokenRevoked(REVOKED) for live in ending}, False)

    def _write_counts(self, *, at_once: bool = False) -> None:
        at = time.monotonic()
        with self._lock:
            due = [
                (live, live.day, live.uncounted)
                for live in self._live.values()
                if live.uncounted and (at_once or live.grant.quota_per_day or at - live.counted_at > COUNT_SECONDS)
            ]
        for live, day, more in due:
            # Default values, because the loop changes the variables.
            last = self._documents.now().isoformat()

            def count(document: Document, day: str = day, more: int = more, last: str = last) -> Document:
                before = document.counts.get("used", 0) if document.counts.get("day") == day else 0
                return counted(document, day=day, used=before + more, lastUsed=last)

            document = self._documents.change(live.grant.id, count)
            with self._lock:
                live.counted_at = at
                # Requests that were counted while the vault was written stay uncounted. After midnight all begin anew.
                live.uncounted -= more if live.day == day else 0
                if document is not None:
                    _take_counts(live, document)


def access_of(live: Live | None, loans: Loans) -> Access:
    """Return the access of something new that runs with a token, or as the owner: it has no vault user unlocked."""
    if live is None:
        return Access()
    asker = Asker(may_forward="ssh.agent" in live.grant.scopes)
    return Borrower(asker, loans, lambda: live.grant.lineage_ids)


def grant_of(documents: Documents, document: Document) -> Grant:
    """Return the grant of a stored token, with its ancestors.

    :raises InvalidToken: an ancestor was removed.
    """
    above = document.body["parent"]
    if above is None:
        return Grant.load(document, None)
    parent = documents.get(above)
    if parent is None:
        raise InvalidToken("Unknown token: the token that it was created with was removed.")
    return Grant.load(document, grant_of(documents, parent))


def _take_counts(live: Live, document: Document) -> None:
    # Several daemons add to the counts of a day; what one has not stored yet stays in ``uncounted``.
    if document.counts.get("day", "") >= live.day and isinstance(document.counts.get("used"), int):
        live.day, live.used = document.counts["day"], document.counts["used"]


@dataclass(frozen=True)
class StoredToken:
    """A token as it is stored, for lists: its rules are not parsed.

    ``line`` has the token itself, the token with which it was created, and so on.
    """

    document: Document
    line: tuple[Document, ...]

    def invalid(self, at: datetime) -> ConnmgrError | None:
        """Return the error of a token that is invalid at a time, or None."""
        return why_invalid(((document.body.get("revoked") is not None, _end(document)) for document in self.line), at)

    def comes_from(self, id: str) -> bool:
        """Whether it descends from the token ``id``."""
        return any(document.id == id for document in self.line[1:])

    @property
    def end(self) -> datetime:
        """The earliest expiry in its line."""
        return min(map(_end, self.line))


def stored_tokens(documents: Iterable[Document]) -> list[StoredToken]:
    """Return the tokens of ``documents``, without tokens whose line is incomplete."""
    by_id = {document.id: document for document in documents}
    tokens = []
    for document in by_id.values():
        line = [document]
        while (above := line[-1].body["parent"]) in by_id:
            line.append(by_id[above])
        if above is None:
            tokens.append(StoredToken(document, tuple(line)))
    return tokens


def dispensable(tokens: Iterable[StoredToken], at: datetime, *, is_full: bool) -> list[str]:
    """Return the ids of tokens that ended long ago, or if the store ``is_full``, of all ended ones."""
    return [token.document.id for token in tokens if token.invalid(at) and (is_full or token.end < at - KEEP_INVALID)]


def _end(document: Document) -> datetime:
    return document.expires or document.created
