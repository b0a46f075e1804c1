"""``connmgr start``, ``restart`` and ``disconnect``: the shells of connections, and their links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import Any, NamedTuple

import click

from connmgr.cli.connect import connect
from connmgr.cli.fan_out import Change, changing, each
from connmgr.cli.output import counted, json_option
from connmgr.cli.plain import SHARED, own_or, session_or_none
from connmgr.cli.selection import (
    Choice,
    chosen,
    jobs_option,
    require_some,
    selecting,
)
from connmgr.cli.sessions import shell_label
from connmgr.client import Client, ClientError, Name
from connmgr.client.names import split_elevation, telling
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
    client, names = _chosen(change.selectors, change.choice, None)
    running = {name.id: _shells(client, name.id, session) for name in names}
    question = f"End {counted(sum(map(len, running.values())), 'shell')} of {counted(len(names), 'connection')}?"

    def end(client: Client, id: str) -> str:
        ended = _ended(client, id, session, running[id])
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
    client, names = _chosen(selectors, choice, "shell")

    own = own_or(session)

    def begin(client: Client, id: str) -> str:
        listed = [one.status for one in client.shell.list(id)]
        runs = any(one.state != "lost" for one in listed if (one.connection, one.session) == (id, own))
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
    client, names = _chosen(change.selectors, change.choice, "shell")
    running = {name.id: _shells(client, name.id, session) for name in names}
    question = f"Restart the shells of {counted(len(names), 'connection')}?"

    def anew(client: Client, id: str) -> str:
        shells = _shells(client, id, session)
        ended = _ended(client, id, session, shells)
        # Of a terminal named by --session its shell, otherwise that of this one.
        for one in shells if session is not None and shells else [NamedShell(id, own_or(session))]:
            client.shell.start(one.connection, session=one.session)
        return "the shell was started anew" if ended else "the shell was started"

    change.do(client, names, _rows("restart", names, running), question, anew)


def _rows(verb: str, names: Sequence[Name], shells: Mapping[str, Sized]) -> list[tuple[str, str, str]]:
    """Return what ``verb`` would be done to, for the question and for --dry-run."""
    labels = telling(names)
    return [(verb, labels[name.id], _count(shells[name.id])) for name in names]


def _chosen(selectors: tuple[str, ...], choice: Choice, usage: str | None) -> tuple[Client, list[Name]]:
    require_some(selectors, choice)
    client = connect()
    return client, chosen(client, selectors, choice, usage=usage, addresses=True).names


def _count(shells: Sized) -> str:
    return counted(len(shells), "shell") if shells else "no shell runs"


def _which(shells: Sequence[NamedShell]) -> str:
    labels = [shell_label(shell.session, split_elevation(shell.connection)[1]) for shell in shells]
    return f": {', '.join(labels)}" if shells else ""


def _shells(client: Client, id: str, session: str | None) -> list[NamedShell]:
    """Return the shells of a connection that ``session`` means, all without it; those by --sudo belong to it too."""
    # Those by --sudo are listed too, though their connections have ids of their own.
    every = [NamedShell(one.status.connection, one.status.session) for one in client.shell.list(id)]
    return [one for one in every if session is None or _is(one.session, session)]


def _is(name: str | None, session: str) -> bool:
    """Whether ``session`` is a shell's name, or that of the terminal or the process that it belongs to."""
    own = posix_session_of(name)
    if own is not None and session in (own.terminal, str(own.pid)):
        return True
    return session == (SHARED if name is None else name)


def _ended(client: Client, id: str, session: str | None, shells: Sequence[NamedShell]) -> bool:
    """End the ``shells`` that ``session`` means, or all, and return whether there was any."""
    if session is None:
        connections = sorted({id, *(shell.connection for shell in shells)})
        return any([_stopped(client, connection, all=True) for connection in connections])  # noqa: C419 - each
    # A shell that is just being started is not listed.
    meant = shells or [NamedShell(id, session_or_none(session))]
    return any([_stopped(client, one.connection, session=one.session) for one in meant])  # noqa: C419 - each


def _stopped(client: Client, id: str, **which: Any) -> bool:
    """Stop one shell of a connection, or all, and return whether there was any."""
    try:
        client.shell.stop(id, **which)
    except ClientError as error:
        if error.code != "no_shell":
            raise
        return False
    return True
