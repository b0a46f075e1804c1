"""The tokens in use: counts requests, reads tokens again after changes, and ends what invalid ones run."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from weakref import WeakValueDictionary

from connmgr.errors import ConnmgrError, IntegrityError, InvalidToken, QuotaExceeded, TokenRevoked
from connmgr.rights.grant import REVOKED, Grant
from connmgr.vault.documents import Document, Documents, counted
from connmgr.vault.schema import now

logger = logging.getLogger("connmgr.rights")

LOOK_SECONDS = 0.4
"""Interval of checks whether another daemon of the vault has changed a token in use here."""

STALE_SECONDS = 0.9
"""A token not checked for this long is read again before it is used."""

COUNT_SECONDS = 30.0
"""Interval at which the uses of a token without a quota are stored."""

Ended = Callable[[Mapping[str, ConnmgrError], bool], None]
"""Ends what runs by the tokens with these ids, each for its reason; the second argument says whether jobs end too."""


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


class TokensInUse:
    """The tokens that were used here. Safe to use from several threads.

    ``ended`` is called, from any thread, when some were revoked or have expired.
    """

    def __init__(self, stored: Documents, ended: Ended) -> None:
        self._stored, self._ended = stored, ended
        self._lock = threading.Lock()
        self._live: dict[str, Live] = {}
        # Ended tokens too, while callers hold them: a renewed token must not exist twice.
        self._known: WeakValueDictionary[str, Live] = WeakValueDictionary()
        self._closing = threading.Event()
        self._watcher: threading.Thread | None = None

    def keep(self, document: Document) -> Live:
        """Return the token stored as ``document``, which is in use from now on, valid or not.

        :raises InvalidToken: one of its ancestors is gone.
        """
        grant, at = grant_of(self._stored, document), time.monotonic()
        # No code is empty, so the first check reads possible changes.
        codes = {one.id: b"" for one in grant.lineage}
        with self._lock:
            live = self._known.setdefault(document.id, Live(grant, codes, at))
            if not live.ended:
                self._live[document.id] = live
            _take_counts(live, document)
            if self._watcher is None and not self._closing.is_set():
                self._watcher = threading.Thread(target=self._watch, name="tokens", daemon=True)
                self._watcher.start()
        if live.ended:
            self._read(live)
        self._keep_above(grant)
        return live

    def begin(self, live: Live, address: str | None, *, counts: bool = True) -> None:
        """Note a use of a token from ``address``; :meth:`end` follows even if this raises.

        It ``counts`` as a request of the day, unless it is a further turn of one.
        :raises InvalidToken: one of its ancestors is gone.
        :raises TokenRevoked, TokenExpired: it is no longer valid.
        :raises ScopeDenied: it may not be used from there.
        :raises QuotaExceeded: the limit of simultaneous or daily requests is reached.
        """
        with self._lock:
            live.running += 1
        at = now()
        if live.grant.invalid(at) or time.monotonic() - live.looked_at > STALE_SECONDS:
            # It may have been renewed or revoked.
            self._read(live)
        grant = live.grant
        grant.require_valid(at)
        grant.require_address(address)
        with self._lock:
            self._count(live, at, counts=counts)

    def end(self, live: Live) -> None:
        """Note that a use is over."""
        with self._lock:
            live.running -= 1

    def end_those_of(self, id: str) -> None:
        """End a revoked token and its descendants, if they are in use."""
        with self._lock:
            affected = [live for live in self._live.values() if any(one.id == id for one in live.grant.lineage)]
        for live in affected:
            self._read(live)
        self._end(affected)

    def close(self) -> None:
        """Store the counts, and end the thread."""
        self._closing.set()
        if self._watcher is not None:
            self._watcher.join()
        self._write_counts(at_once=True)

    def _keep_above(self, grant: Grant) -> None:
        """Keep the ancestors of a token in use in memory too, and count for them."""
        if grant.parent is not None and grant.parent.id not in self._live:
            above = self._stored.get(grant.parent.id)
            if above is not None and not grant.parent.invalid(now()):
                self.keep(above)

    def _read(self, live: Live) -> None:
        """Read a token and its ancestors again."""
        at, codes = time.monotonic(), self._stored.codes(one.id for one in live.grant.lineage)
        try:
            document = self._stored.get(live.grant.id)
            grant = replace(live.grant, revoked=True) if document is None else grant_of(self._stored, document)
        except (IntegrityError, InvalidToken):
            # The token or an ancestor was changed outside of connmgr, or is gone.
            document, grant = None, replace(live.grant, revoked=True)
        with self._lock:
            live.grant, live.codes, live.looked_at = grant, codes, at
            if live.ended and not grant.invalid(now()):
                # The token was renewed.
                live.ended = False
                self._live[grant.id] = live
        self._keep_above(grant)

    def _count(self, live: Live, at: datetime, *, counts: bool) -> None:
        day = at.date().isoformat()
        lives = [one for grant in live.grant.lineage if (one := self._live.get(grant.id))]
        for one in lives:
            if one.day != day:
                one.day, one.used, one.uncounted = day, 0, 0
            most, quota = one.grant.max_concurrent, one.grant.quota_per_day
            if most is not None and self._under_way(one.grant.id) > most:
                raise QuotaExceeded(f"{most} requests of the token are under way, and it may have no more.")
            if counts and quota is not None and one.used + one.uncounted >= quota:
                raise QuotaExceeded(f"The token has had its {quota} requests of this day, which ends at 24:00 UTC.")
        for one in lives:
            one.uncounted += counts

    def _under_way(self, id: str) -> int:
        """Return the number of requests under way of a token and its descendants."""
        return sum(live.running for live in self._live.values() if any(one.id == id for one in live.grant.lineage))

    def _watch(self) -> None:
        while not self._closing.wait(LOOK_SECONDS):
            try:
                self._look()
                self._write_counts()
            except ConnmgrError as error:
                # The vault is out of reach; new requests are refused meanwhile.
                logger.warning("Tokens cannot be read: %s", error.message)

    def _look(self) -> None:
        with self._lock:
            lives = list(self._live.values())
        at = time.monotonic()
        codes = self._stored.codes({one.id for live in lives for one in live.grant.lineage})
        for live in lives:
            if any(codes.get(id) != code for id, code in live.codes.items()):
                self._read(live)
            live.looked_at = at
        self._end([live for live in lives if live.grant.invalid(now())])

    def _end(self, lives: Collection[Live]) -> None:
        with self._lock:
            ending = [live for live in lives if not live.ended]
            for live in ending:
                live.ended = True
                self._live.pop(live.grant.id, None)
        if ending:
            at = now()
            self._ended({live.grant.id: live.grant.invalid(at) or TokenRevoked(REVOKED) for live in ending}, False)

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
            def count(one: Document, day: str = day, more: int = more) -> Document:
                before = one.counts.get("used", 0) if one.counts.get("day") == day else 0
                return counted(one, day=day, used=before + more, lastUsed=now().isoformat())

            document = self._stored.change(live.grant.id, count)
            with self._lock:
                live.counted_at = at
                live.uncounted -= more if live.day == day else 0
                if document is not None:
                    _take_counts(live, document)


def grant_of(stored: Documents, document: Document) -> Grant:
    """Return the grant of a stored token, with its ancestors.

    :raises InvalidToken: one of these is gone.
    """
    above = document.body["parent"]
    if above is None:
        return Grant.load(document, None)
    parent = stored.get(above)
    if parent is None:
        raise InvalidToken("Unknown token: the one that it was created with was removed.")
    return Grant.load(document, grant_of(stored, parent))


def _take_counts(live: Live, document: Document) -> None:
    if document.counts.get("day", "") >= live.day and isinstance(document.counts.get("used"), int):
        live.day, live.used = document.counts["day"], document.counts["used"]
