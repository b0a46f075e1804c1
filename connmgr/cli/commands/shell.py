"""``connmgr shell``: interactive work, on a terminal or line by line."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from connmgr import paths
from connmgr.cli.connect import connect
from connmgr.cli.exits import INTERRUPTED, failure
from connmgr.cli.plain import ensure_shell, sent_environment, session_or_none, tell_restarted, write_all
from connmgr.cli.progress import ahead_in, waiting
from connmgr.cli.selection import ConnectionName, reach
from connmgr.cli.sessions import fresh_option, own_session, session_of, session_option
from connmgr.client import Client, ClientError
from connmgr.printable import visible

if TYPE_CHECKING:
    from connmgr.cli.standard_streams import Session

HISTORY_LINES = 5000
LEAVING = {"exit", "logout"}
NO_TERMINALS = "transport_unsupported"
"""The error code for a connection without terminals."""


class ShellRef(NamedTuple):
    """The shell that runs the lines, and the path of its connection."""

    client: Client
    id: str
    name: str
    session: str | None
    environment: dict[str, str]


@click.command()
@click.argument("connection", type=ConnectionName(), required=False)
@session_option
@fresh_option
@click.option("--lines", is_flag=True, help="Run it line by line even on a terminal, in the connection's shell.")
@click.option(
    "--attach",
    metavar="[TERMINAL]",
    is_flag=False,
    flag_value="",
    help="Return to a running terminal, named by its uuid or by its CONNECTION. With --watch 8 digits suffice.",
)
@click.option("--watch", is_flag=True, help="With --attach: only watch, and type nothing.")
@click.option("--record", is_flag=True, help="Keep a recording of the terminal, in the format of asciinema.")
def shell(
    connection: str | None,
    session: str | None,
    attach: str | None,
    *,
    fresh: bool,
    lines: bool,
    watch: bool,
    record: bool,
) -> None:
    """Work on a connection by hand, on a terminal.

    It is a login shell on a full terminal, kept by the daemon: it goes on when this program ends or is killed, and
    --attach returns to it. With --session it begins in the directory and with the variables of that shell. At the
    beginning of a line ~d detaches, ~. ends it, and ~? lists the others.

    If standard input is not a terminal, or the connection has none, or with --lines, it runs lines one after the
    other in the connection's shell: commands read no input, the directory and exported variables last from one line to
    the next, Ctrl-C kills the running command, and Ctrl-D or exit leaves.
    """
    if watch and attach is None:
        raise click.UsageError("--watch needs --attach.")
    if connection is None and attach is None:
        raise click.UsageError("Missing argument 'CONNECTION'.")
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty() and not lines
    if attach is not None and not on_terminal:
        raise click.UsageError("--attach needs a terminal.")
    source = click.get_current_context().get_parameter_source
    for option in ("session", "fresh", "record"):
        if attach is not None and source(option) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{option} is for a new terminal; --attach returns to a running one.")
    if record and not on_terminal:
        raise click.UsageError("--record needs a terminal; lines are not recorded.")
    explicit, session = session_or_none(session), session_of(session, fresh=fresh)
    client = connect()
    id = None if connection is None else reach(client, connection)
    if on_terminal:
        # Without --session a terminal begins as after a login.
        begins_in = None if fresh else explicit
        status = _on_terminal(client, id, begins_in, attach, watch=watch, record=record)
        if status is not None:
            raise click.exceptions.Exit(status)
    # A connection without a terminal, or input that is not one: lines.
    assert id is not None, "or --attach is given, which needs a terminal"  # noqa: S101
    name = client.connection.info([id])[0].path
    with own_session(client, id) if fresh else nullcontext(session) as session:
        ensure_shell(client, id, session, name)
        status = _loop(ShellRef(client, id, name, session, sent_environment(client, connection=id)))
    raise click.exceptions.Exit(status)


def _on_terminal(
    client: Client, id: str | None, session: str | None, attached: str | None, *, watch: bool, record: bool
) -> int | None:
    """Return the exit code of a terminal, or None if the connection has none."""
    if attached is not None:
        # Imported here, because a new terminal needs none of it.
        from connmgr.cli.commands.terminals import find_terminal

        return attach(client, find_terminal(client, id, attached, reads=watch), watch=watch)
    assert id is not None, "a connection or --attach is given"  # noqa: S101
    try:
        terminal = open_terminal(client, id, session, sent_environment(client, connection=id), record=record)
    except ClientError as error:
        # Lines are not recorded.
        if error.code != NO_TERMINALS or record:
            raise
        click.echo(f"connmgr shell: {visible(error.message)} Lines are run one by one.", err=True)
        return None
    return attach(client, terminal, watch=False)


def _loop(ref: ShellRef) -> int:
    """Run lines until the last, and return the exit code to leave with."""
    status = 0
    lines = _read_lines(ref) if sys.stdin.isatty() else (line.rstrip("\n") for line in sys.stdin)
    for line in lines:
        words = line.split(None, 1)
        if not words:
            continue
        if words[0] in LEAVING:
            # Only the far shell can evaluate the argument of exit.
            return _run(ref, f"exit {words[1]}") if len(words) > 1 else status
        status = _run(ref, line)
    return status


def _run(ref: ShellRef, line: str) -> int:
    try:
        with (
            waiting(ref.name, ahead_in(ref.client, ref.id, ref.session)) as over,
            ref.client.shell.stream(ref.id, line, session=ref.session, start=True, send_env=ref.environment) as stream,
        ):
            if not write_all(stream, ref.name, over) and sys.stdin.isatty():
                click.echo()
    except ClientError as error:
        problem = failure(error)
        problem.show()
        return problem.exit_code
    except KeyboardInterrupt:
        # The client closed its HTTP connection, so the daemon kills the command.
        click.echo("^C", err=True)
        return INTERRUPTED
    assert stream.exit_code is not None, "the iteration has come to its end"  # noqa: S101
    return stream.exit_code


def _read_lines(ref: ShellRef) -> Iterator[str]:
    """Yield the lines that the user types, until Ctrl-D."""
    import readline

    history = paths.state_directory(os.environ) / "history"
    remembers = _with_history(_read_history, history)
    readline.set_auto_history(False)
    readline.set_history_length(HISTORY_LINES)
    try:
        while True:
            try:
                line = input(f"{visible(ref.name)}:{_directory(ref)}> ")
            except KeyboardInterrupt:
                click.echo()
                continue
            except EOFError:
                click.echo()
                return
            # As in shells with HISTCONTROL=ignorespace: a line with a secret can be kept out of the history.
            if line.strip() and not line.startswith(" "):
                readline.add_history(line)
            yield line
    finally:
        if remembers:
            _with_history(_write_history, history)


def _directory(ref: ShellRef) -> str:
    try:
        result = ref.client.shell.exec(ref.id, "pwd", timeout=10, session=ref.session, start=True)
    except ClientError:
        return "?"
    if result.restarted:
        tell_restarted(ref.name)
    return visible(result.stdout) or "?"


def _with_history(work: Callable[[Path], None], path: Path) -> bool:
    """Call ``work`` with the path of the history file; if it fails, report this and return False."""
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


INCOMPLETE = {
    "cut": "the recording has ended at `max-recording`, or at `max-recordings` of all; later output is not in it.",
    "failed": "the recording could not be written to its end; the daemon's log has the reason.",
}
"""The message about a recording in each of these states."""


def open_terminal(
    client: Client, connection: str, session: str | None, environment: dict[str, str], *, record: bool
) -> str:
    """Open a terminal of this one's size on a connection, with the variables ``environment``, and return its uuid."""
    from connmgr.cli.standard_streams import size_of

    columns, rows = size_of(sys.stdin.fileno())
    term = os.environ.get("TERM") or "dumb"
    return client.terminal.open(
        connection, session=session, columns=columns, rows=rows, term=term, record=record or None, send_env=environment
    )


def attach(client: Client, terminal: str, *, watch: bool) -> int:
    """Attach this terminal to one of the daemon's until either ends, and return the exit code."""
    # Imported here, because the lines of a script need no terminal.
    from connmgr.cli.standard_streams import ESCAPE, Session, Signalled, die_by, on_terminal, size_of

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
        for info in client.terminal.query():
            if info["terminal"] == terminal and info["recording"] in INCOMPLETE:
                _tell(INCOMPLETE[info["recording"]])


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
        if any(info["terminal"] == terminal and info["state"] == "running" for info in client.terminal.query()):
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
