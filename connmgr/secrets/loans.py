"""Loans: a session that has unlocked a vault user lets a token use, though never read, the secrets that the user opens.

A loan is only in memory, and has no key: it names the session of its lender, which has the key, and asks that session
each time. So a loan ends at the moment when its lender is locked, for whatever reason. It also ends when its time is
over, when its token becomes invalid, and when the daemon ends. A token never has more than the tokens above it: its
loan is valid only while all of them have loans by the same user.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from connmgr.durations import boot_time
from connmgr.errors import SecretLocked
from connmgr.plugin import Asker
from connmgr.poller import Poller
from connmgr.secrets.principals import Access, Principal

logger = logging.getLogger("connmgr.secrets")

LONGEST_SECONDS = 15.0
"""Longest time until the end of a loan is noticed after its machine has slept; by then its use is refused."""

LOCKED = "the lender's user was locked"
TIME_OVER = "its time was over"
ABOVE_OVER = "the loan of the token that it was created with had ended"
REPLACED = "another one took its place"


@dataclass(eq=False)
class Loan:
    """Lets ``token`` use the secrets that ``principal`` opens, until ``until``; ``lender`` opens them for it."""

    token: str
    name: str
    """The token's name, for the audit log."""
    lineage: Sequence[str]
    """The ids of the token, of the one that it was created with, and so on."""
    lender: Access
    session: str
    """The id of the lender's session in the audit log."""
    principal: Principal
    """The user as stored at the time of the loan; with another passphrase it is another principal."""
    until: datetime
    began: datetime
    """Both by the clock of the vault."""
    used_on: set[str] = field(default_factory=set)
    """The connections that were opened or used by it."""

    ended: str | None = None
    """Why it was ended, before its time or its lender's lock."""

    def __post_init__(self) -> None:
        self._unlocked = self.lender.unlocked
        # Of a clock that nobody sets meanwhile, and that goes on while the machine sleeps.
        self._ends_at = boot_time() + (self.until - self.began).total_seconds()

    @property
    def over(self) -> str | None:
        """Why this loan is over, apart from the loans above it; None while it is valid."""
        if self.ended is None and (self._unlocked is None or self.lender.unlocked is not self._unlocked):
            return LOCKED
        if self.ended is None and boot_time() >= self._ends_at:
            return TIME_OVER
        return self.ended

    @property
    def seconds(self) -> float:
        """The seconds until its time is over."""
        return max(0.0, self._ends_at - boot_time())


