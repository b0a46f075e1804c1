"""Approvals: requests of tokens that a person decides about. The vault stores them, so that all its daemons know them.

A rule asks; :meth:`Approvals.require` finds the approval of exactly this request or stores a pending one, waits for the
decision if the client wishes so, and uses up an approval that was given once. :meth:`Approvals.decide` takes the
decision. :class:`ApprovalWaiters` tells the waiting requests.

Beside a request, :func:`propose` may show a pattern. Somebody who approves it gives the token an ordinary rule, on the
connections of the request and for a while. A pattern is proposed only where its free word names a thing, such as a
service, and can be neither an option nor a path.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from hashlib import blake2b
from typing import Any, Protocol

from connmgr.contract.approval import (
    DECISION_MINUTES,
    DENIED,
    GRANTED,
    LASTING,
    ONCE,
    PATTERN_MINUTES,
    PENDING,
    STATES,
    USED,
    ApprovalInfo,
    ProposedPattern,
    Verdict,
)
from connmgr.contract.event import APPROVAL
from connmgr.contract.message import time_to_json, to_json
from connmgr.errors import (
    ApprovalDenied,
    ApprovalRequired,
    InvalidRequest,
    PolicyDenied,
    QuotaExceeded,
    UnknownApproval,
)
from connmgr.events import Publish, unheard
from connmgr.poller import Poller, Trouble
from connmgr.rights import programs
from connmgr.rights.grant import ConnectionFacts
from connmgr.rights.ground import Ground, all_differences
from connmgr.rights.rule import ArgvRule, read_rule
from connmgr.rights.rules import Decision, RequestedCommand, Rules
from connmgr.suspension import Continuation, Suspended
from connmgr.vault.documents import Document, Documents
from connmgr.vault.schema import canonical

logger = logging.getLogger("connmgr.rights")

MAX_PENDING = 20
"""Most pending approvals of a token made by the owner and all its descendants."""

MAX_KEPT = 2000
"""Most approvals that the vault stores."""

MAX_BYTES = 256 * 1024
"""Largest request in bytes of JSON, because a person is shown all of it."""

DECIDERS = "deciders of approvals"
"""The key under which a request keeps who decided its approvals: the id of a token, or :data:`OWNER`."""

OWNER = "owner"

LOOK_SECONDS = 0.5
"""Interval of checks for decisions that another daemon of the vault received."""

_USED = "used approvals"
"""The key under which a request keeps the approvals that it has used up."""


_APPROVED, _BEGUN = "approved subjects", "begun subjects"
"""The keys under which a request keeps the approvals of its subjects, and those with which it has begun."""


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
    askers: tuple[str, ...]
    """The ids of the tokens whose rules ask: the requesting token, or some of its ancestors."""

    root: str
    """The id of the token made by the owner from which the requesting token descends; they may be the same."""

    on: tuple[Mapping[str, Any], ...]
    """The grounds on which it was asked, as :meth:`connmgr.rights.ground.Ground.shown` returns them."""

    decided_by: str | None
    """The id of the token that decided; None for the owner, or without a decision."""

    proposal: Mapping[str, Any] | None
    """The pattern that may be approved in its place, as :meth:`connmgr.rights.approvals.Proposal.stored` returns it."""

    @classmethod
    def of(cls, document: Document) -> Approval:
        """Return the approval in a document of the vault."""
        body = document.body
        return cls(
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
            proposal=body.get("proposal"),
        )

    @property
    def info(self) -> ApprovalInfo:
        """The approval as clients and plugins see it."""
        return ApprovalInfo(
            id=self.id,
            state=self.state,
            token=self.token,
            token_name=self.token_name,
            asked=self.asked,
            created=self.created,
            expires=self.expires,
            decided_by=self.decided_by,
            pattern=None
            if self.proposal is None
            else ProposedPattern(
                words=self.proposal["words"], names=self.proposal["names"], seconds=PATTERN_MINUTES * 60
            ),
        )


class Holder(Protocol):
    """A token: its name, and the token with which it was created."""

    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def lineage(self) -> Sequence[Holder]:
        """This token, the one with which it was created, and so on."""


@dataclass(frozen=True)
class _Question:
    """What a token asks for: ``subject`` is the digest of the request alone, ``digest`` that on its grounds."""

    holder: Holder
    asked: Mapping[str, Any]
    askers: Sequence[str]
    subject: str
    digest: str
    proposal: Proposal | None = None


class Approvals:
    """The approvals of a vault. Safe to use from several threads.

    ``key`` has 32 bytes, and keys the digests by which an approval is found. ``continuation`` returns what lasts of
    the current request if it is suspended. ``requested`` is called with each new approval, as clients see it; its
    exceptions are logged. ``waiters`` are notified of decisions.
    """

    def __init__(
        self,
        documents: Documents,
        key: bytes,
        continuation: Callable[[], Continuation],
        requested: Callable[[Mapping[str, Any]], object],
        publish: Publish = unheard,
    ) -> None:
        self._publish = publish
        self._documents, self._key, self._continuation, self._requested = documents, key, continuation, requested
        self._lock = threading.Lock()
        self.waiters = ApprovalWaiters(self._is_decided)

    def require(
        self,
        holder: Holder,
        request: Mapping[str, Any],
        wait: float = 0,
        askers: Collection[str] = (),
        grounds: Sequence[Ground] = (),
        proposal: Proposal | None = None,
    ) -> str:
        """Return the id of an approval of exactly this ``request``, on these ``grounds``.

        :raises Suspended: nobody has decided, and the request may wait until it is ``wait`` seconds old.
        :raises ApprovalRequired: nobody has decided; ``details`` have ``approval``, its id, and ``expires``.
        :raises ApprovalDenied: a person has refused it.
        :raises PolicyDenied, QuotaExceeded: it is too long to be shown, or too many requests wait.
        """
        # `request` is JSON with everything that decides what is done, `askers` are the ids of tokens whose rules ask.
        # A suspended request runs again from its beginning when there is news, and comes here again: what it has found
        # or used up already is kept. An approval given once is used up, unless give_back() follows.
        ids = self._continuation().memory.setdefault("approvals", {})
        question = replace(self._question(holder, request, askers, grounds), proposal=proposal)
        begun: dict[str, str] = self._continuation().memory.get(_BEGUN, {})
        if question.subject in begun:
            # It runs already, as a job: it does not matter where the shell moves while the request waits for its end.
            return begun[question.subject]
        digest = question.digest
        if digest not in ids:
            ids[digest] = self._required(question, wait)
        self._continuation().memory.setdefault(_APPROVED, {})[question.subject] = ids[digest]
        id: str = ids[digest]
        return id

    def _required(self, question: _Question, wait: float) -> str:
        digest = question.digest
        approval = self._current(digest) or self._ask(question)
        if approval.state == PENDING:
            if self._continuation().is_younger_than(wait):
                raise Suspended(partial(self.waiters.subscribe, approval.id), wait)
            # It may have been decided just now.
            approval = self._current(digest) or approval
        if approval.state == ONCE and not self._use(approval.id):
            # Another request for the same, perhaps at another daemon, has used it up since it was read. Both tried to
            # change its document, and the vault let one of them.
            approval = self._current(digest) or self._ask(question)
        if approval.state in (ONCE, GRANTED, DENIED):
            self._continuation().memory.setdefault(DECIDERS, {})[approval.id] = approval.decided_by or OWNER
        if approval.state in (ONCE, GRANTED):
            return approval.id
        if approval.state == DENIED:
            raise ApprovalDenied("Somebody has denied this request.", approval=approval.id)
        text = "A rule of the token asks for an approval: send the request again when somebody has approved it."
        if changes := approval.asked.get("moved"):
            text += f" An earlier approval no longer applies: {'; '.join(changes)}."
        raise ApprovalRequired(text, approval=approval.id, expires=time_to_json(approval.expires))

    def begun(self) -> None:
        """Note that a part of this request may be carried out, so that its approvals stay used up."""
        memory = self._continuation().memory
        memory.pop(_USED, None)
        memory.setdefault(_BEGUN, {}).update(memory.get(_APPROVED, {}))

    def not_begun(self) -> None:
        """Note that nothing of this request was carried out, because the ground of its approval had moved."""
        memory = self._continuation().memory
        memory.pop(_BEGUN, None)
        memory.pop(_APPROVED, None)

    def give_back(self) -> None:
        """Restore the approvals that this request has used up, unless it has :meth:`begun`."""
        for before in self._continuation().memory.pop(_USED, ()):
            self._documents.remove([before.id])
            # If the same was asked again meanwhile, nothing is added.
            self._documents.add(before)

    def query(self, states: Collection[str] = STATES) -> list[Approval]:
        """Return the approvals in one of ``states`` that are not over, oldest first."""
        approvals = map(Approval.of, self._documents.all())
        return [approval for approval in approvals if approval.state in states and not self._is_over(approval)]

    def get(self, id: str) -> Approval:
        """Return an approval that is not over; raise :class:`UnknownApproval`."""
        document = self._documents.get(id)
        approval = None if document is None else Approval.of(document)
        if approval is None or approval.state == USED or self._is_over(approval):
            raise UnknownApproval(id)
        return approval

    def decide(self, id: str, verdict: Verdict, decider: Holder | None, seconds: float = 0) -> Approval:
        """Decide about an approval, or change the decision while it is not over; ``decider`` is None for the owner.

        ``grant`` approves the same request for ``seconds``, ``once`` its next repetition within ten minutes; ``deny``
        refuses it for ten minutes. ``pattern`` approves it as ``grant`` does, for the caller to give a rule besides.

        :raises UnknownApproval: it is over, or there is none.
        :raises PolicyDenied: the decider or one of its ancestors requested it, or has a rule that asks about it.
        :raises InvalidRequest: no pattern was proposed.
        """
        approval = self.get(id)
        if verdict == "pattern" and approval.proposal is None:
            raise InvalidRequest("decision: No pattern is proposed for this request.")
        # Otherwise a token whose rule asks could create one token that requests and one that decides.
        if decider is not None and any(
            ancestor.id in (approval.token, *approval.askers) for ancestor in decider.lineage
        ):
            raise PolicyDenied(
                "A token cannot decide about its own requests, those of its ancestors, or where their rules ask."
            )
        lasts = timedelta(seconds=seconds) if verdict in LASTING else timedelta(minutes=DECISION_MINUTES)
        state = {"once": ONCE, "grant": GRANTED, "pattern": GRANTED, "deny": DENIED}[verdict]
        decided = {"state": state, "decidedBy": decider.id if decider else None}

        def change(ancestor: Document) -> Document:
            current = Approval.of(ancestor)
            if current.state == USED or self._is_over(current):
                return ancestor
            return replace(ancestor, body={**ancestor.body, **decided}, expires=self._documents.now() + lasts)

        changed = self._documents.change(id, change)
        if changed is None or changed.body["state"] != state:
            raise UnknownApproval(id)
        self.waiters.tell([id])
        self._tell("decided", Approval.of(changed))
        return Approval.of(changed)

    def _tell(self, change: str, approval: Approval) -> None:
        self._publish(
            APPROVAL,
            change,
            id=approval.id,
            token=approval.token,
            state=approval.state,
            connections=list(approval.asked.get("connections", ())),
            expires=approval.expires,
        )

    def _question(
        self, holder: Holder, request: Mapping[str, Any], askers: Collection[str], grounds: Sequence[Ground]
    ) -> _Question:
        shown = [ground.shown() for ground in grounds]
        whole = {**request, **({"on": shown} if shown else {})}
        if len(canonical(whole)) > MAX_BYTES:
            raise PolicyDenied(
                f"The request is too long to be approved: a person would read more than {MAX_BYTES // 1024} KiB."
            )
        subject = self._digest([holder.id, request])
        # The directory in which a shell starts is shown if it is known, and is the same ground if it is not.
        digest = self._digest([holder.id, request, [ground.bound for ground in grounds]]) if grounds else subject
        return _Question(holder, whole, list(askers), subject, digest)

    def _digest(self, value: Any) -> str:
        return blake2b(canonical(value).encode(), key=self._key, digest_size=32).hexdigest()

    def _current(self, digest: str) -> Approval | None:
        """Return the approval with this digest, unless it is over."""
        document = self._documents.by_key(digest)
        if document is None:
            return None
        approval = Approval.of(document)
        if self._is_over(approval):
            self._documents.remove([approval.id])
            return None
        return approval

    def _ask(self, question: _Question) -> Approval:
        holder, digest = question.holder, question.digest
        moved = self._moved(question)
        body = {
            "state": PENDING,
            "token": holder.id,
            "tokenName": holder.name,
            "askers": question.askers,
            "root": holder.lineage[-1].id,
            "subject": question.subject,
            "digest": digest,
            "asked": {**question.asked, **({"moved": moved} if moved else {})},
            **({} if question.proposal is None else {"proposal": question.proposal.stored()}),
        }
        at = self._documents.now()
        document = Document(key=digest, body=body, created=at, expires=at + timedelta(minutes=DECISION_MINUTES))
        with self._lock:
            self._require_room(holder)
            added = self._documents.add(document, most=MAX_KEPT)
        if not added:
            # Another daemon may have received the same request just now.
            other = self._current(digest)
            if other is None:
                raise QuotaExceeded(f"The vault has {MAX_KEPT} approvals already: wait until some have expired.")
            return other
        approval = Approval.of(document)
        self._tell("requested", approval)
        try:
            self._requested(to_json(approval.info))
        except Exception:
            # A plugin may raise any exception; the approval is listed as pending anyway.
            logger.exception("A plugin failed to take note of the approval %s.", approval.id)
        return approval

    def _is_over(self, approval: Approval) -> bool:
        # A used one may be kept for longer.
        return self._documents.has_expired(approval.id, approval.expires)

    def _moved(self, question: _Question) -> list[str]:
        """Return what has moved since the same was asked on another ground; empty if it was not."""
        if question.digest == question.subject:
            return []
        documents = [document for document in self._documents.all() if document.body.get("subject") == question.subject]
        latest = max(
            (document for document in documents if not self._is_over(Approval.of(document))),
            key=lambda document: document.created,
            default=None,
        )
        if latest is None or latest.body["digest"] == question.digest:
            return []
        return all_differences(Approval.of(latest).on, question.asked["on"])

    def _require_room(self, holder: Holder) -> None:
        approvals = list(map(Approval.of, self._documents.all()))
        if over := [approval.id for approval in approvals if self._is_over(approval)]:
            self._documents.remove(over)
        # Otherwise a token could create others and fill the store through them.
        root = holder.lineage[-1].id
        pending = [
            approval
            for approval in approvals
            if approval.state == PENDING and approval.root == root and approval.id not in over
        ]
        if len(pending) >= MAX_PENDING:
            raise QuotaExceeded(
                f"Too many pending approvals ({MAX_PENDING}) for this token, its ancestors and their descendants."
            )

    def _use(self, id: str) -> bool:
        """Use up an approval given once; return whether this call did."""
        use = str(uuid.uuid4())
        before: Document | None = None

        def change(document: Document) -> Document:
            nonlocal before
            before, current = document, Approval.of(document)
            if current.state != ONCE or self._is_over(current):
                return document
            # The next question may have to say what has moved since.
            on = document.body["asked"].get("on", [])
            # With a new key, so that the next request for the same asks again.
            return replace(
                document, key=f"used-{id}", body={**document.body, "state": USED, "use": use, "asked": {}, "on": on}
            )

        changed = self._documents.change(id, change)
        if before is None or changed is None or changed.body.get("use") != use:
            return False
        self._continuation().memory.setdefault(_USED, []).append(before)
        self._tell("used", replace(Approval.of(before), state=USED))
        return True

    def _is_decided(self, id: str) -> bool:
        document = self._documents.get(id)
        return document is None or document.body["state"] != PENDING


class ApprovalWaiters:
    """The requests that wait for decisions, which any daemon of the vault may receive. Safe for several threads.

    ``is_decided`` returns whether the approval with an id is decided or gone.
    """

    def __init__(self, is_decided: Callable[[str], bool]) -> None:
        self._is_decided = is_decided
        self._lock = threading.Lock()
        self._callbacks: dict[str, list[Callable[[], None]]] = {}
        # While the vault is out of reach, waiting requests have deadlines.
        trouble = Trouble(logger, "Approvals cannot be read", "Approvals can be read again.")
        self._poller = Poller("approvals", self._look, LOOK_SECONDS, logger, trouble)

    def subscribe(self, id: str, notify: Callable[[], None]) -> Callable[[], None]:
        """Call ``notify`` once when an approval is decided, by any daemon; return a function that cancels this."""
        with self._lock:
            is_first = not self._callbacks
            self._callbacks.setdefault(id, []).append(notify)
        if is_first:
            self._poller.poke()

        def cancel() -> None:
            with self._lock:
                waiting = self._callbacks.get(id, [])
                if notify in waiting:
                    waiting.remove(notify)
                if not waiting:
                    self._callbacks.pop(id, None)

        # It may have been decided after the caller looked and before it subscribed, when nobody was told.
        if self._is_decided(id):
            self.tell([id])
        return cancel

    def close(self) -> None:
        """Notify all who wait, and end the thread."""
        with self._lock:
            waiting = list(self._callbacks)
        self.tell(waiting)
        self._poller.close(None)

    def tell(self, ids: Collection[str]) -> None:
        """Notify the waiters of the approvals ``ids``, which are decided or gone."""
        with self._lock:
            callbacks = [notify for id in ids for notify in self._callbacks.pop(id, [])]
        for notify in callbacks:
            notify()

    def _look(self) -> float | None:
        with self._lock:
            waited = list(self._callbacks)
        self.tell([id for id in waited if self._is_decided(id)])
        return LOOK_SECONDS if waited else None


NAME = r"[A-Za-z0-9_][A-Za-z0-9_@:-]*(?:\.service)?"
"""The name of a service: no option, no path, no pattern, and no target such as ``poweroff.target``."""

_STARTS = ("restart", "reload", "start", "stop", "status")
NAMED_BY_THEIR_LAST_WORD: Mapping[str, tuple[str, ...]] = {
    "systemctl": (*_STARTS, "try-restart", "reload-or-restart", "is-active", "is-enabled", "is-failed", "reset-failed"),
    "sv": _STARTS,
    "rcctl": _STARTS,
}
"""Programs whose command is their first word, and whose second and last word then names one service."""

MAX_CONNECTIONS = 100
PREFIX = "approval "
"""The name of a learnt rule begins so, and goes on with the beginning of the approval's id."""


