"""``--sudo`` of commands: programs that run as another user over a connection, and the password for it."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

import click

from connmgr.client import Client, ClientError
from connmgr.printable import visible

OPTION, ROOT = "--sudo", "root"
TRIES = 3
"""Passwords that are asked for, as by sudo itself."""

sudo_option = click.option(
    OPTION,
    "sudo",
    metavar="[=USER]",
    help="Work as root, or as USER, by sudo; its password is that of `connmgr sudo-password`, or asked for.",
)


class WithSudo(click.Command):
    """A command with :data:`sudo_option`, whose value may be left out: it never takes the word after it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spelled_out(args))


def spelled_out(args: Sequence[str]) -> list[str]:
    """Return ``args`` with the user that a bare ``--sudo`` means; what follows ``--`` stays as it is."""
    end = args.index("--") if "--" in args else len(args)
    return [*(f"{OPTION}={ROOT}" if one == OPTION else one for one in args[:end]), *args[end:]]


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
        password = ask(visible(error.message), f"Password for sudo to {user}")
        self._client.connection.elevate(connection, user, password=password)
        return True


def lacking(error: object) -> tuple[str, str] | None:
    """Return the connection and the user for which sudo has no password, or a wrong one; None for other errors."""
    if not isinstance(error, ClientError) or not {"passwordRequired", "passwordRefused"} & error.details.keys():
        return None
    about = error.details.get("elevation")
    return (str(about["connection"]), str(about["user"])) if about else None


def has_terminal() -> bool:
    """Whether somebody can be asked: standard input may be a file, but not standard error."""
    if not sys.stderr.isatty():
        return False
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def ask(why: str, prompt: str) -> str:
    """Ask for a password on the terminal."""
    # Imported here, because most commands ask nothing.
    import getpass

    from connmgr.cli.progress import hush

    hush()
    click.echo(why, err=True)
    return getpass.getpass(f"{prompt}: ")


class OnConnection(Protocol):
    """The outcome of work on the connection with this uuid, and why it failed, if it did."""

    @property
    def connection(self) -> str: ...

    @property
    def failure(self) -> ClientError | Exception | None: ...


Outcome = TypeVar("Outcome", bound=OnConnection)


def with_passwords(
    client: Client, names: Mapping[str, str], user: str | None, work: Callable[[list[str]], Iterable[Outcome]]
) -> Iterator[Outcome]:
    """Yield the outcomes of ``work`` on the connections ``names``; ask for a password of sudo where it lacks one.

    There the work is done again, which is safe, because it has not begun.
    """
    lacks: list[Outcome] = []
    for outcome in work(list(names)):
        if lacking(outcome.failure) is None:
            yield outcome
        else:
            lacks.append(outcome)
    password = _asked_for_all([names[one.connection] for one in lacks], user or ROOT)
    if password is None:
        yield from lacks
        return
    again = [one.connection for one in lacks]
    for id in again:
        client.connection.elevate(id, user or ROOT, password=password)
    yield from work(again)


def _asked_for_all(names: Sequence[str], user: str) -> str | None:
    """Ask for the one password that sudo gets on all of ``names``; None if nobody can be asked or none is given."""
    if not names or not has_terminal():
        return None
    why = f"sudo wants a password on {', '.join(map(visible, names))}."
    return (
        ask(why, f"Password for sudo to {user} on {'it' if len(names) == 1 else 'all of them'} (empty for none)")
        or None
    )
