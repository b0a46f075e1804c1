"""Remembers for a moment who may open a set of secrets, so that not every command has the database asked."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from connmgr.secrets.principals import Access
    from connmgr.vault.principals import Principals

SECONDS = 1.0
"""For how long what another daemon of the same vault changes may go unnoticed; this one's changes count at once."""


class Admission:
    """Lets in those who may open all of ``secrets``. Safe to use from several threads."""

    def __init__(self, principals: Principals, secrets: Collection[Mapping[str, Any]]) -> None:
        self._principals = principals
        self._secrets = secrets
        self._admitted: dict[tuple[int, bytes | None], float] = {}

    def check(self, access: Access) -> None:
        """Make sure that ``access`` may open the secrets.

        :raises SecretLocked, IntegrityError: as :meth:`Principals.require`.
        """
        if not self._secrets:
            return
        user = access.principal
        who = (self._principals.changes, user.key_id if user else None)
        if time.monotonic() < self._admitted.get(who, 0.0):
            return
        self._principals.require(self._secrets, access)
        now = time.monotonic()
        self._admitted = {**{old: end for old, end in self._admitted.items() if end > now}, who: now + SECONDS}