class Loans:
    """The loans of a daemon, by their tokens. Safe to use from several threads.

    ``ended`` is called in a thread of its own, with each loan that has ended and the reason, and ``ended_since`` by a
    request that has opened something by a loan that ended meanwhile. ``used`` is called in the
    thread of each use, with the loan, the connection and whether it is the
    first there.
    """

    def __init__(self) -> None:
        self.ended: Callable[[Loan, str], None] = lambda _loan, _why: None
        self.ended_since: Callable[[Loan, str], None] = lambda _loan, _why: None
        self.used: Callable[[Loan, str, bool], None] = lambda _loan, _connection, _is_first: None
        self._lock = threading.Lock()
        self._loans: dict[str, Loan] = {}
        self._replaced: list[Loan] = []
        """Those that have ended because another one took their place, until what runs by them is ended."""

        self._poller = Poller("loans", self._sweep, LONGEST_SECONDS, logger)

    def lend(self, loan: Loan) -> None:
        """Begin a loan, in place of an earlier one to the same token.

        Programs that run by the earlier one run on by this one if both are of one user; otherwise they are ended.
        """
        with self._lock:
            before = self._loans.pop(loan.token, None)
            self._loans[loan.token] = loan
            if before is not None and before.over is None and before.principal == loan.principal:
                loan.used_on |= before.used_on
            elif before is not None:
                # This one does not open what they have opened, and its end would be the only one that is noticed.
                before.ended = before.over or REPLACED
                self._replaced.append(before)
            # When the lender locks the vault, the thread must wake at once and not at the end of the loan's time.
            loan.lender.when_locked = self._poller.poke
        self._poller.poke()

    def of(self, lineage: Sequence[str]) -> Loan | None:
        """Return the loan to the first token of ``lineage``, or None.

        Each token above it needs a loan of the same principal that has not ended.
        """
        # Without the lock, because every request of a token comes here; dict.get is atomic in CPython.
        loans = [self._loans.get(token) for token in lineage]
        own = loans[0] if loans else None
        if own is None or any(loan is None or loan.over or loan.principal != own.principal for loan in loans):
            return None
        return own

    def end(self, tokens: Collection[str], why: str) -> bool:
        """End the loans to ``tokens``; return whether there was one."""
        return self._end([loan for token in tokens if (loan := self._loans.get(token)) is not None], why)

    def end_those_by(self, user: str, why: str) -> None:
        """End the loans by a user whose passphrase was changed, or who was removed."""
        with self._lock:
            concerned = [loan for loan in self._loans.values() if loan.principal.name == user]
        self._end(concerned, why)

    def close(self) -> None:
        """End all loans and the thread."""
        self._poller.close(None)
        with self._lock:
            loans = list(self._loans.values())
        self._end(loans, "the daemon stopped")
        self._sweep()

    def _end(self, loans: Collection[Loan], why: str) -> bool:
        for loan in loans:
            # The first reason stays: a loan whose lender has just locked the vault did not end for the later one.
            loan.ended = loan.over or why
        if loans:
            self._poller.poke()
        return bool(loans)

    def _sweep(self) -> float | None:
        """Tell of the loans that are over; return after how many seconds the next one may be, None without any."""
        with self._lock:
            over = [(loan, why) for loan in self._loans.values() if (why := self._why_over(loan)) is not None]
            for loan, why in over:
                loan.ended = why
                del self._loans[loan.token]
            over = [*((loan, loan.ended or REPLACED) for loan in self._replaced), *over]
            self._replaced = []
        # Outside of the lock: what ends the programs of a loan may take long, and asks for loans itself.
        for loan, why in over:
            self.ended(loan, why)
        with self._lock:
            soonest = min((loan.seconds for loan in self._loans.values()), default=None)
        # The poller's wait does not count a sleep of the machine, as the loan's time does.
        return None if soonest is None else min(soonest, LONGEST_SECONDS)

    def _why_over(self, loan: Loan) -> str | None:
        above = [self._loans.get(token) for token in loan.lineage[1:]]
        # One by another user lends nothing of this one, and this one must not come back after it.
        lasts = all(one is not None and one.over is None and one.principal == loan.principal for one in above)
        return loan.over or (None if lasts else ABOVE_OVER)


class Borrower(Access):
    """The access of a session with a token: ``loan`` returns the token's loan, if it has one now.

    ``advice`` is what an error adds for a secret that the token may not use.
    """

    def __init__(self, asker: Asker, loans: Loans, lineage: Callable[[], Sequence[str]]) -> None:
        super().__init__(asker)
        self._loans, self._lineage = loans, lineage

    @property
    def holder(self) -> str | None:
        return self._lineage()[-1]

    @property
    def advice(self) -> str:
        return (
            f"Or its owner lets this token use it: `connmgr token lend {self._lineage()[0]}`, "
            "in a session that has unlocked such a user."
        )

    def lent(self) -> Lent | None:
        loan = self._loans.of(self._lineage())
        return None if loan is None else Lent(self, loan, self._loans)


class Lent(Access):
    """The access of a token's session by its loan, for the links that are opened and used, and for nothing else."""

    def __init__(self, own: Access, loan: Loan, loans: Loans) -> None:
        super().__init__(own.asker)
        self.loan = loan
        self._loans = loans

    @property
    def holder(self) -> str | None:
        return self.loan.lineage[-1]

    @property
    def principal(self) -> Principal | None:
        # Here and in open(): a link may be opened just while the lender locks the vault, and must find it locked.
        return None if self.loan.over else self.loan.principal

    def open(self, key_id: bytes, sealed: bytes) -> bytes | None:
        return None if self.loan.over else self.loan.lender.open(key_id, sealed)

    def note(self, connection: str) -> None:
        is_first = connection not in self.loan.used_on
        self.loan.used_on.add(connection)
        self._loans.used(self.loan, connection, is_first)


def loan_over(loan: Loan, why: str) -> SecretLocked:
    """Return the error for programs that ran by a ``loan`` that has ended."""
    user = loan.principal.name
    return SecretLocked(
        f"The loan of {user}'s secrets to the token has ended, because {why}, and everything that used it was ended. "
        f"`connmgr token lend {loan.token}` lends them again, in a session that has unlocked {user}.",
        principals=[user],
    )


def until(seconds: float | None, expires: datetime, began: datetime) -> datetime:
    """Return when a loan of ``seconds`` ends that ``began`` then, to a token that ``expires``."""
    return expires if seconds is None else min(expires, began + timedelta(seconds=seconds))
