"""``connmgr start``, ``restart``, ``disconnect`` and ``container``: the shells of connections, and containers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any, NamedTuple

import click

from connmgr.cli.connect import connect
from connmgr.cli.exits import NOT_FOUND, Failure
from connmgr.cli.fan_out import Change, changing, each
from connmgr.cli.options import Group
from connmgr.cli.output import json_option, plural
from connmgr.cli.plain import SHARED, own_or, session_or_none, write_all
from connmgr.cli.selection import (
    Choice,
    ConnectionName,
    jobs_option,
    require_some,
    select_connections,
    selecting,
)
from connmgr.cli.sessions import shell_label
from connmgr.client import Client, ClientError, Name
from connmgr.client.names import find, is_pattern, split_elevation, telling
from connmgr.printable import visible
from connmgr.processes import posix_session_of

_session = click.option(
    "--session",
    metavar="NAME",
    help="Only the shell of this name, or of this terminal, such as pts/3; - is the connection's own shell.",
)

_own_session = click.option(
    "--session",
    metavar="NAME",
    help="The shell of this name; - is the connection's own shell. By default that of this terminal.",
)


class NamedShell(NamedTuple):
    """A shell by the id of its connection, and its name; None is the connection's own shell."""

    connection: str
    session: str | None


@click.command()
@changing
@_session
def disconnect(change: Change, session: str | None) -> None:
    """End the shells of connections, and their links.

    This ends the commands that run in the shells, those with --sudo too. The next command logs in again. Jobs run on,
    and so do the shells of other stored connections that lead through these. If a GLOB, several names or options choose
    the connections, it shows which, and asks first; without a terminal to ask on, it then needs --yes.
    """
    client, names = _connections(change.selectors, change.choice, None)
    running = {name.id: _shells(client, name.id, session) for name in names}
    question = f"End {plural(sum(map(len, running.values())), 'shell')} of {plural(len(names), 'connection')}?"

    def end(client: Client, id: str) -> str:
        ended = _end(client, id, session, running[id])
        return f"{_count(running[id])} ended{_which(running[id])}" if ended else "no shell runs"

    change.do(client, names, _rows("end", names, running), question, end)


@click.command()
@selecting
@_own_session
@jobs_option()
@json_option
def start(selectors: tuple[str, ...], session: str | None, choice: Choice, *, jobs: int, as_json: bool) -> None:
    """Start the shells of connections.

    The next command of this terminal then need not log in. A shell that runs already stays as it is, with its directory
    and variables. Stopped containers are started by `connmgr container start`, tunnels by `connmgr tunnel open`.
    """
    client, names = _connections(selectors, choice, "shell")

    own = own_or(session)

    def begin(client: Client, id: str) -> str:
        states = [shell.status for shell in client.shell.list(id)]
        runs = any(state.state != "lost" for state in states if (state.connection, state.session) == (id, own))
        client.shell.ensure(id, session=own)
        return "the shell runs already" if runs else "the shell was started"

    each(client, names, begin, jobs, as_json=as_json)


@click.command()
@changing
@_session
def restart(change: Change, session: str | None) -> None:
    """Restart the shells of connections.

    The links end too, so that each connection logs in again. This ends the commands that run in the shells; directories
    and variables are those of a new login. If a connection has several shells, only that of this terminal is started
    again. If a GLOB, several names or options choose the connections, it shows which, and asks first; without a
    terminal to ask on, it then needs --yes. `connmgr container restart` restarts containers.
    """
    client, names = _connections(change.selectors, change.choice, "shell")
    running = {name.id: _shells(client, name.id, session) for name in names}
    question = f"Restart the shells of {plural(len(names), 'connection')}?"

    def anew(client: Client, id: str) -> str:
        shells = _shells(client, id, session)
        ended = _end(client, id, session, shells)
        # Of a terminal named by --session its shell, otherwise that of this one.
        for shell in shells if session is not None and shells else [NamedShell(id, own_or(session))]:
            client.shell.start(shell.connection, session=shell.session)
        return "the shell was started anew" if ended else "the shell was started"

    change.do(client, names, _rows("restart", names, running), question, anew)


def _rows(verb: str, names: Sequence[Name], shells: Mapping[str, Sized]) -> list[tuple[str, str, str]]:
    """Return what ``verb`` would be done to, for the question and for --dry-run."""
    labels = telling(names)
    return [(verb, labels[name.id], _count(shells[name.id])) for name in names]


def _connections(selectors: tuple[str, ...], choice: Choice, usage: str | None) -> tuple[Client, list[Name]]:
    require_some(selectors, choice)
    client = connect()
    return client, select_connections(client, selectors, choice, usage=usage, addresses=True).names


