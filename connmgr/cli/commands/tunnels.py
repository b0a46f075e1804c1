"""``connmgr tunnel``: services of other machines on local ports, kept open by the daemon."""

from __future__ import annotations

import re
from typing import Any

import click

from connmgr.cli.connect import connect
from connmgr.cli.exits import Failure
from connmgr.cli.group import Group
from connmgr.cli.output import json_option, print_json, print_table
from connmgr.cli.selection import ConnectionName, reach
from connmgr.client import Client, ClientError
from connmgr.client.names import find
from connmgr.printable import visible

TUNNEL = "tunnel"
HEADING = ("NAME", "STATE", "ADDRESS", "STREAMS", "IN", "OUT", "LAST ERROR")
_PLACE = re.compile(r"(?:\[([^\]]+)\]:|([^:]+):)?(\d{1,5})", re.ASCII)


class TunnelGroup(Group):
    """Takes the name of a connection as short for ``open NAME``."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["open", *args]
        return super().resolve_command(ctx, args)


_named = click.argument("name", metavar="CONNECTION", type=ConnectionName())


@click.group(cls=TunnelGroup)
def tunnel() -> None:
    """Keep ports open that lead through connections.

    `connmgr tunnel CONNECTION PORT` brings a port of a machine to a port here. The daemon keeps it open, also when
    the link breaks, until `connmgr tunnel close`. `connmgr add sshDynamicTunnel` and others store other kinds.
    """


@tunnel.command(name="open")
@_named
@click.argument("place", metavar="[[HOST:]PORT]", required=False)
@click.option(
    "--local-port", metavar="PORT", type=click.IntRange(1, 65535), help="The port here; a free one otherwise."
)
@click.option(
    "--keep", is_flag=True, help="Store a new tunnel even if it cannot be opened now; the daemon goes on trying."
)
def open_(name: str, place: str | None, local_port: int | None, *, keep: bool) -> None:
    """Open a stored tunnel, or one to a PORT of a machine.

    With PORT the CONNECTION is a machine, and the service is stored below it under `services`, unless one to the same
    HOST and PORT is stored already: then that one is opened. HOST is another host that the machine can reach, by the
    name that the machine uses. Connect to the printed address. A new tunnel that cannot be opened is not stored unless
    --keep is given.
    """
    client = connect()
    if place is None:
        if local_port is not None:
            raise click.UsageError("--local-port needs a PORT, for a new tunnel; `connmgr edit` changes a stored one.")
        id, is_new = _tunnel(client, name), False
    else:
        id, is_new = _stored(client, reach(client, name), place, local_port)
    failure = None
    try:
        client.connection.toggle(id, True)
        if fault := _status(client, id)["lastError"]:
            failure = ClientError(fault["message"], fault["code"], 0)
    except ClientError as error:
        if keep or not is_new:
            raise
        failure = error
    if failure is not None and is_new and not keep:
        client.connection.remove([id])
        advice = "The tunnel was not stored: with --keep it is, and the daemon tries again."
        raise ClientError(f"{failure.message} {advice}", failure.code, failure.status) from failure
    _tell(client, id)


@tunnel.command(name="close")
@_named
def close(name: str) -> None:
    """Close a tunnel; it stays stored."""
    client = connect()
    id = _tunnel(client, name)
    client.connection.toggle(id, False)
    _tell(client, id)


@tunnel.command(name="ls")
@click.argument("pattern", metavar="[GLOB]", default="*")
@json_option
def ls(pattern: str, *, as_json: bool) -> None:
    """List tunnels that GLOB matches, with their states and addresses."""
    client = connect()
    names = {one.id: one.path for one in client.connection.choose(pattern)}
    tunnels = [one for one in client.tunnel.query() if one["connection"] in names]
    if as_json:
        print_json(tunnels)
    elif tunnels:
        print_table([HEADING, *(_row(names[one["connection"]], one) for one in tunnels)])


def _tunnel(client: Client, name: str) -> str:
    """Return the uuid of the tunnel ``name``.

    :raises Failure: the name means another connection, which would be started or stopped.
    """
    id = find(client.connection, name, accepts=lambda one: one.usage == TUNNEL, noun="tunnel")
    [one] = client.connection.info([id])
    if one.usage != TUNNEL:
        raise Failure(
            f"{visible(one.path)} is a connection of type {one.type}, not a tunnel. `connmgr tunnel open NAME PORT` "
            "stores a tunnel to a port of a machine; `connmgr container` starts and stops containers."
        )
    return id


def _stored(client: Client, machine: str, place: str, local_port: int | None) -> tuple[str, bool]:
    """Return the id of the service ``place`` of a machine, and whether it is new: the same one is not stored twice.

    Two services are the same if they lead to the same host and port; with a ``local_port``, also from the same one.
    """
    read = _PLACE.fullmatch(place)
    if read is None or not 0 < int(read[3]) < 1 << 16:
        raise click.UsageError(f"{place!r} is not of the form [HOST:]PORT.")
    host = read[1] or read[2]
    data: dict[str, Any] = {"type": "customService", "host": machine, "remotePort": int(read[3])}
    data |= {"address": host} if host else {}
    data |= {"localPort": local_port} if local_port else {}
    leads = machine, (host or "localhost").lower(), int(read[3])
    name = place
    for one in client.connection.info(client.connection.query(type="customService")):
        stored = one.data
        if (stored["host"], stored["address"].lower(), stored["remotePort"]) == leads:
            if local_port in (None, stored.get("localPort")):
                return one.id, False
            # Two tunnels of one name could not be closed by it.
            name = f"{place}-{local_port}"
    return client.connection.ensure(name, data)


def _status(client: Client, id: str) -> dict[str, Any]:
    [status] = client.tunnel.query([id])
    return status


def _tell(client: Client, id: str) -> None:
    status = _status(client, id)
    [info] = client.connection.info([id])
    why = f" ({status['lastError']['message']})" if status["lastError"] and status["state"] != "open" else ""
    click.echo(f"{visible(info.path)}  {status['state']}  {status['address'] or '-'}{visible(why)}")


def _row(name: str, status: dict[str, Any]) -> tuple[str, ...]:
    fault = status["lastError"]
    return (
        name,
        status["state"],
        status["address"] or "-",
        str(status["streams"]),
        _bytes(status["bytesIn"]),
        _bytes(status["bytesOut"]),
        fault["code"] if fault else "-",
    )


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