@dataclass(frozen=True)
class Proposal:
    """A pattern for several words, and the rule by which each token whose rules ask would allow it."""

    words: tuple[str, ...]
    names: tuple[str, ...]
    rules: Mapping[str, Mapping[str, Any]]
    """By the ids of tokens, without ``name`` and ``until``."""

    def stored(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"words": list(self.words), "names": list(self.names), "rules": {**self.rules}}


def propose(
    decision: Decision,
    on: Sequence[ConnectionFacts],
    commands: Sequence[RequestedCommand],
    askers: Mapping[str, Rules],
    token: str,
    grounds: Sequence[Ground],
) -> Proposal | None:
    """Return the pattern beside a request of ``token`` that rules of ``askers``, by the ids of their tokens, ask about.

    It holds for that token and those below it alone, and while the connections are what they are on these ``grounds``.
    """
    argv = decision.argv
    if not argv or len(argv) != 3 or len(on) > MAX_CONNECTIONS or not decision.exact:
        return None
    if argv[1] not in NAMED_BY_THEIR_LAST_WORD.get(programs.last_segment(argv[0]), ()):
        return None
    if any(command.env or command.has_stdin or command.has_pty or command.saved is not None for command in commands):
        return None
    rule: dict[str, Any] = {
        "effect": "allow",
        "argv": [argv[0], argv[1], {"re": NAME}],
        "connections": [_literally(facts.names[1]) for facts in on],
        # The word is bounded by its form; the person who approves it decides about all services.
        "mayRunOthers": True,
        "stdin": False,
        "only": {"token": token, "connections": {ground.connection: ground.digest for ground in grounds}},
    }
    directories = {command.cwd for command in commands}
    if len(directories) > 1:
        return None
    if (directory := directories.pop()) is not None:
        rule["cwd"] = _literally(directory)
    rules: dict[str, Mapping[str, Any]] = {}
    for id, asker in askers.items():
        numbers = [asker.asking(command) for command in commands]
        if any(indices is None for indices in numbers):
            return None
        rules[id] = {**rule, "answers": sorted({number for indices in numbers for number in indices or ()})}
        try:
            rule_read = read_rule({**rules[id], "until": time_to_json(datetime.now(timezone.utc))}, 0)
        except InvalidRequest:
            # Such as a path that no pattern can name.
            return None
        if not rules[id]["answers"] or not (isinstance(rule_read, ArgvRule) and rule_read.permits(argv[1:])):
            return None
    return Proposal((argv[0], argv[1], "NAME"), tuple(facts.path for facts in on), rules)


