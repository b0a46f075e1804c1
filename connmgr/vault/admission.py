"""Caches briefly which sessions may use a shell, so that not every command queries the database."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from connmgr.secrets.principals import Access
    from connmgr.vault.principals import Principals

ADMITTED_SECONDS = 1.0
"""Changes by another daemon on the same vault may go unnoticed this long; changes by this one take effect at once."""


class Outdated(Exception):
    """A connection was changed or removed after a shell on it was opened."""


class Admission:
    """Admits sessions that may open all ``secrets``, while ``unchanged()`` holds. Safe to use from several threads."""

    def __init__(
        self, principals: Principals, secrets: Collection[Mapping[str, Any]], unchanged: Callable[[], bool]
    ) -> None:
        self._principals = principals
        self._secrets = secrets
        self._unchanged = unchanged
        self._admitted: dict[tuple[int, bytes | None], float] = {}

    def check(self, access: Access) -> None:
        """Check that ``access`` may open the secrets, and that the connections are unchanged.

        :raises SecretLocked, IntegrityError: as :meth:`Principals.require`.
        :raises Outdated: a connection changed; end the shell.
        """
        user = access.principal
        who = (self._principals.changes, user.key_id if user else None)
        if time.monotonic() < self._admitted.get(who, 0.0):
            return
        if self._secrets:
            self._principals.require(self._secrets, access)
        if not self._unchanged():
            raise Outdated
        now = time.monotonic()
        self._admitted = {**{old: end for old, end in self._admitted.items() if end > now}, who: now + ADMITTED_SECONDS}
