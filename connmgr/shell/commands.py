"""Begins commands in the shells of connections, and starts the shells first if asked to."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from typing import NamedTuple

from connmgr.cancellation import Cancellation
from connmgr.engine.envelope import Command
from connmgr.engine.running import RunningCommand
from connmgr.errors import ConnmgrError, NoShell, ShellLost
from connmgr.rights.ground import Ground
from connmgr.secrets.principals import Access
from connmgr.shell.grounds import on
from connmgr.shell.shells import ShellRef, ShellTable


class CommandStart(NamedTuple):
    """A command that has begun; ``restarted`` says that the shell had been lost, and is a new one."""

    running: RunningCommand
    restarted: bool


@contextlib.contextmanager
def begin_command(
    shells: ShellTable,
    shell: ShellRef,
    access: Access,
    command: Command,
    timeout: float,
    cancellation: Cancellation,
    *,
    start: bool = False,
    fresh: bool = False,
    ground: Ground | None = None,
    admits: Callable[[], None] | None = None,
) -> Iterator[CommandStart]:
    """Begin ``command`` in ``shell``, used by ``access``, as :meth:`connmgr.engine.session.Session.begin` does.

    With ``start``, the shell is started if it does not run, or is lost before anything was sent to it. With ``fresh``,
    the command has a shell of its own instead, which is stopped afterwards. ``ground`` is the ground of the command's
    approval; None if it needed none. ``admits`` is called before anything is sent, and raises to prevent that. A
    command that may have been sent is never sent again. Errors after the loss of a shell have the member ``restarted``.

    :raises NoShell: the shell does not run, and ``start`` is false; otherwise the errors of starting it.
    :raises connmgr.errors.ApprovalRequired: the shell is not what it was when the command was approved.
    :raises connmgr.errors.CommandCancelled: the command was cancelled before it began.
    """
    connection, session = shell
    require = on(ground, admits)
    if not (start or fresh):
        # A shortcut for most requests, which saves them 1 % of their time.
        with (
            shells.using(connection, access, session) as borrowed,
            borrowed.begin(command, timeout, cancellation, require=require) as running,
        ):
            yield CommandStart(running, False)
        return
    restarted = False
    try:
        with contextlib.ExitStack() as stopping, contextlib.ExitStack() as lending:

            def begin() -> RunningCommand:
                borrowed = lending.enter_context(shells.using(connection, access, session))
                return lending.enter_context(borrowed.begin(command, timeout, cancellation, require=require))

            if fresh:
                session = f"fresh-{secrets.token_hex(8)}"
                shells.start(connection, access, session, cancellation)
                stopping.callback(shells.end, connection, session)
            else:
                shells.leave_silent(connection, session)
            try:
                running = begin()
            except (NoShell, ShellLost) as error:
                # What was sent may have run. A fresh shell that is lost at once would be lost again.
                if fresh or (isinstance(error, ShellLost) and error.sent):
                    raise
                lending.close()
                restarted = shells.start(connection, access, session, cancellation).restarted
                running = begin()
            yield CommandStart(running, restarted)
    except ConnmgrError as error:
        if restarted:
            error.details = {**error.details, "restarted": True}
        raise
