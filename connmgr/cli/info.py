"""``connmgr info``: shows all that is stored about a connection."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import click

from connmgr.cli.daemon import connect
from connmgr.cli.ls import infos_of, used
from connmgr.cli.outcome import shell_label
from connmgr.cli.output import ago, json_option, print_json, print_table
from connmgr.cli.selection import Choice, chosen, means_many, require_some, selecting
from connmgr.cli.status import at_work
from connmgr.client import Client, Connection
from connmgr.client.names import split_elevation
from connmgr.client.results import RunningShell
from connmgr.printable import visible

SECRET = "(secret)"  # noqa: S105 - what is shown in its place


@click.command()
@selecting
@click.option("--refresh", is_flag=True, help="Open it and close it again first, to see whether it works.")
@json_option
def info(selectors: tuple[str, ...], choice: Choice, *, refresh: bool, as_json: bool) -> None:
    """Show connections, and what each would dial.

    It also shows what the connection's shells do. Secrets stay encrypted. CONNECTION may be an address: USER@HOST or
    ssh://[USER@]HOST[:PORT]. --json prints an object for one name, and an array for a GLOB, several names or options.

    "dials" is the host that CONNECTION leads to, according to ~/.ssh/config of the daemon's user, "through" the hosts
    on the way there, and "offers" the private keys that are offered to it.
    """
    require_some(selectors, choice)
    client = connect()
    ids = [one.id for one in chosen(client, selectors, choice, addresses=True).names]
    if refresh:
        for id in ids:
            for sentence in client.connection.refresh(id).skipped:
                click.echo(f"connmgr: {visible(sentence)}", err=True)
    answers = infos_of(client, ids, dialled=True)
    if as_json:
        print_json(answers if means_many(selectors, choice) else answers[0])
        return
    for number, answer in enumerate(answers):
        if number:
            click.echo()
        _show(client, answer)


def _show(client: Client, answer: Mapping[str, Any]) -> None:
    one, shells = Connection.read(answer), client.shell.list(answer["connection"])
    rows = [
        ("name", one.path),
        ("uuid", one.id),
        ("category", "/".join(one.category)),
        ("type", one.type),
        *((name, value) for name, value in _flat(one.data)),
        *_dialled(answer["dialled"]),
        ("last used", used(one)),
        ("last modified", ago(one.last_modified)),
        *((f"seen: {name}", str(value)) for name, value in one.state.items()),
        *((_label(shell.status), f"{at_work(shell)}, in {shell.directory}") for shell in shells),
    ]
    print_table(rows)


def _dialled(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the host that would be dialled, and those on the way to it."""
    if "error" in found:
        yield "dials", str(found["error"]["message"])
        return
    for at, one in enumerate(reversed(found["hosts"])):
        yield "through" if at else "dials", _login(one)
    for one in found["hosts"][-1:]:
        keys = [*one["identities"], *(["an ssh-agent's keys"] if one["agent"] else [])]
        yield "offers", ", ".join(keys) or "no key"


def _login(host: Mapping[str, Any]) -> str:
    name = f"[{host['host']}]" if ":" in host["host"] else host["host"]
    return f"{host['user']}@{name}:{host['port']}"


def _label(status: RunningShell) -> str:
    _, user = split_elevation(status.connection)
    if status.session is None:
        return f"shell as {user}" if user else "shell"
    return f"shell {shell_label(status.session, user)}"


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in data.items():
        if isinstance(value, Mapping) and "encryptedToken" in value:
            yield prefix + name, SECRET
        elif isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif value is not None:
            yield prefix + name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
