"""What a command lends for a failed login: its own ssh-agent, and passphrases and passwords that a person types."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeGuard, TypeVar

import click

from connmgr.cli.host_key import Doorkeeper
from connmgr.cli.progress import ask_secret, has_terminal
from connmgr.cli.sudo import ROOT, ask_for_all, lacking
from connmgr.client import Client, ClientError
from connmgr.client.http import Remedy
from connmgr.client.lending import REFUSED, Lender
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


class OnConnection(Protocol):
    """The outcome of work on the connection with this uuid, and why it failed, if it did."""

    @property
    def connection(self) -> str: ...

    @property
    def failure(self) -> ClientError | Exception | None: ...


Outcome = TypeVar("Outcome", bound=OnConnection)


def with_remedies(
    client: Client, names: Mapping[str, str], sudo: str | None, work: Callable[[list[str]], Iterable[Outcome]]
) -> Iterator[Outcome]:
    """Yield the outcomes of ``work`` on the connections ``names``, with what this program lends where a login fails.

    There the work is done again, which is safe, because it has not begun. One password for ``sudo`` is asked for all.
    """
    pending, tried, has_asked = list(names), set[str](), False
    while pending:
        refused: list[tuple[str, ClientError, Outcome]] = []
        lacks: list[Outcome] = []
        for outcome in work(pending):
            id, failure = outcome.connection, outcome.failure
            if lacking(failure) is not None and not has_asked:
                lacks.append(outcome)
            elif _is_refused(failure) and lacking(failure) is None and id not in tried:
                refused.append((id, failure, outcome))
            else:
                yield outcome
        # Only now, since the work may occupy the client's connection, or be done in threads, where nobody can be asked.
        pending = []
        for id, failure, outcome in refused:
            tried.add(id)
            if client.remedies(failure, connection=id):
                pending.append(id)
            else:
                yield outcome
        if not lacks:
            continue
        has_asked = True
        password = ask_for_all([names[one.connection] for one in lacks], sudo or ROOT)
        if password is None:
            yield from lacks
            continue
        for one in lacks:
            client.connection.elevate(one.connection, sudo or ROOT, password=password)
            pending.append(one.connection)


def _is_refused(failure: object) -> TypeGuard[ClientError]:
    return isinstance(failure, ClientError) and failure.code == REFUSED
