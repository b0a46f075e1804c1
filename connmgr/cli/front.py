"""The program's entry. It runs the two plainest commands itself: ``connmgr exec NAME COMMAND``, and ``connmgr cp`` of
one file to or from a connection.

Loading the whole command line takes longer than such a command. It is loaded for every other command line, and when one
of the two needs more after all: a question, a login, the report of an error, Ctrl-C.
"""

from __future__ import annotations

import gc
import os
import select
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from connmgr.cli import COMPLETION_VARIABLE

if TYPE_CHECKING:
    import socket

    from connmgr.client import Client, ClientError
    from connmgr.client.repeat import Remedy


def run(arguments: Sequence[str]) -> NoReturn:
    """Run the command that ``arguments`` name, and end the program with its exit code."""
    begin = _plainest(arguments)
    if begin is None:
        _command_line()
    # Imported here, so that every other command line need not wait for them first.
    from connmgr.cli.plain import daemon_address, session_with
    from connmgr.client import Unreachable
    from connmgr.client.credentials import from_environment

    try:
        client, end = session_with(*daemon_address(), from_environment(os.environ))
    except Exception:  # noqa: BLE001 - nothing has happened yet, and the command line finds the same
        _command_line()
    try:
        carry_out = begin(client)
    except Unreachable as error:
        end()
        # Where no daemon runs, the command line may start one.
        _command_line(error if error.sent else None)
    except BaseException as error:  # noqa: BLE001 - raised again in the command line, which tells each kind
        end()
        _command_line(error)
    # From here on the command may run. It must not be run again by the command line, which only reports what it gets.
    try:
        code = carry_out()
        end()
        # Nothing is left to do, and taking the interpreter apart would take as long as the command.
        os._exit(code)
    except BaseException as error:  # noqa: BLE001 - as above; now the command may have run, and has read its input
        end()
        _command_line(error)


def plain(arguments: Sequence[str]) -> tuple[str, str] | None:
    """Return connection and command of ``exec NAME [--] COMMAND...``; None if the whole command line must read it.

    It must for an option, for the address of a machine, and for a ``--`` behind the first word: somebody may have meant
    the words before it as several connections.
    """
    if COMPLETION_VARIABLE in os.environ or len(arguments) < 3 or arguments[0] != "exec":
        return None
    name, *words = arguments[1:]
    if name.startswith("-") or "@" in name or ":" in name:
        return None
    if words[0] == "--":
        words = words[1:]
    elif words[0].startswith("-") or "--" in words:
        return None
    return (name, " ".join(words)) if words else None


def plain_copy(arguments: Sequence[str]) -> tuple[str, str] | None:
    """Return the operands of ``cp [-q] SOURCE TARGET``; None if the whole command line must read it.

    It must for any other option, an address, a pattern, a standard stream and two files of connections, and on a
    terminal, where it draws how far the copy is.
    """
    if COMPLETION_VARIABLE in os.environ or not arguments or arguments[0] != "cp":
        return None
    is_quiet = any(word in ("-q", "--quiet") for word in arguments)
    operands = [word for word in arguments[1:] if word not in ("-q", "--quiet")]
    if len(operands) != 2 or any(word.startswith("-") or not word for word in operands):
        return None
    from connmgr.cli.copy.plan import has_wildcards, is_remote

    source, target = operands
    remote = [word for word in operands if is_remote(word)]
    if len(remote) != 1 or "@" in remote[0] or "://" in remote[0] or (remote == [source] and has_wildcards(source)):
        return None
    return (source, target) if is_quiet or not os.isatty(2) else None


Begin = Callable[["Client"], Callable[[], int]]
"""Asks the daemon for what the work needs, and returns the function that does it and returns the exit code."""


def _plainest(arguments: Sequence[str]) -> Begin | None:
    if (words := plain(arguments)) is not None:
        return lambda client: _exec(client, *words)
    if (operands := plain_copy(arguments)) is not None:
        return lambda client: _copy(client, *operands)
    return None


