"""What a page in a browser may do only shortly after its user has shown again who they are, where the owner says so.

A browser is left open, and one session of it is all that a thief needs. With the setting ``web-step-up`` the session
of a page may look, and whatever reaches machines, secrets, connections or rights has to follow a passphrase or an
approval within :data:`connmgr.contract.web.STEP_UP_SECONDS`. The daemon keeps the time for each session; sessions of
programs and tokens are not concerned.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from connmgr.api.auth import Caller
from connmgr.contract.web import STEP_UP_SECONDS
from connmgr.durations import boot_time
from connmgr.errors import StepUpRequired
from connmgr.rights.actions import Action
from connmgr.rights.approvals import Holder
from connmgr.rights.scopes import missing
from connmgr.settings import STEP_UP_NONE, STEP_UP_PASSPHRASE

SCOPES_WITHOUT_STEP_UP = frozenset({"audit.read", "connection.read", "metrics.read"})
"""Scopes whose actions need no step-up; so do those that need no scope and run nothing."""

LISTS = frozenset(
    {
        "approval.query",
        "connection.environment",
        "job.info",
        "job.query",
        "job.wait",
        "recording.query",
        "shell.list",
        "terminal.query",
        "token.query",
        "undo.query",
    }
)
"""Actions of other scopes that show what there is, and neither its content nor its output."""


def needs_step_up(action: Action[Any]) -> bool:
    """Whether a page needs a step-up for an action, where the owner asks for one."""
    if action.name in LISTS:
        return False
    return action.runs or missing(action.name, SCOPES_WITHOUT_STEP_UP) is not None


def require_step_up(caller: Caller, action: Action[Any], mode: str) -> None:
    """Return if ``caller`` may do this now.

    :raises StepUpRequired: it is a page whose user has to show again who they are, as ``details`` say.
    """
    if mode == STEP_UP_NONE or not caller.is_page or not needs_step_up(action):
        return
    # From the step-up on, and not from the last use: a page that is left open must not stay trusted.
    if caller.stepped_up is None or boot_time() - caller.stepped_up > STEP_UP_SECONDS:
        how = "the passphrase of a vault user" if mode == STEP_UP_PASSPHRASE else "an approval"
        raise StepUpRequired(
            f"The page must confirm this with {how} first (setting web-step-up): send /web/confirm.", stepUp=mode
        )


@dataclass(frozen=True)
class OwnersPage:
    """A page of the owner as the requester of an approval; one of a token is that token."""

    id: str
    name: str

    @property
    def lineage(self) -> Sequence[Holder]:
        return (self,)


def requester(page: Caller) -> Holder:
    """Return in whose name ``page`` asks for an approval."""
    # Approvals name their requester by a uuid; the owner has none, and each session of a page is another.
    return page.grant or OwnersPage(str(uuid.UUID(int=int(page.id, 16))), f"page {page.id}")