def _count(shells: Sized) -> str:
    return plural(len(shells), "shell") if shells else "no shell runs"


def _which(shells: Sequence[NamedShell]) -> str:
    labels = [shell_label(shell.session, split_elevation(shell.connection)[1]) for shell in shells]
    return f": {', '.join(labels)}" if shells else ""


def _shells(client: Client, id: str, session: str | None) -> list[NamedShell]:
    """Return the shells of a connection, or the ones that ``session`` means, with the shells by --sudo over it."""
    # Those by --sudo are listed too, though their connections have ids of their own.
    every = [NamedShell(shell.status.connection, shell.status.session) for shell in client.shell.list(id)]
    return [shell for shell in every if session is None or _is(shell.session, session)]


def _is(name: str | None, session: str) -> bool:
    """Whether ``session`` is a shell's name, or that of the terminal or the process that it belongs to."""
    own = posix_session_of(name)
    if own is not None and session in (own.terminal, str(own.pid)):
        return True
    return session == (SHARED if name is None else name)


def _end(client: Client, id: str, session: str | None, shells: Sequence[NamedShell]) -> bool:
    """End the ``shells`` that ``session`` means, or all, and return whether there was any."""
    if session is None:
        connections = sorted({id, *(shell.connection for shell in shells)})
        # A list, because any() of a generator would stop at the first connection that had a shell.
        return any([_stop(client, connection, all=True) for connection in connections])  # noqa: C419 - each
    # A shell that is just being started is not listed.
    targets = shells or [NamedShell(id, session_or_none(session))]
    return any([_stop(client, shell.connection, session=shell.session) for shell in targets])  # noqa: C419 - each


def _stop(client: Client, id: str, **which: Any) -> bool:
    """Stop one shell of a connection, or all, and return whether there was any."""
    try:
        client.shell.stop(id, **which)
    except ClientError as error:
        if error.code != "no_shell":
            raise
        return False
    return True


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
def start_container(selectors: tuple[str, ...], choice: Choice, *, jobs: int, as_json: bool) -> None:
    """Start containers. Running ones are left alone."""
    client, names = _containers(selectors, choice)

    def begin(client: Client, id: str) -> str:
        client.connection.toggle(id, True)
        return "runs"

    each(client, names, begin, jobs, as_json=as_json)


@container.command(name="stop")
@changing
def stop_container(change: Change) -> None:
    """Stop containers, and all that runs in them.

    If a GLOB, several names or options choose them, it shows which, and asks first; without a terminal to ask on, it
    then needs --yes.
    """

    def end(client: Client, id: str) -> str:
        client.connection.toggle(id, False)
        return "is stopped"

    _change_containers("stop", change, end)


@container.command(name="restart")
@changing
def restart_container(change: Change) -> None:
    """Stop containers, and start them again.

    If a GLOB, several names or options choose them, it shows which, and asks first; without a terminal to ask on, it
    then needs --yes. A container that cannot be started again stays stopped, and its error says why.
    """

    def anew(client: Client, id: str) -> str:
        client.connection.toggle(id, False)
        client.connection.toggle(id, True)
        return "runs anew"

    _change_containers("restart", change, anew)


def _change_containers(verb: str, change: Change, work: Callable[[Client, str], str]) -> None:
    client, names = _containers(change.selectors, change.choice)
    labels = telling(names)
    question = f"{verb.capitalize()} {plural(len(names), 'container')}?"
    change.do(client, names, [(verb, labels[name.id]) for name in names], question, work)


@container.command(name="logs")
@click.argument("name", metavar="CONNECTION", type=ConnectionName())
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines, until Ctrl-C or the container's end.")
@click.option(
    "-n", "--tail", "lines", metavar="LINES", type=click.IntRange(0), help="Only the last LINES lines of the log."
)
def container_logs(name: str, lines: int | None, *, follow: bool) -> None:
    """Print the output of a container's main program.

    It runs the runtime's own command for logs, in a new shell on the container's host, and exits with its exit code.
    """
    client = connect()
    kinds = _kinds(client) | {"kubernetes"}
    id = find(client.connection, name, accepts=lambda candidate: candidate.type in kinds, noun="container")
    options = {"follow": follow, "lines": lines}
    [answer] = client.post("/connection/info", connections=[id], log=options)["infos"]
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
    return {type_.name for type_ in client.connection.types() if type_.toggled}


def _containers(selectors: tuple[str, ...], choice: Choice) -> tuple[Client, list[Name]]:
    """Return the chosen containers; a GLOB leaves out other connections, and a name must not mean one.

    :raises Failure: no container is chosen, or a name means another connection.
    """
    require_some(selectors, choice)
    client = connect()
    kinds = _kinds(client)
    names = select_connections(client, selectors, choice).names
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
