"""Remembers for a moment who may use what runs on stored connections, so that not every command asks the database."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from connmgr.secrets.principals import Access
    from connmgr.vault.principals import Principals

SECONDS = 1.0
"""For how long what another daemon of the same vault changes may go unnoticed; this one's changes count at once."""


class Outdated(Exception):
    """A connection was changed or removed since what runs on it was opened."""


class Admission:
    """Lets in those who may open all of ``secrets``, as long as ``unchanged()``. Safe to use from several threads."""

    def __init__(
        self, principals: Principals, secrets: Collection[Mapping[str, Any]], unchanged: Callable[[], bool]
    ) -> None:
        self._principals = principals
        self._secrets = secrets
        self._unchanged = unchanged
        self._admitted: dict[tuple[int, bytes | None], float] = {}

    def check(self, access: Access) -> None:
        """Make sure that ``access`` may open the secrets, and that they are those of the connections as they are now.

        :raises SecretLocked, IntegrityError: as :meth:`Principals.require`.
        :raises Outdated: what is guarded is to be ended.
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
        self._admitted = {**{old: end for old, end in self._admitted.items() if end > now}, who: now + SECONDS}
