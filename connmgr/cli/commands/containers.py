"""``connmgr container``: containers and their logs, through the connections of their hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from connmgr.cli.connect import connect
from connmgr.cli.exits import NOT_FOUND, Failure
from connmgr.cli.fan_out import each
from connmgr.cli.group import Group
from connmgr.cli.output import counted, json_option
from connmgr.cli.selection import (
    Choice,
    ConnectionName,
    agreed,
    chosen,
    consent,
    jobs_option,
    means_many,
    require_some,
    selecting,
)
from connmgr.cli.sessions import write_all
from connmgr.client import Client, Name
from connmgr.client.names import find, is_pattern, telling
from connmgr.printable import visible

Command = Callable[..., Any]


@click.group(cls=Group)
def container() -> None:
    """Start and stop containers, and show their logs.

    The runtime does it (docker, podman, incus, lxc, machinectl), on the connection of the container's host. `connmgr
    start` and `connmgr restart` are for shells, `connmgr tunnel` for tunnels.
    """


@container.command(name="start")
@selecting
@jobs_option()
@json_option
def start(selectors: tuple[str, ...], choice: Choice, *, jobs: int, as_json: bool) -> None:
    """Start containers. Those that run stay as they are."""
    client, names = _chosen(selectors, choice)

    def begin(client: Client, id: str) -> str:
        client.connection.toggle(id, True)
        return "runs"

    each(client, names, begin, jobs, as_json=as_json)


@container.command(name="stop")
@selecting
@consent
@jobs_option()
@json_option
def stop(selectors: tuple[str, ...], choice: Choice, *, yes: bool, dry_run: bool, jobs: int, as_json: bool) -> None:
    """Stop containers, and all that runs in them.

    If a GLOB, several names or options choose them, it shows which, and asks first; without a terminal to ask on, it
    then needs --yes.
    """
    client, names = _chosen(selectors, choice)

    def end(client: Client, id: str) -> str:
        client.connection.toggle(id, False)
        return "is stopped"

    if _agreed("stop", names, asks=means_many(selectors, choice), yes=yes, dry_run=dry_run):
        each(client, names, end, jobs, as_json=as_json)


@container.command(name="restart")
@selecting
@consent
@jobs_option()
@json_option
def restart(selectors: tuple[str, ...], choice: Choice, *, yes: bool, dry_run: bool, jobs: int, as_json: bool) -> None:
    """Stop containers, and start them again.

    If a GLOB, several names or options choose them, it shows which, and asks first; without a terminal to ask on, it
    then needs --yes. A container that cannot be started again stays stopped, and its error says why.
    """
    client, names = _chosen(selectors, choice)

    def anew(client: Client, id: str) -> str:
        client.connection.toggle(id, False)
        client.connection.toggle(id, True)
        return "runs anew"

    if _agreed("restart", names, asks=means_many(selectors, choice), yes=yes, dry_run=dry_run):
        each(client, names, anew, jobs, as_json=as_json)


@container.command(name="logs")
@click.argument("name", metavar="CONNECTION", type=ConnectionName())
@click.option("-f", "--follow", is_flag=True, help="Continue with what comes, until Ctrl-C or the container's end.")
@click.option(
    "-n", "--tail", "lines", metavar="LINES", type=click.IntRange(0), help="Only the last lines of what there is."
)
def logs(name: str, lines: int | None, *, follow: bool) -> None:
    """Print what the main program of a container has printed.

    The runtime's own command prints it, in a shell of its own on the container's host; its exit code is this command's.
    """
    client = connect()
    kinds = _kinds(client) | {"kubernetes"}
    id = find(client.connection, name, accepts=lambda one: one.type in kinds, noun="container")
    wanted = {"follow": follow, "lines": lines}
    [answer] = client.post("/connection/info", connections=[id], log=wanted)["infos"]
    log = answer["log"]
    if log is None:
        why = "has a log that cannot be followed; leave out -f" if follow and _has_log(client, id) else "has no log"
        raise Failure(f"{visible('/'.join(answer['name']))}: a connection of type {answer['type']} {why}.")
    with client.shell.stream(log["connection"], argv=log["argv"], start=True, fresh=True) as stream:
        write_all(stream, "/".join(answer["name"]))
    raise click.exceptions.Exit(stream.exit_code or 0)


def _has_log(client: Client, id: str) -> bool:
    [answer] = client.post("/connection/info", connections=[id], log={})["infos"]
    return answer["log"] is not None


def _kinds(client: Client) -> set[str]:
    return {one.name for one in client.connection.types() if one.toggled}


def _chosen(selectors: tuple[str, ...], choice: Choice) -> tuple[Client, list[Name]]:
    """Return the chosen containers; a GLOB leaves out other connections, and a name must not mean one.

    :raises Failure: no container is chosen, or a name means another connection.
    """
    require_some(selectors, choice)
    client = connect()
    kinds = _kinds(client)
    names = chosen(client, selectors, choice).names
    if not any(is_pattern(one) for one in selectors) and selectors:
        for one in names:
            if one.type not in kinds:
                raise Failure(
                    f"{visible(one.path)} is a connection of type {one.type}, which cannot be started and stopped. "
                    "`connmgr start` starts its shell."
                )
    names = [one for one in names if one.type in kinds]
    if not names:
        raise Failure("No container is chosen: `connmgr ls` shows the types of connections.", NOT_FOUND)
    return client, names


def _agreed(verb: str, names: list[Name], *, asks: bool, yes: bool, dry_run: bool) -> bool:
    labels = telling(names)
    question = f"{verb.capitalize()} {counted(len(names), 'container')}?"
    return agreed([(verb, labels[one.id]) for one in names], question, yes=yes, dry_run=dry_run, asks=asks)
