"""What a token may do once somebody has approved it: kept in the vault, so that all its daemons know of it."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from hashlib import blake2b
from typing import Any, Literal, Protocol

from connmgr.errors import (
    ApprovalDenied,
    ApprovalRequired,
    ConnmgrError,
    PolicyDenied,
    QuotaExceeded,
    UnknownApproval,
)
from connmgr.vault.documents import Document, Documents
from connmgr.vault.record import canonical
from connmgr.vault.tables import now

logger = logging.getLogger("connmgr.rights")

PENDING, ONCE, GRANTED, DENIED, USED = "pending", "once", "granted", "denied", "used"
STATES = (PENDING, ONCE, GRANTED, DENIED, USED)

Verdict = Literal["once", "grant", "deny"]
VERDICTS = ("once", "grant", "deny")

MINUTES = 10
"""Minutes for which a request waits for a decision, and for which a decision waits for the request."""

MAX_GRANT_SECONDS = 86400
MAX_PENDING = 20
"""Approvals that may be pending of one token, with those that come from it and that it comes from."""

MAX_KEPT = 2000
"""Approvals that the vault keeps."""

MAX_BYTES = 256 * 1024
"""Bytes of JSON of what is asked about: a person is shown all of it."""

LOOK_SECONDS = 0.5
"""How often it is looked whether another daemon of the vault was told a decision that somebody waits for here."""

Subscribe = Callable[[Callable[[], None]], Callable[[], None]]


class Holder(Protocol):
    """A token: what it is called, and from which it comes."""

    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def lineage(self) -> Sequence[Holder]:
        """This one, the one that it was created with, and so on."""


class Turns(Protocol):
    """The turns of a request that may wait without a thread; see :mod:`connmgr.api.parking`."""

    @property
    def kept(self) -> dict[str, Any]:
        """What stays with the request from one turn to the next."""

    def wait(self, subscribe: Subscribe, seconds: float) -> None:
        """Return only when the request came ``seconds`` ago; before, have it wait for what ``subscribe`` tells of."""


@dataclass(frozen=True, kw_only=True)
class Approval:
    """What a token asks for, or was given. Times are aware and in UTC."""

    id: str
    state: str
    token: str
    token_name: str
    asked: Mapping[str, Any]
    """What would be done, whole; empty once it is over."""

    created: datetime
    expires: datetime
    askers: tuple[str, ...] = ()
    """The ids of the tokens whose rules ask: the one that asks, or some that it was created with."""

    root: str = ""
    """The id of the token that the owner made, from which the one that asks comes; it may be itself."""

    decided_by: str | None = None
    """The id of the token that decided; None for the owner, and where nobody has."""


@dataclass
class _Waiters:
    callbacks: dict[str, list[Callable[[], None]]] = field(default_factory=dict)
    thread: threading.Thread | None = None


class Approvals:
    """The approvals of a vault. Safe to use from several threads.

    ``key`` has 32 bytes, and keys the digests by which an approval is found. ``turns`` returns those of the request
    that is being answered. ``requested`` is called with each new approval, as :meth:`shown` has it; what it raises is
    logged.
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
        self._waiters = _Waiters()
        self._closing = threading.Event()

    def require(self, holder: Holder, asked: Mapping[str, Any], wait: float = 0, askers: Collection[str] = ()) -> str:
        """Return the id of the approval by which a token may do, now, just what is ``asked``.

        ``asked`` is JSON and tells all that decides what is done. The request waits up to ``wait`` seconds for a
        decision. An approval that was given once is used up. ``askers`` are the ids of the tokens whose rules ask.

        :raises ApprovalRequired: nobody has decided yet; ``details`` have the id of the ``approval``, and ``expires``.
        :raises ApprovalDenied: somebody has decided against it.
        :raises PolicyDenied: it is too long to be decided about.
        :raises QuotaExceeded: too much waits for a decision.
        """
        kept = self._turns().kept.setdefault("approvals", {})
        digest = self._digest(holder, asked)
        if digest not in kept:
            kept[digest] = self._required(holder, asked, digest, wait, askers)
        id: str = kept[digest]
        return id

    def _required(
        self, holder: Holder, asked: Mapping[str, Any], digest: str, wait: float, askers: Collection[str]
    ) -> str:
        found = self._current(digest) or self._ask(holder, asked, digest, askers)
        if found.state == PENDING:
            self._turns().wait(lambda told: self.subscribe(found.id, told), wait)
            # It may have been decided in this moment.
            found = self._current(digest) or found
        if found.state == ONCE and not self._use(found.id):
            # Another request for the same was quicker.
            found = self._current(digest) or self._ask(holder, asked, digest, askers)
        if found.state in (ONCE, GRANTED):
            return found.id
        if found.state == DENIED:
            raise ApprovalDenied("This was asked for, and denied.", approval=found.id)
        text = "A rule of the token asks for an approval of this: send it again when somebody has approved it."
        raise ApprovalRequired(text, approval=found.id, expires=written(found.expires))

    def query(self, states: Collection[str] = STATES) -> list[Approval]:
        """Return the approvals that are in one of ``states`` and not over, oldest first."""
        found = map(_read, self._stored.all())
        return [one for one in found if one.state in states and one.expires > now()]

    def get(self, id: str) -> Approval:
        """Return an approval that is not over; raise :class:`UnknownApproval`."""
        document = self._stored.get(id)
        found = None if document is None else _read(document)
        if found is None or found.state == USED or found.expires <= now():
            raise UnknownApproval(id)
        return found

    def decide(self, id: str, verdict: Verdict, decider: Holder | None, seconds: float = 0) -> Approval:
        """Decide about an approval, or decide otherwise while it is not over; ``decider`` is None for the owner.

        ``grant`` lets the same pass for ``seconds``, ``once`` the next time within ten minutes; ``deny`` refuses it
        for ten minutes.

        :raises UnknownApproval: it is over, or there is none.
        :raises PolicyDenied: the token asks itself, or the one that it comes from does, or a rule of one of these asks.
        """
        found = self.get(id)
        # A token whose rule asks could else create one that asks, and one that decides.
        if decider is not None and any(one.id in (found.token, *found.askers) for one in decider.lineage):
            raise PolicyDenied("A token does not decide about itself, nor about those that it was created with.")
        lasts = timedelta(seconds=seconds) if verdict == "grant" else timedelta(minutes=MINUTES)
        state = {"once": ONCE, "grant": GRANTED, "deny": DENIED}[verdict]
        decided = {"state": state, "decidedBy": decider.id if decider else None}

        def change(one: Document) -> Document:
            current = _read(one)
            if current.state == USED or current.expires <= now():
                return one
            return replace(one, body={**one.body, **decided}, expires=now() + lasts)

        changed = self._stored.change(id, change)
        if changed is None or changed.body["state"] != state:
            raise UnknownApproval(id)
        self._tell([id])
        return _read(changed)

    def subscribe(self, id: str, told: Callable[[], None]) -> Callable[[], None]:
        """Have ``told`` called once an approval is decided, by whatever daemon; return what takes that back."""
        with self._lock:
            self._waiters.callbacks.setdefault(id, []).append(told)
            if self._waiters.thread is None and not self._closing.is_set():
                self._waiters.thread = threading.Thread(target=self._watch, name="approvals", daemon=True)
                self._waiters.thread.start()

        def cancel() -> None:
            with self._lock:
                waiting = self._waiters.callbacks.get(id, [])
                if told in waiting:
                    waiting.remove(told)
                if not waiting:
                    self._waiters.callbacks.pop(id, None)

        if self._is_decided(id):
            self._tell([id])
        return cancel

    def close(self) -> None:
        """End the thread; whoever waits is told."""
        self._closing.set()
        with self._lock:
            thread, waiting = self._waiters.thread, list(self._waiters.callbacks)
        self._tell(waiting)
        if thread is not None:
            thread.join()

    def _digest(self, holder: Holder, asked: Mapping[str, Any]) -> str:
        text = canonical([holder.id, asked])
        if len(text) > MAX_BYTES:
            raise PolicyDenied(f"It is too long for somebody to decide about: more than {MAX_BYTES // 1024} KiB.")
        return blake2b(text.encode(), key=self._key, digest_size=32).hexdigest()

    def _current(self, digest: str) -> Approval | None:
        """Return the approval of this digest that is not over."""
        document = self._stored.by_key(digest)
        if document is None:
            return None
        found = _read(document)
        if found.expires <= now():
            self._stored.remove([found.id])
            return None
        return found

    def _ask(self, holder: Holder, asked: Mapping[str, Any], digest: str, askers: Collection[str]) -> Approval:
        body = {
            "state": PENDING,
            "token": holder.id,
            "tokenName": holder.name,
            "askers": list(askers),
            "root": holder.lineage[-1].id,
            "asked": dict(asked),
        }
        document = Document(key=digest, body=body, expires=now() + timedelta(minutes=MINUTES))
        with self._lock:
            self._require_room(holder)
            added = self._stored.add(document, most=MAX_KEPT)
        if not added:
            # Another daemon may have been asked the same in this moment.
            found = self._current(digest)
            if found is None:
                raise QuotaExceeded(f"{MAX_KEPT} approvals are kept: wait until some are over.")
            return found
        approval = _read(document)
        try:
            self._requested(shown(approval))
        except Exception:
            # A plugin may raise anything, and whoever lists what is pending sees it anyway.
            logger.exception("A plugin failed to take note of the approval %s.", approval.id)
        return approval

    def _require_room(self, holder: Holder) -> None:
        stored = list(map(_read, self._stored.all()))
        if over := [one.id for one in stored if one.expires <= now()]:
            self._stored.remove(over)
        # A token could else create others, and fill what is kept by these.
        root = holder.lineage[-1].id
        pending = [one for one in stored if one.state == PENDING and one.root == root and one.id not in over]
        if len(pending) >= MAX_PENDING:
            raise QuotaExceeded(f"{MAX_PENDING} requests of the token and its kin wait for approval; no more may.")

    def _use(self, id: str) -> bool:
        """Use up what was approved once; return whether this use was the one."""
        use = str(uuid.uuid4())

        def change(one: Document) -> Document:
            current = _read(one)
            if current.state != ONCE or current.expires <= now():
                return one
            # The next request for the same is a new one.
            return replace(one, key=f"used-{id}", body={**one.body, "state": USED, "use": use, "asked": {}})

        changed = self._stored.change(id, change)
        return changed is not None and changed.body.get("use") == use

    def _is_decided(self, id: str) -> bool:
        document = self._stored.get(id)
        return document is None or document.body["state"] != PENDING

    def _tell(self, ids: Collection[str]) -> None:
        with self._lock:
            callbacks = [told for id in ids for told in self._waiters.callbacks.pop(id, [])]
        for told in callbacks:
            told()

    def _watch(self) -> None:
        while not self._closing.wait(LOOK_SECONDS):
            with self._lock:
                waited = list(self._waiters.callbacks)
                if not waited:
                    self._waiters.thread = None
                    return
            try:
                self._tell([id for id in waited if self._is_decided(id)])
            except ConnmgrError as error:
                # The vault is out of reach; whoever waits has a deadline.
                logger.warning("Approvals cannot be read: %s", error.message)


def shown(approval: Approval) -> dict[str, Any]:
    """Return an approval as clients and plugins see it, as JSON."""
    return {
        "approval": approval.id,
        "state": approval.state,
        "token": approval.token,
        "tokenName": approval.token_name,
        "asked": dict(approval.asked),
        "created": written(approval.created),
        "expires": written(approval.expires),
        "decidedBy": approval.decided_by,
    }


def written(moment: datetime) -> str:
    """Return a time as clients see it."""
    return moment.astimezone(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _read(document: Document) -> Approval:
    body = document.body
    return Approval(
        id=document.id,
        state=body["state"],
        token=body["token"],
        token_name=body["tokenName"],
        asked=body["asked"],
        created=document.created,
        expires=document.expires or document.created,
        askers=tuple(body.get("askers", ())),
        root=body.get("root", body["token"]),
        decided_by=body.get("decidedBy"),
    )
