"""``connmgr inventory``: connections that follow a list of hosts."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from connmgr.cli.connect import connect
from connmgr.cli.options import Group, WithCommand
from connmgr.cli.output import Duration, ago, json_option, lasting, plural, print_json, print_list, print_table
from connmgr.cli.selection import category_path
from connmgr.printable import visible

if TYPE_CHECKING:
    from connmgr.contract.inventory import InventoryChanges, InventoryInfo

SHOWN = 10


@click.group(cls=Group)
def inventory() -> None:
    """Let connections follow a list of hosts.

    Something else keeps that list: it is an inventory of Ansible with its plugins, what a program prints, or a file, on
    the daemon's machine. Hosts that are no longer listed are marked by the label `vanished`, and never removed.
    """


@inventory.command(name="add", cls=WithCommand)
@click.argument("name")
@click.option(
    "--ansible",
    metavar="SOURCE",
    help="An inventory of Ansible or the configuration of a plugin, as for `ansible-inventory -i`.",
)
@click.option(
    "--file",
    metavar="FILE",
    help="A file with one host per line and groups in brackets, or with what an inventory script prints.",
)
@click.option("--every", metavar="TIME", type=Duration(least=10), help="Renew it at this interval, such as 15m.")
@click.option("--timeout", metavar="TIME", type=Duration(), help="Time that the source may take; 60s by default.")
@click.option("--category", metavar="PATH", help="Where new connections are; by default in one with its name.")
@click.option("--user", metavar="USER", help="Log in as this user where the source names none.")
@click.option("--port", metavar="PORT", type=click.IntRange(1, 65535), help="The port where the source names none.")
@click.option("--key-file", metavar="FILE", help="The file of a private key where the source names none.")
@click.option("--gateway", metavar="CONNECTION", help="Go through this connection.")
@click.option("--replace", is_flag=True, help="Replace the inventory of this name; its connections stay.")
@click.option("--dry-run", is_flag=True, help="Store nothing; show what would change.")
@json_option
def add(
    name: str,
    command: tuple[str, ...],
    *,
    ansible: str | None,
    file: str | None,
    every: float | None,
    timeout: float | None,
    category: str | None,
    user: str | None,
    port: int | None,
    key_file: str | None,
    gateway: str | None,
    replace: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Add an inventory: connmgr inventory add NAME --ansible SOURCE, --file FILE or -- COMMAND.

    Each of its hosts becomes a connection with the labels `inventory=NAME`, `inventory-host=HOST`, and `group-NAME` for
    each of its groups. What the source says of a host wins whenever it is renewed; what it does not say, such as
    passwords, is yours and stays.
    """
    from connmgr.contract.inventory import HostDefaults

    if sum((ansible is not None, file is not None, bool(command))) != 1:
        raise click.UsageError("Give one of --ansible, --file and a command after --.")
    client = connect()
    through = None if gateway is None else client.connection.find(gateway)
    values = {
        # A list of hosts has a comma, and is not a path.
        "ansible": ansible if ansible is None or "," in ansible else _path(ansible),
        "file": None if file is None else _path(file),
        "command": list(command) or None,
        "every": every,
        "timeout": timeout,
        "category": None if category is None else list(category_path(client, category)),
        "defaults": HostDefaults(user=user, port=port, key_file=key_file, gateway=through),
    }
    fields = {field: value for field, value in values.items() if value is not None}
    _show(client.inventories.add(name, replace=replace, dry_run=dry_run, **fields), dry_run=dry_run, as_json=as_json)


@inventory.command(name="renew")
@click.argument("name", metavar="INVENTORY")
@click.option("--dry-run", is_flag=True, help="Change nothing; show what would change.")
@json_option
def renew(name: str, *, dry_run: bool, as_json: bool) -> None:
    """Ask the source of an inventory now, and follow it."""
    _show(connect().inventories.renew(name, dry_run=dry_run), dry_run=dry_run, as_json=as_json)


@inventory.command(name="ls")
@json_option
def list_inventories(*, as_json: bool) -> None:
    """List inventories: their sources, how many hosts they have, and how their last renewal went."""

    def row(inventory: InventoryInfo) -> tuple[str, ...]:
        return inventory.name, _hosts(inventory), _renewal(inventory), _source(inventory)

    print_list(connect().inventories.query(), row, as_json=as_json)


@inventory.command(name="rm")
@click.argument("names", metavar="INVENTORY...", nargs=-1, required=True)
def remove(names: tuple[str, ...]) -> None:
    """Remove inventories; their connections stay, and follow no list any more."""
    client = connect()
    for name in names:
        client.inventories.remove(name)


def _path(text: str) -> str:
    return str(Path(text).expanduser().absolute())


def _hosts(inventory: InventoryInfo) -> str:
    return plural(inventory.hosts, "host") + (f", {inventory.vanished} vanished" if inventory.vanished else "")


def _renewal(inventory: InventoryInfo) -> str:
    if inventory.error is not None:
        return f"failed: {visible(inventory.error)}"
    was = "never renewed" if inventory.renewed is None else f"renewed {ago(inventory.renewed)}"
    if inventory.next is None:
        return was
    return f"{was}, next in {lasting(max(0.0, (inventory.next - datetime.now(timezone.utc)).total_seconds()))}"


def _source(inventory: InventoryInfo) -> str:
    if inventory.command is not None:
        return shlex.join(inventory.command)
    return f"ansible {inventory.ansible}" if inventory.ansible is not None else str(inventory.file)


def _show(changes: InventoryChanges, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json(changes)
        return
    # In the order in which a person cares: what came, what changed, what is away, what is back.
    lists = ("added", "changed", "vanished", "returned")
    print_table([(name, _names(getattr(changes, name))) for name in lists if getattr(changes, name)])
    for host in changes.left_out:
        click.echo(f"left out: {visible(host.host)}: {visible(host.reason)}", err=True)
    click.echo(f"{plural(changes.hosts, 'host')}." + (" Nothing was changed: --dry-run." if dry_run else ""), err=True)


def _names(hosts: Sequence[str]) -> str:
    rest = f" and {len(hosts) - SHOWN} more" if len(hosts) > SHOWN else ""
    return ", ".join(map(visible, hosts[:SHOWN])) + rest
