"""Begins commands in the shells of connections, and starts the shells first if asked to."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from typing import NamedTuple

from connmgr.cancellation import Cancellation
from connmgr.engine.envelope import Command
from connmgr.engine.running import Running
from connmgr.errors import ConnmgrError, NoShell, ShellLost
from connmgr.rights.ground import Ground
from connmgr.secrets.principals import Access
from connmgr.shell.grounds import on
from connmgr.shell.shells import Shells


class Place(NamedTuple):
    """The place of a command: the shell ``session`` of ``connection``, used by ``access``.

    With ``start``, the shell is started if it does not run, or is lost before anything was sent to it. With ``fresh``,
    the command has a shell of its own instead, which is stopped afterwards.
    """

    connection: str
    access: Access
    session: str | None = None
    start: bool = False
    fresh: bool = False
    ground: Ground | None = None
    """The ground on which the command was approved; None if it needed no approval."""


class Begun(NamedTuple):
    """A command that has begun; ``restarted`` says that the shell had been lost, and is a new one."""

    running: Running
    restarted: bool


@contextlib.contextmanager
def begun(
    shells: Shells,
    place: Place,
    command: Command,
    timeout: float,
    cancellation: Cancellation,
) -> Iterator[Begun]:
    """Begin a command; the arguments are those of :meth:`connmgr.engine.session.Session.begin`.

    A command that may have been sent is never begun again. Errors after the loss of a shell have the member
    ``restarted``.

    :raises NoShell: the shell does not run, and shall not be started; otherwise the errors of starting it.
    :raises connmgr.errors.ApprovalRequired: the shell is not what it was when the command was approved.
    :raises connmgr.errors.CommandCancelled: it was cancelled before it began.
    """
    if not (place.start or place.fresh):
        # A shortcut for most requests, which saves them 1 % of their time.
        with (
            shells.using(place.connection, place.access, place.session) as session,
            session.begin(command, timeout, cancellation, require=on(place.ground)) as running,
        ):
            yield Begun(running, False)
        return

    def begin() -> Running:
        session = held.enter_context(shells.using(place.connection, place.access, place.session))
        return held.enter_context(session.begin(command, timeout, cancellation, require=on(place.ground)))

    restarted = False
    try:
        with contextlib.ExitStack() as outer, contextlib.ExitStack() as held:
            if place.fresh:
                place = outer.enter_context(_of_its_own(shells, place, cancellation))
            elif place.start:
                shells.leave_silent(place.connection, place.session)
            try:
                running = begin()
            except (NoShell, ShellLost) as error:
                if not place.start or (isinstance(error, ShellLost) and error.sent):
                    raise
                held.close()
                restarted = shells.start(place.connection, place.access, place.session, cancellation).restarted
                running = begin()
            yield Begun(running, restarted)
    except ConnmgrError as error:
        if restarted:
            error.details = {**error.details, "restarted": True}
        raise


@contextlib.contextmanager
def _of_its_own(shells: Shells, place: Place, cancellation: Cancellation) -> Iterator[Place]:
    """Start a shell with a random name, yield its place, and stop it."""
    own = place._replace(session=f"fresh-{secrets.token_hex(8)}", start=False)
    shells.start(own.connection, own.access, own.session, cancellation)
    try:
        yield own
    finally:
        shells.end(own.connection, own.session)
