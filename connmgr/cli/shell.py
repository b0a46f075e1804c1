"""``connmgr shell``: one command after the other, by hand."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import click

from connmgr import paths
from connmgr.cli.address import reach
from connmgr.cli.daemon import connect
from connmgr.cli.exits import INTERRUPTED, failure
from connmgr.cli.names import ConnectionName
from connmgr.cli.outcome import (
    ensure_shell,
    fresh_option,
    own_session,
    session_of,
    session_option,
    tell_restarted,
    write_all,
)
from connmgr.cli.output import visible
from connmgr.cli.progress import ahead_in, waiting
from connmgr.client import Client, ClientError

HISTORY_LINES = 5000
LEAVING = {"exit", "logout"}


class Place(NamedTuple):
    """The shell that the lines run in, and the path of its connection."""

    client: Client
    id: str
    name: str
    session: str | None


@click.command()
@click.argument("connection", type=ConnectionName())
@session_option
@fresh_option
def shell(connection: str, session: str | None, *, fresh: bool) -> None:
    """Run commands on a connection line by line.

    Lines are remembered. Ctrl-D or exit leaves, and the shell stays. It is no terminal: commands read no input.
    Editors, pagers, passwd and other programs that draw on the screen or ask questions do not work. The directory and
    exported variables last from one line to the next; functions, aliases and other variables do not. Ctrl-C kills the
    running command. If standard input is no terminal, its lines run without a prompt.
    """
    session = session_of(session, fresh=fresh)
    client = connect()
    id = reach(client, connection)
    name = client.connection.info([id])[0].path
    with own_session(client, id) if fresh else nullcontext(session) as session:
        ensure_shell(client, id, session, name)
        status = _loop(Place(client, id, name, session))
    raise click.exceptions.Exit(status)


def _loop(place: Place) -> int:
    """Run lines until the last, and return the exit code to leave with."""
    status = 0
    lines = _typed(place) if sys.stdin.isatty() else (line.rstrip("\n") for line in sys.stdin)
    for line in lines:
        words = line.split(None, 1)
        if not words:
            continue
        if words[0] in LEAVING:
            # Only the far shell can evaluate the argument of its exit.
            return _run(place, f"exit {words[1]}") if len(words) > 1 else status
        status = _run(place, line)
    return status


def _run(place: Place, line: str) -> int:
    try:
        with (
            waiting(place.name, ahead_in(place.client, place.id, place.session)) as over,
            place.client.shell.stream(place.id, line, session=place.session, start=True) as stream,
        ):
            if not write_all(stream, place.name, over) and sys.stdin.isatty():
                click.echo()
    except ClientError as error:
        problem = failure(error)
        problem.show()
        return problem.exit_code
    except KeyboardInterrupt:
        # The client closed its connection, so the daemon kills the command.
        click.echo("^C", err=True)
        return INTERRUPTED
    assert stream.exit_code is not None, "the iteration has come to its end"  # noqa: S101
    return stream.exit_code


def _typed(place: Place) -> Iterator[str]:
    """Yield the lines that the user types, until Ctrl-D."""
    import readline

    history = paths.state_directory(os.environ) / "history"
    remembers = _with_history(_read_history, history)
    readline.set_auto_history(False)
    readline.set_history_length(HISTORY_LINES)
    try:
        while True:
            try:
                line = input(f"{visible(place.name)}:{_directory(place)}> ")
            except KeyboardInterrupt:
                click.echo()
                continue
            except EOFError:
                click.echo()
                return
            # Like shells, keep no line that begins with a blank.
            if line.strip() and not line.startswith(" "):
                readline.add_history(line)
            yield line
    finally:
        if remembers:
            _with_history(_write_history, history)


def _directory(place: Place) -> str:
    try:
        result = place.client.shell.exec(place.id, "pwd", timeout=10, session=place.session, start=True)
    except ClientError:
        return "?"
    if result.restarted:
        tell_restarted(place.name)
    return visible(result.stdout) or "?"


def _with_history(work: Callable[[Path], None], path: Path) -> bool:
    """Do ``work`` with the history file; report a failure and return False."""
    try:
        work(path)
    except OSError as error:
        click.echo(f"connmgr: lines are not remembered: {path}: {error.strerror}", err=True)
        return False
    return True


def _read_history(path: Path) -> None:
    import readline

    if path.exists():
        readline.read_history_file(path)


def _write_history(path: Path) -> None:
    import readline

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    readline.write_history_file(path)