def _copy(client: Client, source: str, target: str) -> Callable[[], int]:
    from connmgr.cli.copy.engine import Copy, locating
    from connmgr.cli.copy.plan import CopyOperand, CopyOptions, RemotePath, is_remote
    from connmgr.cli.plain import Names, ensure_shell, own_or, umask
    from connmgr.client.names import find

    # As the command line does without --session: the shell of this terminal.
    session = own_or(None)
    name, _, path = (source if is_remote(source) else target).partition(":")
    connection = find(Names(client), name)
    there = RemotePath(connection, path, session, name)
    start: CopyOperand = there if is_remote(source) else source
    end: CopyOperand = target if start is there else there
    options = CopyOptions(
        recursive=False,
        keep=False,
        excludes=(),
        mode=None,
        checksum=False,
        umask=umask(),
        session=session,
        fresh=False,
        sudo=None,
    )

    def run() -> int:
        client.remedy(_remedy(client, lambda: None, "cp"))
        if os.isatty(2):
            from connmgr.cli.progress import patience

            patience(client)
        gc.enable()
        ensure_shell(client, connection, session, name)
        with locating():
            Copy(client, options, None).run([start], end)
        return 0

    return run


def _exec(client: Client, name: str, command: str) -> Callable[[], int]:
    from connmgr.cli.plain import Names, StandardInput, has_input, own_or, sent_environment

    client.patience(_load_more)
    client.shake_hands()
    # Loaded by now.
    from connmgr.client.names import find

    connection, session = find(Names(client), name), own_or(None)
    environment = sent_environment(client, connection=connection)
    # The members of connmgr.contract.shell.ExecRequest, which takes longer to load than the command; and the input.
    request: dict[str, Any] = {"connection": connection, "command": command, "sendEnv": environment, "start": True}
    if session is not None:
        request["session"] = session
    if has_input():
        request["stdin"] = StandardInput()
    client.patience(None)
    return lambda: _run(client, name, request)


def _load_more(_: socket.socket) -> None:
    """Load what the next requests need, while the daemon answers the first one on another processor."""
    import connmgr.client.names
    import connmgr.client.output  # noqa: F401


def _run(client: Client, name: str, request: dict[str, Any]) -> int:
    """Run a command to its end, and return its exit code."""
    from connmgr.cli.plain import QUIET_SECONDS, feed, run_to_end

    ends: list[Callable[[], None]] = []

    def wait(waited: float) -> None:
        from connmgr.cli.progress import Waiting, ahead_in, touches

        if not ends:
            ahead = ahead_in(client, request["connection"], request.get("session"))
            ends.append(Waiting(name, ahead, waited=waited).over)
            if os.isatty(2) and client.session_token is not None:
                ends.append(touches(client, waited))

    def patience(answering: socket.socket) -> None:
        # poll() takes descriptors beyond 1023, which select() does not.
        news = select.poll()
        news.register(answering, select.POLLIN)
        if not news.poll(QUIET_SECONDS * 1000):
            wait(QUIET_SECONDS)

    def over() -> None:
        for end in ends:
            end()

    try:
        client.remedy(_remedy(client, over, "exec"))
        # connmgr/__main__.py switched it off for the imports.
        gc.enable()
        with feed(request):
            stdin = request.get("stdin")
            if stdin is None or isinstance(stdin, bytes):
                # Most commands answer sooner than a thread could show that they are waited for.
                client.patience(patience)
            else:
                wait(0.0)
            members = {member: value for member, value in request.items() if member != "stdin"}
            return run_to_end(client.run(stdin, **members), name, over)
    finally:
        over()


def _remedy(client: Client, over: Callable[[], None], command: str) -> Remedy:
    """Return the remedy of a command of the command line, which is loaded when the first request is refused."""
    remedies: list[Remedy] = []

    def remedy(error: ClientError, body: bytes) -> bool:
        if error.code == "no_such_file":
            # The target of a copy is usually new, and no remedy is for that.
            return False
        import click

        from connmgr.cli.connect import remedy_of
        from connmgr.cli.progress import replaceable

        if not remedies:
            remedies.append(remedy_of(client))
        # Questions replace the line that is shown.
        with click.Context(click.Command(command)) as context:
            replaceable(context, over)
            return remedies[0](error, body)

    return remedy


def _command_line(error: BaseException | None = None) -> NoReturn:
    """Run the whole command line; with ``error``, end as a command there does that raises it."""
    from connmgr.cli.root import main

    sys.exit(main(obj=error))
