"""Requests of tokens that need an approval, stored in the vault, so that all its daemons know the decisions."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Any, Protocol

from connmgr.contract.approval import DECISION_MINUTES
from connmgr.errors import ApprovalDenied, ApprovalRequired, PolicyDenied, QuotaExceeded, UnknownApproval
from connmgr.rights.approval import (
    DENIED,
    GRANTED,
    ONCE,
    PENDING,
    STATES,
    USED,
    Approval,
    Verdict,
    approval_of,
    shown,
    written,
)
from connmgr.rights.approval_waiters import ApprovalWaiters, Subscribe
from connmgr.rights.ground import Ground, all_differences
from connmgr.vault.documents import Document, Documents
from connmgr.vault.schema import canonical, now

logger = logging.getLogger("connmgr.rights")

MAX_PENDING = 20
"""Most pending approvals of one token, its ancestors and its descendants."""

MAX_KEPT = 2000
"""Most approvals that the vault stores."""

MAX_BYTES = 256 * 1024
"""Largest request in bytes of JSON, because a person is shown all of it."""

DECIDERS = "deciders of approvals"
"""The key under which a request keeps who decided its approvals: the id of a token, or :data:`OWNER`."""

OWNER = "owner"

_USED = "used approvals"
"""The key under which a request keeps the approvals that it has used up."""


_APPROVED, _BEGUN = "approved subjects", "begun subjects"
"""The keys under which a request keeps the approvals of its subjects, and those with which it has begun."""


def _age(document: Document) -> datetime:
    return document.created


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


class Turns(Protocol):
    """The turns of a request that may wait without a thread; see :func:`connmgr.api.account.turns`."""

    @property
    def kept(self) -> dict[str, Any]:
        """Data that the request keeps from turn to turn."""

    def wait(self, subscribe: Subscribe, seconds: float) -> None:
        """Return if the request is ``seconds`` old; otherwise park it until the event of ``subscribe``."""


class Approvals:
    """The approvals of a vault. Safe to use from several threads.

    ``key`` has 32 bytes, and keys the digests by which an approval is found. ``turns`` returns the turns of the current
    request. ``requested`` is called with each new approval, as clients see it; its exceptions are logged. ``waiters``
    are notified of decisions.
    """

    def __init__(
        self,
        stored: Documents,
        key: bytes,
        turns: Callable[[], Turns],
        requested: Callable[[Mapping[str, Any]], object],
    ) -> None:
        self._stored, self._key, self._turns, self._requested = stored, key, turns, requested
        self._lock = threading.Lock()
        self.waiters = ApprovalWaiters(self._is_decided)

    def require(
        self,
        holder: Holder,
        asked: Mapping[str, Any],
        wait: float = 0,
        askers: Collection[str] = (),
        grounds: Sequence[Ground] = (),
    ) -> str:
        """Return the id of an approval of exactly what is ``asked``, on these ``grounds``.

        It waits up to ``wait`` seconds for a decision.

        :raises ApprovalRequired: nobody has decided; ``details`` have ``approval``, its id, and ``expires``.
        :raises ApprovalDenied: a person has refused it.
        :raises PolicyDenied, QuotaExceeded: it is too long to be shown, or too many requests wait.
        """
        # `asked` is JSON with everything that decides what is done; `askers` are the ids of the tokens whose rules ask.
        # An approval given once is used up, unless give_back() follows.
        kept = self._turns().kept.setdefault("approvals", {})
        question = self._question(holder, asked, askers, grounds)
        begun: dict[str, str] = self._turns().kept.get(_BEGUN, {})
        if question.subject in begun:
            # It runs already, as a job: it does not matter where the shell moves while the request waits for its end.
            return begun[question.subject]
        digest = question.digest
        if digest not in kept:
            kept[digest] = self._required(question, wait)
        self._turns().kept.setdefault(_APPROVED, {})[question.subject] = kept[digest]
        id: str = kept[digest]
        return id

    def _required(self, question: _Question, wait: float) -> str:
        digest = question.digest
        found = self._current(digest) or self._ask(question)
        if found.state == PENDING:
            self._turns().wait(lambda told: self.waiters.subscribe(found.id, told), wait)
            # It may have been decided just now.
            found = self._current(digest) or found
        if found.state == ONCE and not self._use(found.id):
            # Another request for the same was faster.
            found = self._current(digest) or self._ask(question)
        if found.state in (ONCE, GRANTED, DENIED):
            self._turns().kept.setdefault(DECIDERS, {})[found.id] = found.decided_by or OWNER
        if found.state in (ONCE, GRANTED):
            return found.id
        if found.state == DENIED:
            raise ApprovalDenied("This was asked for, and denied.", approval=found.id)
        text = "A rule of the token asks for an approval of this: send it again when somebody has approved it."
        if changes := found.asked.get("moved"):
            text += f" An earlier approval does not hold: {'; '.join(changes)}."
        raise ApprovalRequired(text, approval=found.id, expires=written(found.expires))

    def begun(self) -> None:
        """Note that a part of this request may be carried out, so that its approvals stay used up."""
        kept = self._turns().kept
        kept.pop(_USED, None)
        kept.setdefault(_BEGUN, {}).update(kept.get(_APPROVED, {}))

    def not_begun(self) -> None:
        """Note that nothing of this request was carried out, because the ground of its approval had moved."""
        kept = self._turns().kept
        kept.pop(_BEGUN, None)
        kept.pop(_APPROVED, None)

    def give_back(self) -> None:
        """Restore the approvals that this request has used up, unless it has :meth:`begun`."""
        for before in self._turns().kept.pop(_USED, ()):
            self._stored.remove([before.id])
            # If the same was asked again meanwhile, nothing is added.
            self._stored.add(before)

    def query(self, states: Collection[str] = STATES) -> list[Approval]:
        """Return the approvals in one of ``states`` that are not over, oldest first."""
        found = map(approval_of, self._stored.all())
        return [one for one in found if one.state in states and one.expires > now()]

    def get(self, id: str) -> Approval:
        """Return an approval that is not over; raise :class:`UnknownApproval`."""
        document = self._stored.get(id)
        found = None if document is None else approval_of(document)
        if found is None or found.state == USED or found.expires <= now():
            raise UnknownApproval(id)
        return found

    def decide(self, id: str, verdict: Verdict, decider: Holder | None, seconds: float = 0) -> Approval:
        """Decide about an approval, or change the decision while it is not over; ``decider`` is None for the owner.

        ``grant`` approves the same request for ``seconds``, ``once`` its next repetition within ten minutes; ``deny``
        refuses it for ten minutes.

        :raises UnknownApproval: it is over, or there is none.
        :raises PolicyDenied: the decider or one of its ancestors requested it, or has a rule that asks about it.
        """
        found = self.get(id)
        # Otherwise a token whose rule asks could create one token that requests and one that decides.
        if decider is not None and any(one.id in (found.token, *found.askers) for one in decider.lineage):
            raise PolicyDenied("A token does not decide about itself, nor about those that it was created with.")
        lasts = timedelta(seconds=seconds) if verdict == "grant" else timedelta(minutes=DECISION_MINUTES)
        state = {"once": ONCE, "grant": GRANTED, "deny": DENIED}[verdict]
        decided = {"state": state, "decidedBy": decider.id if decider else None}

        def change(one: Document) -> Document:
            current = approval_of(one)
            if current.state == USED or current.expires <= now():
                return one
            return replace(one, body={**one.body, **decided}, expires=now() + lasts)

        changed = self._stored.change(id, change)
        if changed is None or changed.body["state"] != state:
            raise UnknownApproval(id)
        self.waiters.tell([id])
        return approval_of(changed)

    def _question(
        self, holder: Holder, asked: Mapping[str, Any], askers: Collection[str], grounds: Sequence[Ground]
    ) -> _Question:
        shown = [one.shown() for one in grounds]
        whole = {**asked, **({"on": shown} if shown else {})}
        if len(canonical(whole)) > MAX_BYTES:
            raise PolicyDenied(f"It is too long for somebody to decide about: more than {MAX_BYTES // 1024} KiB.")
        subject = self._digest([holder.id, asked])
        # The directory in which a shell starts is shown if it is known, and is the same ground if it is not.
        digest = self._digest([holder.id, asked, [one.bound for one in grounds]]) if grounds else subject
        return _Question(holder, whole, list(askers), subject, digest)

    def _digest(self, value: Any) -> str:
        return blake2b(canonical(value).encode(), key=self._key, digest_size=32).hexdigest()

    def _current(self, digest: str) -> Approval | None:
        """Return the approval with this digest, unless it is over."""
        document = self._stored.by_key(digest)
        if document is None:
            return None
        found = approval_of(document)
        if found.expires <= now():
            self._stored.remove([found.id])
            return None
        return found

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
        }
        document = Document(key=digest, body=body, expires=now() + timedelta(minutes=DECISION_MINUTES))
        with self._lock:
            self._require_room(holder)
            added = self._stored.add(document, most=MAX_KEPT)
        if not added:
            # Another daemon may have received the same request just now.
            found = self._current(digest)
            if found is None:
                raise QuotaExceeded(f"{MAX_KEPT} approvals are kept: wait until some are over.")
            return found
        approval = approval_of(document)
        try:
            self._requested(shown(approval))
        except Exception:
            # A plugin may raise any exception; the approval is listed as pending anyway.
            logger.exception("A plugin failed to take note of the approval %s.", approval.id)
        return approval

    def _moved(self, question: _Question) -> list[str]:
        """Return what has moved since the same was asked on another ground; empty if it was not."""
        if question.digest == question.subject:
            return []
        stored = [one for one in self._stored.all() if one.body.get("subject") == question.subject]
        latest = max((one for one in stored if one.expires and one.expires > now()), key=_age, default=None)
        if latest is None or latest.body["digest"] == question.digest:
            return []
        return all_differences(approval_of(latest).on, question.asked["on"])

    def _require_room(self, holder: Holder) -> None:
        stored = list(map(approval_of, self._stored.all()))
        if over := [one.id for one in stored if one.expires <= now()]:
            self._stored.remove(over)
        # Otherwise a token could create others and fill the store through them.
        root = holder.lineage[-1].id
        pending = [one for one in stored if one.state == PENDING and one.root == root and one.id not in over]
        if len(pending) >= MAX_PENDING:
            raise QuotaExceeded(f"{MAX_PENDING} requests of the token and its kin wait for approval; no more may.")

    def _use(self, id: str) -> bool:
        """Use up an approval given once; return whether this call did."""
        use = str(uuid.uuid4())
        before: Document | None = None

        def change(one: Document) -> Document:
            nonlocal before
            before, current = one, approval_of(one)
            if current.state != ONCE or current.expires <= now():
                return one
            # The next question may have to say what has moved since.
            on = one.body["asked"].get("on", [])
            # With a new key, so that the next request for the same asks again.
            return replace(one, key=f"used-{id}", body={**one.body, "state": USED, "use": use, "asked": {}, "on": on})

        changed = self._stored.change(id, change)
        if before is None or changed is None or changed.body.get("use") != use:
            return False
        self._turns().kept.setdefault(_USED, []).append(before)
        return True

    def _is_decided(self, id: str) -> bool:
        document = self._stored.get(id)
        return document is None or document.body["state"] != PENDING
