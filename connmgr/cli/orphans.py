"""Files of jobs on machines that the vault does not know, for ``connmgr job orphans`` and ``doctor``."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import click

from connmgr.cli.daemon import connect
from connmgr.cli.duration import Duration
from connmgr.cli.names import ConnectionName
from connmgr.cli.output import json_option, lasting, print_json, print_table
from connmgr.client import Client, ClientError

DOCTOR_SECONDS = 5.0
"""Time for all machines together; a machine that does not answer a request in it is not asked again."""


@click.command(name="orphans")
@click.argument("name", metavar="CONNECTION", type=ConnectionName())
@click.option("--remove", is_flag=True, help="Remove those that do not run.")
@click.option(
    "--min-age",
    metavar="TIME",
    type=Duration(least=0),
    default=0.0,
    help="Only jobs that began at least this long ago; a minute at the least.",
)
@json_option
def orphans(name: str, min_age: float, *, remove: bool, as_json: bool) -> None:
    """List jobs of a machine that the vault does not know.

    Each comes with its state and its age. A restored backup and a removed connection leave such jobs. If daemons of
    other vaults use the same account of the machine, their jobs are listed too, and --remove deletes the ended ones
    from their users.
    """
    client = connect()
    found = client.jobs.orphans(client.connection.find(name), remove=remove, min_age=min_age)
    if as_json:
        print_json([one._asdict() for one in found])
    elif found:
        ages = ["-" if one.age is None else lasting(one.age) for one in found]
        print_table([(one.job, one.state, age, "removed" * one.removed) for one, age in zip(found, ages, strict=True)])


def orphans_of_open(url: str, auth_file: Path) -> tuple[dict[str, int], int, int]:
    """Ask the machines on which the daemon at ``url`` has shells; no link is opened.

    Return the number of orphans by the path of each connection that has some, the number of connections asked, and the
    number of those not asked or without an answer. Without a running daemon all are empty.
    """
    end = time.monotonic() + DOCTOR_SECONDS
    numbers: dict[str, int] = {}
    asked = 0
    with Client(url, auth_file, timeout=DOCTOR_SECONDS) as client:
        try:
            shells = client.daemon.status().shells
            open_now = dict.fromkeys(shell.connection for shell in shells if shell.state != "lost")
            paths = {one.id: one.path for one in client.connection.info(list(open_now))}
        except ClientError:
            return {}, 0, 0
        for id, path in paths.items():
            if time.monotonic() < end:
                with suppress(ClientError):
                    found = client.jobs.orphans(id)
                    asked += 1
                    if found:
                        numbers[path] = len(found)
    return numbers, asked, len(paths) - asked
