"""``connmgr container``: containers and their logs, through the connections of their hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from connmgr.cli.connect import connect
from connmgr.cli.exits import NOT_FOUND, Failure
from connmgr.cli.fan_out import Change, changing, each
from connmgr.cli.group import Group
from connmgr.cli.output import counted, json_option
from connmgr.cli.plain import write_all
from connmgr.cli.selection import (
    Choice,
    ConnectionName,
    chosen,
    jobs_option,
    require_some,
    selecting,
)
from connmgr.client import Client, Name
from connmgr.client.names import find, is_pattern, telling
from connmgr.printable import visible

Command = Callable[..., Any]


@click.group(cls=Group)
def container() -> None:
    """Start and stop containers, and show their logs.

    The container's runtime (docker, podman, incus, lxc or machinectl) is called on the connection of the container's
    host. `connmgr start` and `connmgr restart` are for shells, `connmgr tunnel` for tunnels.
    """


@container.command(name="start")
@selecting
@jobs_option()
@json_option
def start(selectors: tuple[str, ...], choice: Choice, *, jobs: int, as_json: bool) -> None:
    """Start containers. Running ones are left alone."""
    client, names = _chosen(selectors, choice)

    def begin(client: Client, id: str) -> str:
        client.connection.toggle(id, True)
        return "runs"

    each(client, names, begin, jobs, as_json=as_json)


@container.command(name="stop")
@changing
def stop(change: Change) -> None:
    """Stop containers, and all that runs in them.

    If a GLOB, several names or options choose them, it shows which, and asks first; without a terminal to ask on, it
    then needs --yes.
    """

    def end(client: Client, id: str) -> str:
        client.connection.toggle(id, False)
        return "is stopped"

    _change("stop", change, end)


@container.command(name="restart")
@changing
def restart(change: Change) -> None:
    """Stop containers, and start them again.

    If a GLOB, several names or options choose them, it shows which, and asks first; without a terminal to ask on, it
    then needs --yes. A container that cannot be started again stays stopped, and its error says why.
    """

    def anew(client: Client, id: str) -> str:
        client.connection.toggle(id, False)
        client.connection.toggle(id, True)
        return "runs anew"

    _change("restart", change, anew)


def _change(verb: str, change: Change, work: Callable[[Client, str], str]) -> None:
    client, names = _chosen(change.selectors, change.choice)
    labels = telling(names)
    question = f"{verb.capitalize()} {counted(len(names), 'container')}?"
    change.do(client, names, [(verb, labels[name.id]) for name in names], question, work)


@container.command(name="logs")
@click.argument("name", metavar="CONNECTION", type=ConnectionName())
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines, until Ctrl-C or the container's end.")
@click.option(
    "-n", "--tail", "lines", metavar="LINES", type=click.IntRange(0), help="Only the last LINES lines of the log."
)
def logs(name: str, lines: int | None, *, follow: bool) -> None:
    """Print the output of a container's main program.

    It runs the runtime's own command for logs, in a new shell on the container's host, and exits with its exit code.
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
    if not any(is_pattern(selector) for selector in selectors) and selectors:
        for name in names:
            if name.type not in kinds:
                raise Failure(
                    f"{visible(name.path)} is a connection of type {name.type}, which cannot be started and stopped. "
                    "`connmgr start` starts its shell."
                )
    names = [name for name in names if name.type in kinds]
    if not names:
        raise Failure("No container is chosen: `connmgr ls` shows the types of connections.", NOT_FOUND)
    return client, names
