"""Caches briefly which sessions may use a shell, so that not every command queries the database."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from connmgr.errors import IntegrityError, ScopeDenied, SecretLocked

if TYPE_CHECKING:
    from connmgr.secrets.principals import Access
    from connmgr.vault.principals import Principals
    from connmgr.vault.record import Connection

ADMITTED_SECONDS = 1.0
"""Changes by another daemon on the same vault may go unnoticed this long; changes by this one take effect at once."""


NO_AGENT = (
    "The connection forwards an ssh-agent (forwardAgent), and everything that runs there can sign by it: "
    "the token needs the scope ssh.agent."
)


class Outdated(Exception):
    """A connection was changed or removed after a shell on it was opened."""


Who = tuple[int, bytes | None]


class Admission:
    """Admits sessions that may open all ``secrets``, while ``unchanged()`` holds. Safe to use from several threads.

    ``unchanged`` compares with the given row of the connection, or else reads it. Where the link ``forwards_agent``,
    only sessions that may use the agent are admitted. A token that may not open the secrets itself is admitted by a
    loan, whose use is noted for ``connection``, unless there is a ``refusal``.
    """

    def __init__(
        self,
        principals: Principals,
        secrets: Collection[Mapping[str, Any]],
        unchanged: Callable[[Connection | None], bool],
        *,
        forwards_agent: bool = False,
        connection: str | None = None,
        refusal: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._principals = principals
        self._secrets = secrets
        self._unchanged = unchanged
        self._forwards_agent = forwards_agent
        self._connection = connection
        self._refusal = refusal
        self._admitted: dict[Who, float] = {}

    def check(self, access: Access) -> None:
        """Check that ``access`` may open the secrets, and that the connections are unchanged.

        :raises SecretLocked, IntegrityError: as :meth:`Principals.require`.
        :raises Outdated: a connection changed; end the shell.
        :raises ScopeDenied: the link forwards an ssh-agent, and ``access`` may not use it.
        """
        if self._forwards_agent and not access.asker.may_forward:
            raise ScopeDenied(NO_AGENT)
        who = self._who(access)
        if self._admits(who):
            return
        by = self._principals.entitled(self._secrets, access, self._refusal) if self._secrets else access
        if by is access:
            self._decide(who, None)
            return
        # Nothing is cached of a loan, which may end in this moment.
        if not self._unchanged(None):
            raise Outdated
        if self._connection is not None:
            by.note(self._connection)

    def _who(self, access: Access) -> Who:
        user = access.principal
        return self._principals.changes, user.key_id if user else None

    def _admits(self, who: Who, longer: float = 0.0) -> bool:
        return time.monotonic() + longer < self._admitted.get(who, 0.0)

    def _decide(self, who: Who, stored: Connection | None) -> None:
        if not self._unchanged(stored):
            raise Outdated
        now = time.monotonic()
        self._admitted = {**{old: end for old, end in self._admitted.items() if end > now}, who: now + ADMITTED_SECONDS}


def admitted(asked: Iterable[tuple[Admission, Connection]], access: Access) -> list[Connection]:
    """Return the connections to which ``access`` is admitted, each with its current row; principals are read once.

    For the others :meth:`Admission.check` raises the reason. The result holds for half of :data:`ADMITTED_SECONDS`.
    """
    requirement, found = None, []
    for admission, stored in asked:
        if admission._forwards_agent and not access.asker.may_forward:
            continue
        who = admission._who(access)
        if not admission._admits(who, ADMITTED_SECONDS / 2):
            try:
                if admission._secrets:
                    requirement = requirement or admission._principals.requirement(access)
                    requirement(admission._secrets)
                admission._decide(who, stored)
            except SecretLocked:
                if access.lent() is None or not _by_loan(admission, access):
                    continue
            except (IntegrityError, Outdated):
                continue
        found.append(stored)
    return found


def _by_loan(admission: Admission, access: Access) -> bool:
    try:
        admission.check(access)
    except (SecretLocked, IntegrityError, Outdated):
        return False
    return True
