"""What a command lends for a failed login: passphrases that a person types, and its own ssh-agent."""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import Any

import click

from connmgr.cli.host_key import Doorkeeper
from connmgr.client import Client, ClientError
from connmgr.client.http import Remedy
from connmgr.printable import visible

MAX_TRIES = 3
"""Most questions for the passphrase of one key, as with ssh (NumberOfPasswordPrompts)."""

REFUSED = "auth_failed"


def remedies(client: Client, doorkeeper: Doorkeeper, *, asks: bool = True) -> Remedy:
    """Return the remedy of a command for unknown host keys and for logins; without ``asks`` it asks nothing."""
    lender = Lender(client, asks=asks)
    return lambda error, body: (asks and doorkeeper.admits(error, body)) or lender.lends(error)


class Lender:
    """Logs in with what the daemon lacked: this environment's ssh-agent, and passphrases, asked on the terminal.

    What a connection needed is lent again if it has to be opened again.
    """

    def __init__(self, client: Client, *, asks: bool) -> None:
        self._client = client
        self._asks = asks
        self._passphrases: dict[str, str] = {}
        self._questions = Counter[str]()
        self._agent_lent: set[str] = set()
        self._logged_in: set[str] = set()
        self._busy = False

    def lends(self, error: ClientError) -> bool:
        """Whether the request that was refused by ``error`` may be repeated, since a login has succeeded now."""
        opens = error.details.get("opens")
        # A login is a request too, and has this remedy.
        if error.code != REFUSED or not isinstance(opens, str) or opens in self._logged_in or self._busy:
            return False
        self._busy = True
        try:
            return self._logs_in(opens, error)
        finally:
            self._busy = False

    def _logs_in(self, opens: str, error: ClientError) -> bool:
        refused: ClientError | None = error
        while refused is not None:
            if not self._finds_more(opens, refused):
                if refused is not error:
                    # The later answer says more than the one that the request had.
                    error.message, error.details = refused.message, refused.details
                return False
            refused = self._refused(opens)
        self._logged_in.add(opens)
        self._offer_to_keep(opens, error)
        return True

    def _finds_more(self, opens: str, refused: ClientError) -> bool:
        """Whether there is something to lend that was not lent yet."""
        if refused.code != REFUSED:
            return False
        if "agent" in refused.details and opens not in self._agent_lent and os.environ.get("SSH_AUTH_SOCK"):
            self._agent_lent.add(opens)
            return True
        key = refused.details.get("key")
        return isinstance(key, str) and self._asked_for(key, wrong=bool(refused.details.get("wrongPassphrase")))

    def _asked_for(self, key: str, *, wrong: bool) -> bool:
        if not self._asks or not (sys.stdin.isatty() and sys.stderr.isatty()):
            return False
        if (key in self._passphrases and not wrong) or self._questions[key] == MAX_TRIES:
            return False
        import getpass

        from connmgr.cli.progress import hush

        hush()
        self._questions[key] += 1
        shown = os.path.expanduser(key) if key.startswith("~/") else key  # noqa: PTH111 - a text, as ssh shows it
        entered = getpass.getpass(f"Enter passphrase for key '{visible(shown)}': ")
        if not entered:
            # As with ssh, an empty one skips the key.
            return False
        self._passphrases[key] = entered
        return True

    def _refused(self, opens: str) -> ClientError | None:
        """Log in with all that is lent; return the error, or None if that succeeded."""
        agent = os.environ.get("SSH_AUTH_SOCK") if opens in self._agent_lent else None
        try:
            self._client.connection.login(opens, agent=agent, passphrases=self._passphrases)
        except ClientError as error:
            return error
        return None

    def _offer_to_keep(self, opens: str, error: ClientError) -> None:
        """Ask whether the passphrase shall be kept with the connection that has the key."""
        key, connection = error.details.get("key"), error.details.get("connection")
        if key not in self._passphrases or not isinstance(connection, str):
            return
        stored = self._client.connection.info([connection])[0]
        identity = stored.data.get("identity")
        if not isinstance(identity, dict):
            # The key comes from ~/.ssh/config, where it is one of several; an identity would be the only one.
            return
        question = f"Keep this passphrase, sealed in the vault, for {visible(stored.path)}?"
        if not click.confirm(question, err=True):
            return
        data: dict[str, Any] = {"type": stored.type, **stored.data}
        data["identity"] = {**identity, "passphrase": self._passphrases[str(key)]}
        try:
            self._client.connection.update(connection, data=data)
        except ClientError as refused:
            click.echo(f"The passphrase is not kept: {visible(refused.message)}", err=True)
            return
        # The change has closed the link.
        self._refused(opens)
