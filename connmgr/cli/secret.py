"""``connmgr encrypt`` and ``connmgr decrypt``: values that only their principals can read."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from connmgr.cli.daemon import connect


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
