"""Jobs on a far side that the vault does not know: of a lost or another vault, or younger than the backup.

A restored backup, a removed connection and an unreachable machine leave such jobs.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from connmgr.jobs.jobs import CALL_SECONDS, GONE, Jobs, far_name
from connmgr.jobs.reach import Reach
from connmgr.jobs.spool import Spool
from connmgr.jobs.starting import Starts
from connmgr.plugin import Deadline
from connmgr.secrets.principals import Access
from connmgr.vault import Vault
from connmgr.vault.jobs import RUNNING

LEAST_AGE_SECONDS = 60
"""Least age of an orphan: another daemon of the vault may have begun a younger job and not stored it yet."""

CLEAR_SECONDS = 5.0
"""Time to clear the far sides of removed connections, for all together."""


@dataclass(frozen=True)
class Orphan:
    """A job that the vault does not know: its state, and its age in seconds if the far side can tell."""

    job: str
    state: str
    age: int | None
    removed: bool = False


class Orphans:
    """Finds orphans, and removes them when asked. Safe to use from several threads."""

    def __init__(self, vault: Vault, reach: Reach, jobs: Jobs, starts: Starts) -> None:
        self._vault = vault
        self._reach = reach
        self._jobs = jobs
        self._starts = starts

    def find(self, connection: str, access: Access, least_age: float, *, remove: bool) -> list[Orphan]:
        """Return the orphans that began at least ``least_age`` seconds ago, and at least a minute ago.

        With ``remove``, ended ones are removed. Running ones stay, because another vault's daemon may follow them.
        :raises connmgr.errors.ConnmgrError: what opening a link raises, or the far side cannot remove one.
        """
        age = max(math.ceil(least_age), LEAST_AGE_SECONDS)
        found = self._reach.ask(connection, access, partial(self._found, age), shared=False)
        over = [far_name(one.job) for one in found if remove and one.state != RUNNING]
        if over:
            self._reach.ask(connection, access, lambda spool: spool.remove(over, CALL_SECONDS), shared=False)
        return [replace(one, removed=remove and one.state != RUNNING) for one in found]

    def clear(self, jobs: Mapping[str, Sequence[str]]) -> int:
        """Remove the files of ``jobs``, given by removed connections; return how many stay.

        Jobs stay if they run, are just starting, or their machine has no open link.
        """
        deadline, left = Deadline(CLEAR_SECONDS), 0
        for connection, ids in jobs.items():
            left_there = self._reach.ask_at_once(connection, partial(self._clear, ids, deadline))
            left += len(ids) if left_there is None else left_there
            for id in ids:
                self._jobs.drop(id)
        return left

    def _found(self, least_age: int, spool: Spool) -> list[Orphan]:
        # In this order: a job has its row before its start is over, and leaves the far side before its row is removed.
        # So a job that is started or removed meanwhile does not count as an orphan.
        ages = {str(uuid.UUID(name)): age for name, age in spool.list(CALL_SECONDS, least_age).items()}
        strange = ages.keys() - self._starts.under_way
        strange -= self._vault.jobs.known(strange)
        by_name = {far_name(id): id for id in sorted(strange)}
        seen = spool.look(by_name, CALL_SECONDS)
        return [Orphan(id, seen[name].state, ages[id]) for name, id in by_name.items() if seen[name].state != GONE]

    def _clear(self, ids: Sequence[str], deadline: Deadline, spool: Spool) -> int:
        starting = self._starts.under_way
        seen = spool.look(map(far_name, ids), deadline.left())
        over = [far_name(id) for id in ids if seen[far_name(id)].state != RUNNING and id not in starting]
        spool.remove(over, deadline.left())
        return len(ids) - len(over)
