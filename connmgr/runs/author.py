"""In whose name a run goes on when nobody waits for it: its token's rights, and the secrets that it may open."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from connmgr.contract.message import replace
from connmgr.contract.run import RunStartRequest
from connmgr.errors import ConnmgrError, TokenRevoked, UnknownCommand
from connmgr.rights.actions import Action, always
from connmgr.rights.authorisation import Authorisation
from connmgr.rights.grant import REVOKED, Grant
from connmgr.rights.saved_commands import SavedCommands
from connmgr.rights.tokens import Grants, Live, access_of
from connmgr.secrets.loans import Loans
from connmgr.secrets.principals import Access
from connmgr.vault.runs import StoredRun
from connmgr.vault.schema import now

RUN: Action[RunStartRequest] = Action("run.start", runs=True, in_shell=always)


@dataclass
class Author:
    """The sender of a request to start a run, as long as the run lasts."""

    id: str
    name: str
    access: Access
    live: Live | None
    """Its token, in use here; None for the owner."""

    @property
    def token(self) -> str | None:
        return None if self.live is None else self.live.grant.id

    @property
    def grant(self) -> Grant | None:
        return None if self.live is None else self.live.grant

    def require_valid(self) -> None:
        """Raise :class:`TokenRevoked` or :class:`TokenExpired` if its token has become invalid."""
        if self.live is not None and (self.live.ended or self.live.grant.invalid(now())):
            raise self.live.why or self.live.grant.invalid(now()) or TokenRevoked(REVOKED)


class RunRights:
    """Decides, when each target of a run begins, whether its author may still run the command there."""

    def __init__(self, author: Author, authorisation: Authorisation, asked: RunStartRequest, *, approved: bool) -> None:
        self._author, self._authorisation, self._asked, self._approved = author, authorisation, asked, approved
        self._concerns = authorisation.concerns(author)

    def require(self, connection: str) -> None:
        """Raise unless the author may run the command on ``connection`` now."""
        if not self._concerns:
            return
        self._author.require_valid()
        request = replace(self._asked, connections=[connection])
        self._authorisation.check_again(self._author, RUN, request, approved=self._approved)


class Authors:
    """Finds the authors of runs. Safe to use from several threads."""

    def __init__(self, grants: Grants, authorisation: Authorisation, commands: SavedCommands) -> None:
        self._grants, self._authorisation, self._commands = grants, authorisation, commands

    def of(self, run: StoredRun, access: Access | None) -> Author:
        """Return the author of a run, who may open what ``access`` opens; None if the session that began it is gone.

        :raises TokenRevoked: the token was removed.
        """
        live = None if run.token is None else self._grants.live(run.token)
        if access is None:
            access = access_of(live, Loans())
            named = {} if live is None else {"token": live.grant.id, "tokenName": live.grant.name}
            access.who = {"client": run.spec["client"], "session": run.id[:8], **named}
        return Author(run.id[:8], run.spec["client"], access, live)

    def told(self, author: Author, error: ConnmgrError) -> ConnmgrError:
        """Return ``error`` as the author of a run may read it."""
        return self._authorisation.told(author, error)

    def rights_of(self, run: StoredRun, author: Author, content: Mapping[str, Any]) -> RunRights:
        """Return the rights of the author of a run with this ``content``."""
        asked: dict[str, Any] = dict(content["asked"] or content["request"])
        request = RunStartRequest.read(asked)
        if request.saved is not None:
            # If the saved command was removed since, its words stay those of the run, and are judged as any others.
            with suppress(UnknownCommand):
                saved = self._commands.get(request.saved.name)
                request = replace(request, saved=replace(request.saved, too_free=saved.too_free))
        # A run that an older version has stored says so by its grounds alone.
        approved = run.spec.get("approved", bool(content["grounds"]))
        return RunRights(author, self._authorisation, request, approved=approved)
