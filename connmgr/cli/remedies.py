"""What a command does when it is refused: asks about unknown host keys, logins, and passwords of sudo and the vault."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from connmgr.cli.progress import ask_secret, has_terminal, hush
from connmgr.client import Client, ClientError
from connmgr.client.repeat import Remedy
from connmgr.client.sessions import Lender
from connmgr.printable import visible

if TYPE_CHECKING:
    from connmgr.contract.vault import UsedRecovery

VAULT = "vault"
"""The principal that any unlocked user opens."""

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
        if not has_terminal() or self._questions[key] == MAX_TRIES:
            return None
        self._questions[key] += 1
        shown = os.path.expanduser(key) if key.startswith("~/") else key  # noqa: PTH111 - a text, as ssh shows it
        # As with ssh, an empty one skips the key.
        return ask_secret(f"Enter passphrase for key '{visible(shown)}'") or None

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


UNKNOWN, CHANGED = "host_key_unknown", "host_key_changed"


class Doorkeeper:
    """Trusts keys of unknown hosts: those with one of ``fingerprints``, or without any, those a person accepts."""

    def __init__(self, client: Client, fingerprints: Sequence[str] = ()) -> None:
        self._client = client
        self._fingerprints = fingerprints
        self.admitted = 0
        """Number of keys trusted so far."""

    def admits(self, error: ClientError, body: bytes) -> bool:
        """Whether the request with ``body``, refused by ``error``, may be repeated because a key is now trusted."""
        details = error.details
        if error.code != UNKNOWN or not {"host", "hostKey", "fingerprint"} <= details.keys():
            return False
        connection = json.loads(body).get("connection")
        if not isinstance(connection, str) or not self._accepted(details):
            return False
        self._client.hostkey.trust(connection, details["host"], details["hostKey"])
        self.admitted += 1
        click.echo(f"trusted  {visible(details['host'])}  {visible(details['fingerprint'])}", err=True)
        return True

    def _accepted(self, details: dict[str, Any]) -> bool:
        if self._fingerprints:
            return details["fingerprint"] in self._fingerprints
        return sys.stdin.isatty() and sys.stderr.isatty() and _is_trusted(details)


def _is_trusted(details: dict[str, Any]) -> bool:
    hush()
    kind = visible(details["hostKey"].split()[0])
    click.echo(f"The host key of {visible(details['host'])} is unknown:", err=True)
    click.echo(f"{kind} {visible(details['fingerprint'])}", err=True)
    while True:
        answer = click.prompt("Trust this host? (yes/no/fingerprint)", err=True, prompt_suffix=" ").strip()
        if answer == details["fingerprint"] or answer.lower() == "yes":
            return True
        if answer.lower() == "no":
            return False


TRIES = 3
"""Passwords that are asked for, as by sudo itself."""

LOCKED = frozenset({"secret_locked", "vault_locked"})
WRONG = "unlock_failed"


class Unlocker:
    """Asks on the terminal for the passphrase of a vault user when a command needs a locked secret.

    The user is unlocked for the session of the command: for this one alone, or for later ones, too, if it continues
    that of ``connmgr vault unlock``.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._tries = 0

    def admits(self, error: ClientError, _body: bytes) -> bool:
        """Whether the request refused by ``error`` may be repeated because a user is unlocked now."""
        if error.code not in LOCKED or not has_terminal():
            return False
        hush()
        click.echo(visible(error.message), err=True)
        named = [str(one) for one in error.details.get("principals", ()) if one != VAULT]
        user = named[0] if len(named) == 1 else click.prompt("Vault user (empty for none)", "", err=True).strip()
        while user and self._tries < TRIES:
            self._tries += 1
            # An empty one gives up, as with the passphrase of a key.
            passphrase = ask_secret(f"Passphrase of {visible(user)}")
            if not passphrase:
                return False
            try:
                tell_recoveries(user, self._client.vault.unlock(user, passphrase))
            except ClientError as refused:
                if refused.code != WRONG:
                    raise
                click.echo(visible(refused.message), err=True)
            else:
                return True
        return False


def tell_recoveries(user: str, used: Sequence[UsedRecovery]) -> None:
    """Tell that recovery keys have set the passphrase of ``user``, who may not know."""
    for one in used:
        click.echo(
            f"connmgr: Recovery key {one.recovery} set a new passphrase of {user} at {one.used:%Y-%m-%d %H:%M} UTC. "
            f"If that was not you, tell the owner of this machine; either way `connmgr vault recovery rotate "
            f"{one.recovery}` makes its words worthless.",
            err=True,
        )


class Sudoer:
    """Asks on the terminal for passwords of sudo that are not stored, or were refused."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._tries: Counter[tuple[str, str]] = Counter()

    def admits(self, error: ClientError, _body: bytes) -> bool:
        """Whether the request refused by ``error`` may be repeated because the daemon now has a password."""
        about = lacking(error)
        if about is None:
            return False
        self._tries[about] += 1
        if self._tries[about] > TRIES or not has_terminal():
            return False
        connection, user = about
        hush()
        click.echo(visible(error.message), err=True)
        password = ask_secret(f"Password for sudo to {user}")
        self._client.connection.elevate(connection, user, password=password)
        return True


def lacking(error: object) -> tuple[str, str] | None:
    """Return the connection and the user for which sudo has no password, or a wrong one; None for other errors."""
    if not isinstance(error, ClientError) or not {"passwordRequired", "passwordRefused"} & error.details.keys():
        return None
    about = error.details.get("elevation")
    return (str(about["connection"]), str(about["user"])) if about else None


def ask_for_all(names: Sequence[str], user: str) -> str | None:
    """Ask for the one password that sudo gets on all of ``names``; None if nobody can be asked or none is given."""
    if not has_terminal():
        return None
    hush()
    click.echo(f"sudo wants a password on {', '.join(map(visible, names))}.", err=True)
    return (
        ask_secret(f"Password for sudo to {user} on {'it' if len(names) == 1 else 'all of them'} (empty for none)")
        or None
    )
