"""``connmgr vault status``, ``unlock``, ``lock`` and ``user``: who can read the vault's secrets."""

from __future__ import annotations

import click

from connmgr.cli.connect import ask_passphrase, connect, kept_session
from connmgr.cli.group import Group
from connmgr.cli.output import counted, json_option, print_json, print_table
from connmgr.client import ClientError
from connmgr.printable import visible


@click.command()
@json_option
def status(*, as_json: bool) -> None:
    """Show whether the vault has users, and which one is unlocked."""
    found = connect().vault.status()
    if as_json:
        print_json(
            {"hasUsers": found.has_users, "user": found.user, "principals": found.principals, "users": found.users}
        )
        return
    rows = [("users", "yes" if found.has_users else "none: every client may read its secrets")]
    if found.has_users:
        rows.append(("unlocked", found.user or "nobody"))
    if found.users:
        rows.append(("all users", ", ".join(found.users)))
    print_table([*rows, ("readable", ", ".join(found.principals) or "nothing")])


@click.command()
@click.argument("user")
def unlock(user: str) -> None:
    """Unlock a user for later commands.

    The user stays unlocked until connmgr vault lock or the end of the daemon. It asks for the passphrase on the
    terminal; other standard input has it as a line. Later commands of yours, in any terminal, continue this session.
    Its token is in a file beside the auth file that only you can read. connmgr --unlock USER unlocks for a single
    command instead, and keeps nothing.
    """
    client = connect()
    client.vault.unlock(user, ask_passphrase(f"Passphrase of {user}"))
    kept_session().keep(client.session_token)


@click.command()
def lock() -> None:
    """Lock the user that connmgr vault unlock unlocked."""
    connect().vault.lock()
    kept_session().forget()


@click.group(cls=Group)
def user() -> None:
    """Look after the vault's users."""


@user.command()
@click.argument("name", metavar="USER")
def add(name: str) -> None:
    """Add a user, and ask for the passphrase. The first user locks the vault for everybody else."""
    client = connect()
    if not client.vault.status().has_users:
        click.echo(
            "This is the vault's first user. From now on every script and session that needs a secret must unlock "
            f"one: `connmgr vault unlock {name}`, or `connmgr --unlock {name} …`.",
            err=True,
        )
    client.vault.add_user(name, ask_passphrase(f"Passphrase of {name}", confirm=True))


@user.command()
@click.argument("name", metavar="USER")
def passphrase(name: str) -> None:
    """Change a user's passphrase. It asks for the old and the new one, or reads them as two lines."""
    old = ask_passphrase(f"Passphrase of {name}")
    connect().vault.change_passphrase(name, old, ask_passphrase("New passphrase", confirm=True))


@user.command()
@click.argument("name", metavar="USER")
@click.option("--force", is_flag=True, help="Remove the user even if secrets are lost that nobody else can read.")
@json_option
def rm(name: str, *, force: bool, as_json: bool) -> None:
    """Remove a user, and list connections whose secrets must change.

    The user could read their secrets: change these passwords and keys on their machines. Secrets that nobody else can
    read are sealed anew, to the other user that is unlocked, or for every remaining user. That takes the user to be
    unlocked, or the passphrase, which the command asks for.
    """
    client = connect()
    try:
        removed = client.vault.remove_user(name, force=force)
    except ClientError as error:
        if error.code not in ("last_principal", "vault_locked"):
            raise
        click.echo(f"connmgr: {visible(error.message)}", err=True)
        entered = ask_passphrase(f"Passphrase of {name}")
        if not entered:
            raise
        removed = client.vault.remove_user(name, passphrase=entered, force=force)
    if removed.resealed:
        reader = "every remaining user" if removed.heir == "vault" else removed.heir
        if removed.heir == "vault" and not client.vault.status().has_users:
            reader = "every client of the daemon"
        number = counted(len(removed.resealed), "connection")
        click.echo(f"connmgr: secrets of {number} that only {name} could read can be read by {reader} now.", err=True)
    if removed.lost:
        click.echo(f"connmgr: secrets of {counted(len(removed.lost), 'connection')} are lost.", err=True)
    if as_json:
        print_json(removed._asdict())
    elif removed.connections:
        print_table([(one.id, one.path) for one in client.connection.info(removed.connections)])
