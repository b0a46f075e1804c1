"""``connmgr shell`` on a terminal that the daemon keeps, attached or not."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import click

from connmgr.cli.standard_streams import Session, Signalled, die_by
from connmgr.cli.terminal.raw import ESCAPE, on_terminal, size_of
from connmgr.client import Client, ClientError

INCOMPLETE = {
    "cut": "the recording has ended at `max-recording`, or at `max-recordings` of all; later output is not in it.",
    "failed": "the recording could not be written to its end; the daemon's log has the reason.",
}
"""What is said of a recording in these states."""


def open_terminal(client: Client, connection: str, session: str | None, sent: dict[str, str], *, record: bool) -> str:
    """Open a terminal of this one's size on a connection, with the variables ``sent``, and return its uuid."""
    columns, rows = size_of(sys.stdin.fileno())
    term = os.environ.get("TERM") or "dumb"
    return client.terminal.open(
        connection, session=session, columns=columns, rows=rows, term=term, record=record or None, send_env=sent
    )


def attach(client: Client, terminal: str, *, watch: bool) -> int:
    """Attach this terminal to one of the daemon's until either ends, and return the exit code."""
    back = f"`connmgr shell --attach {terminal}` comes back"
    left = _Left()
    try:
        with client.terminal.attach(terminal, watch=watch) as pipe:
            session = Session(pipe)
            if watch:
                click.echo(f"Watching; {ESCAPE}. leaves.", err=True)
                status = on_terminal(session, ESCAPE, types=False)
            else:
                pipe.resize(*size_of(sys.stdin.fileno()))
                more = {b"d": ("detach; the terminal goes on", left.by(session, closes=False))}
                status = on_terminal(
                    session, ESCAPE, more=more, leave=("end the terminal", left.by(session, closes=True))
                )
    except Signalled as ended:
        _tell(f"ended by {ended}; the terminal goes on, {back}.")
        die_by(ended.number)
    except ClientError as error:
        error.message = f"{error.message}{_whether_it_goes_on(client, terminal, back)}"
        raise
    if status is None and left.closes:
        with _unless_over():
            client.terminal.close(terminal)
    elif status is None and not watch:
        _tell(f"detached; {back}.")
    if not watch:
        _tell_of_recording(client, terminal)
    return 0 if status is None else status & 0xFF


def _tell_of_recording(client: Client, terminal: str) -> None:
    """Tell whether a recording of the terminal lacks some of its output."""
    # A daemon that stops meanwhile changes neither the exit code nor what was recorded.
    with contextlib.suppress(ClientError):
        for one in client.terminal.query():
            if one["terminal"] == terminal and one["recording"] in INCOMPLETE:
                _tell(INCOMPLETE[one["recording"]])


class _Left:
    """How a person left a terminal."""

    closes = False

    def by(self, session: Session, *, closes: bool) -> Any:
        """Return the function that leaves ``session``."""

        def leave() -> None:
            self.closes = closes
            session.leave()

        return leave


def _whether_it_goes_on(client: Client, terminal: str, back: str) -> str:
    with contextlib.suppress(ClientError):
        if any(one["terminal"] == terminal and one["state"] == "running" for one in client.terminal.query()):
            return f" The terminal goes on: {back}."
    return ""


@contextlib.contextmanager
def _unless_over() -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        if error.code != "unknown_terminal":
            raise


def _tell(message: str) -> None:
    click.echo(f"connmgr shell: {message}", err=True)