def learnt(rule: Mapping[str, Any], approval: str, at: datetime, seconds: float) -> dict[str, Any]:
    """Return the rule of a proposal as a token gets it."""
    return {**rule, "name": name_of(approval), "until": time_to_json(at + timedelta(seconds=seconds))}


def name_of(approval: str) -> str:
    """Return the name of the rules that an approval has given."""
    return f"{PREFIX}{approval[:8]}"


def without_learnt(rules: Sequence[Any], at: datetime, approval: str | None = None) -> list[Any]:
    """Return the rules of a token without learnt ones whose time is over, or that ``approval`` has given.

    Only those after all other rules are left out, because rules name others by their numbers.
    """
    first = len(rules)
    while first and _is_learnt(rules[first - 1]):
        first -= 1
    name = None if approval is None else name_of(approval)
    learnt_rules = [
        rule for rule in rules[first:] if rule["until"] > time_to_json(at) and (name is None or rule["name"] != name)
    ]
    return [*rules[:first], *learnt_rules]


def _is_learnt(rule: Any) -> bool:
    return isinstance(rule, Mapping) and "answers" in rule and str(rule.get("name")).startswith(PREFIX)


def _literally(path: str) -> str:
    return "".join(f"[{character}]" if character in "*?[]{}," else character for character in path)
