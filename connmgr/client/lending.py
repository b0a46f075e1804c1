"""What a program lends for a failed login: the ssh-agent of its environment, and passphrases that it knows or asks for.

client.remedy(Lender(client).lends)
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from connmgr.client.errors import ClientError

if TYPE_CHECKING:
    from connmgr.client import Client

REFUSED, NOT_TAKEN = "auth_failed", "invalid_request"

AGAIN_SECONDS = 5.0
"""A connection that is refused again so soon after a login needs something else."""


class Lender:
    """Logs in with what the daemon lacked. By itself it lends the ssh-agent of SSH_AUTH_SOCK; a subclass can ask.

    What a connection needed is lent again when it has to be opened again.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._passphrases: dict[str, str] = {}
        self._agents: set[str] = set()
        self._offered_agents: set[str] = set()
        self._logged_in: dict[str, float] = {}
        self._busy = False

    def lends(self, error: ClientError, _body: bytes = b"") -> bool:
        """Whether the request that was refused by ``error`` may be repeated, since a login has succeeded now.

        Otherwise ``error`` has the message of the last attempt.
        """
        opens = error.details.get("opens")
        # A login is a request too, and has the same remedy.
        if error.code != REFUSED or not isinstance(opens, str) or self._busy:
            return False
        if time.monotonic() - self._logged_in.get(opens, -AGAIN_SECONDS) < AGAIN_SECONDS:
            return False
        self._busy = True
        try:
            return self._logs_in(opens, error)
        finally:
            self._busy = False

    def passphrase(self, key: str, *, wrong: bool) -> str | None:
        """Return the passphrase of a private key, None for none; ``wrong`` says that the last one was wrong."""
        return None

    def logged_in(self, opens: str, error: ClientError) -> None:
        """Called after a login to the connection ``opens``, whose earlier attempt ``error`` refused."""

    def _logs_in(self, opens: str, error: ClientError) -> bool:
        known = opens in self._logged_in or error.details.get("key") in self._passphrases
        refused = self.log_in(opens) if known else error
        before = error
        while refused is not None:
            before = refused
            if not self._finds_more(opens, refused):
                error.message, error.details = refused.message, refused.details
                return False
            refused = self.log_in(opens)
            if refused is not None and refused.code == NOT_TAKEN:
                # The daemon has asked that agent already. Something else may help.
                self._agents.discard(opens)
                refused = before
        self._logged_in[opens] = time.monotonic()
        self.logged_in(opens, before)
        return True

    def _finds_more(self, opens: str, refused: ClientError) -> bool:
        """Whether there is something to lend that was not lent yet."""
        if refused.code != REFUSED:
            return False
        if "agent" in refused.details and opens not in self._offered_agents and os.environ.get("SSH_AUTH_SOCK"):
            self._offered_agents.add(opens)
            self._agents.add(opens)
            return True
        key, wrong = refused.details.get("key"), bool(refused.details.get("wrongPassphrase"))
        if not isinstance(key, str) or (key in self._passphrases and not wrong):
            return False
        found = self.passphrase(key, wrong=wrong)
        if found is not None:
            self._passphrases[key] = found
        return found is not None

    def log_in(self, opens: str) -> ClientError | None:
        """Log in with all that is lent; return the error, or None if that succeeded."""
        agent = os.environ.get("SSH_AUTH_SOCK") if opens in self._agents else None
        try:
            self._client.connection.login(opens, agent=agent, passphrases=self._passphrases)
        except ClientError as error:
            return error
        return None
