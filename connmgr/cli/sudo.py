"""``--sudo`` of commands: programs that run as another user over a connection, and the password for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import click

from connmgr.cli.progress import ask_secret, has_terminal, hush
from connmgr.client import Client, ClientError
from connmgr.printable import visible

OPTION, ROOT = "--sudo", "root"
TRIES = 3
"""Passwords that are asked for, as by sudo itself."""


def _named(_context: click.Context, _option: click.Parameter, user: str | None) -> str | None:
    if user is not None and not user.strip():
        raise click.BadParameter("no user is named; --sudo alone means root.")
    return user


sudo_option = click.option(
    OPTION,
    "sudo",
    callback=_named,
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
