"""``connmgr encrypt``, ``decrypt`` and ``sudo-password``: values that only their principals can read."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from connmgr.cli.connect import connect
from connmgr.cli.exits import Failure
from connmgr.cli.selection import ConnectionName, find_category
from connmgr.client import Client
from connmgr.client.names import full_path
from connmgr.printable import visible


@click.command()
@click.option("--principal", "principals", metavar="NAME", multiple=True, help="Who may read it: vault users or vault.")
def encrypt(principals: tuple[str, ...]) -> None:
    """Encrypt a value, and print it as JSON.

    It asks for the value on the terminal. Other standard input is the value, without a final newline. Without
    --principal the unlocked user may read it, else anybody who may use the vault.
    """
    if sys.stdin.isatty():
        value = click.prompt("Value", hide_input=True, err=True)
    else:
        value = sys.stdin.read().removesuffix("\n")
    click.echo(json.dumps(connect().secret.encrypt(value, list(principals) or None)))


@click.command()
def decrypt() -> None:
    """Decrypt what connmgr encrypt has printed.

    It prints the value. It reads the JSON from standard input. An encrypted field from connmgr info --json will do too.
    """
    if sys.stdin.isatty():
        click.echo("Paste the encrypted form, then Ctrl-D:", err=True)
    try:
        encrypted: Any = json.loads(sys.stdin.read())
    except ValueError as error:
        raise click.UsageError(f"Standard input is not JSON: {error}") from error
    if not isinstance(encrypted, dict):
        raise click.UsageError("Standard input is not the encrypted form of a value.")
    click.echo(connect().secret.decrypt(encrypted))


@click.command(name="sudo-password")
@click.argument("name", metavar="[CONNECTION]", type=ConnectionName(), required=False)
@click.option("--category", metavar="PATH", help="For all connections in this category and below it, in place of one.")
@click.option("--remove", is_flag=True, help="Remove the stored password.")
@click.option("--show", is_flag=True, help="Print the connection or category whose stored password --sudo would use.")
def sudo_password(name: str | None, category: str | None, *, remove: bool, show: bool) -> None:
    """Store the password for --sudo of other commands.

    The password of a connection outranks that of its category, and the nearest category upwards comes first. It is
    asked for on the terminal; other standard input is the password, without a final newline. No command prints it.
    """
    if (name is None) == (category is None):
        raise click.UsageError("Give CONNECTION or --category.")
    if remove and show:
        raise click.UsageError("Give --remove or --show.")
    client = connect()
    of = (
        {"connection": client.connection.find(name)}
        if name is not None
        else {"category": find_category(client, category or "")}
    )
    if show:
        click.echo(_source(client, client.secret.sudo_source(**of)))
        return
    client.secret.sudo(None if remove else _read_password(), **of)


def _source(client: Client, source: dict[str, str]) -> str:
    if "connection" in source:
        return f"connection {visible(full_path(client.connection.info([source['connection']])[0]))}"
    if "category" in source:
        [category] = client.category.info([source["category"]])
        return f"category {visible('/'.join(category.name[1:]) or '/')}"
    return "none"


def _read_password() -> str:
    if sys.stdin.isatty():
        password: str = click.prompt("Password for sudo", hide_input=True, err=True)
    else:
        password = sys.stdin.read().removesuffix("\n")
    if not password:
        raise Failure("Standard input is empty: nothing was stored. --remove removes a stored password.")
    return password
