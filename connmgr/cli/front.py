"""Begins what is typed. The plainest commands it runs itself and at once: ``connmgr exec NAME COMMAND``, and
``connmgr cp`` of a single file to or from a connection.

Loading the command line takes longer than such a command. So everything else, and whatever the front meets, is left to
the command line: an option, a question, a refused login, an error, Ctrl-C.
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
    """Run what stands on the command line, and end the program with its exit code."""
    begin = _plainest(arguments)
    if begin is None:
        _command_line()
    # Imported here, because everything else has more to import before it begins.
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
    try:
        code = carry_out()
        end()
        # Nothing is left to do, and taking the interpreter apart would take as long as the command.
        os._exit(code)
    except BaseException as error:  # noqa: BLE001 - as above; now the command may have run, and has read its input
        end()
        _command_line(error)


def plain(arguments: Sequence[str]) -> tuple[str, str] | None:
    """Return connection and command of ``exec NAME [--] COMMAND...``; None for all that means something more.

    That is an option, the address of a machine, and a ``--`` further behind, before which several connections may
    have been meant.
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
    """Return the operands of ``cp [-q] SOURCE TARGET``; None for all that means something more.

    That is any other option, an address, a pattern, a standard stream, two files of connections, and a terminal, which
    sees how far the copy is.
    """
    if COMPLETION_VARIABLE in os.environ or not arguments or arguments[0] != "cp":
        return None
    is_quiet = any(one in ("-q", "--quiet") for one in arguments)
    operands = [one for one in arguments[1:] if one not in ("-q", "--quiet")]
    if len(operands) != 2 or any(one.startswith("-") or not one for one in operands):
        return None
    from connmgr.cli.copy.plan import has_wildcards, is_remote

    source, target = operands
    remote = [one for one in operands if is_remote(one)]
    if len(remote) != 1 or "@" in remote[0] or "://" in remote[0] or (remote == [source] and has_wildcards(source)):
        return None
    return (source, target) if is_quiet or not os.isatty(2) else None


Begin = Callable[["Client"], Callable[[], int]]
"""Asks the daemon for what the work needs, and returns the function that does it and returns the exit code."""


def _plainest(arguments: Sequence[str]) -> Begin | None:
    if (words := plain(arguments)) is not None:
        return lambda client: _execution(client, *words)
    if (operands := plain_copy(arguments)) is not None:
        return lambda client: _copy(client, *operands)
    return None


def _copy(client: Client, source: str, target: str) -> Callable[[], int]:
    from connmgr.cli.copy.engine import Copy, locating
    from connmgr.cli.copy.plan import CopyOperand, CopyOptions, RemotePath, is_remote
    from connmgr.cli.plain import Names, ensure_shell, own_or, umask
    from connmgr.client.names import find

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


def _execution(client: Client, name: str, command: str) -> Callable[[], int]:
    request = _request(client, name, command)
    return lambda: _run(client, name, request)


def _request(client: Client, name: str, command: str) -> dict[str, Any]:
    """Return the members of the request that runs ``command``, as :class:`connmgr.contract.shell.ExecRequest` has them.

    With standard input it is the member ``stdin``.
    """
    from connmgr.cli.plain import Names, StandardInput, has_input, own_or, sent_environment
    from connmgr.client.names import find

    connection, session = find(Names(client), name), own_or(None)
    sent = sent_environment(client, connection=connection)
    request: dict[str, Any] = {"connection": connection, "command": command, "sendEnv": sent, "start": True}
    if session is not None:
        request["session"] = session
    return {**request, "stdin": StandardInput()} if has_input() else request


def _run(client: Client, name: str, request: dict[str, Any]) -> int:
    """Run a command to its end, and return its exit code."""
    from connmgr.cli.plain import QUIET_SECONDS, fed, run_to_end

    ends: list[Callable[[], None]] = []

    def wait(waited: float) -> None:
        from connmgr.cli.progress import Waiting, ahead_in, touches

        if not ends:
            ahead = ahead_in(client, request["connection"], request.get("session"))
            ends.append(Waiting(name, ahead, waited=waited).over)
            if os.isatty(2) and client.session_token is not None:
                ends.append(touches(client, waited))

    def patience(answering: socket.socket) -> None:
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
        with fed(request):
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
    found: list[Remedy] = []

    def remedy(error: ClientError, body: bytes) -> bool:
        if error.code == "no_such_file":
            # The target of a copy is usually new, and no remedy is for that.
            return False
        import click

        from connmgr.cli.connect import remedy_of
        from connmgr.cli.progress import replaceable

        if not found:
            found.append(remedy_of(client))
        # Questions replace the line that is shown.
        with click.Context(click.Command(command)) as context:
            replaceable(context, over)
            return found[0](error, body)

    return remedy


def _command_line(met: BaseException | None = None) -> NoReturn:
    """Run the whole command line; with ``met``, end as its command does that raises this."""
    from connmgr.cli.root import main

    sys.exit(main(obj=met))
