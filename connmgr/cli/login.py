"""What a command lends for a failed login: its own ssh-agent, and passphrases that a person types."""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import Any

import click

from connmgr.cli.host_key import Doorkeeper
from connmgr.client import Client, ClientError
from connmgr.client.http import Remedy
from connmgr.client.lending import Lender
from connmgr.printable import visible

MAX_TRIES = 3
"""Most questions for the passphrase of one key, as with ssh (NumberOfPasswordPrompts)."""


def remedies(client: Client, doorkeeper: Doorkeeper, *, asks: bool = True) -> Remedy:
    """Return the remedy of a command for unknown host keys and for logins; without ``asks`` it asks nothing."""
    lender = _Person(client) if asks else Lender(client)
    return lambda error, body: (asks and doorkeeper.admits(error, body)) or lender.lends(error)


class _Person(Lender):
    """Asks for passphrases on the terminal, if there is one."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._questions = Counter[str]()
        self._offered: set[str] = set()

    def passphrase(self, key: str, *, wrong: bool) -> str | None:
        if not _has_terminal() or self._questions[key] == MAX_TRIES:
            return None
        import getpass

        from connmgr.cli.progress import hush

        hush()
        self._questions[key] += 1
        shown = os.path.expanduser(key) if key.startswith("~/") else key  # noqa: PTH111 - a text, as ssh shows it
        # As with ssh, an empty one skips the key.
        return getpass.getpass(f"Enter passphrase for key '{visible(shown)}': ") or None

    def logged_in(self, opens: str, error: ClientError) -> None:
        """Ask whether the passphrase shall be kept with the connection that has the key."""
        key, connection = error.details.get("key"), error.details.get("connection")
        asked = key in self._passphrases and sys.stdin.isatty()
        if not asked or not isinstance(connection, str) or connection in self._offered:
            return
        self._offered.add(connection)
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
        self.log_in(opens)


def _has_terminal() -> bool:
    """Whether a person can be asked, even if standard input is a pipe, as under rsync."""
    if not sys.stderr.isatty():
        return False
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
