"""Makes commands of requests, and begins them in the shells of connections, which it starts first if asked to.

A command that somebody has approved begins only on the ground of its approval (:mod:`connmgr.rights.ground`), which
:class:`Grounds` finds from the vault and the running shells.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from connmgr.cancellation import Cancellation
from connmgr.contract.common import CommandOptions, bytes_of
from connmgr.contract.shell import fresh_session
from connmgr.engine.envelope import Command, Memory, Requester
from connmgr.engine.running import RunningCommand
from connmgr.engine.script import new_nonce
from connmgr.engine.session import Session
from connmgr.engine.state import ShellSnapshot
from connmgr.engine.stdin_pipe import Input
from connmgr.errors import ConnmgrError, NoShell, ShellLost
from connmgr.links.chain import Target, route_hosts
from connmgr.plugin import Dialled
from connmgr.registry import Registry
from connmgr.rights.grant import Grant
from connmgr.rights.ground import Ground, Reads, ShellState, shell_state
from connmgr.secrets.principals import Access
from connmgr.shell.shells import ShellRef, ShellTable
from connmgr.vault import Vault


def command_of(
    request: CommandOptions,
    client: str,
    grant: Grant | None,
    sent: Mapping[str, str] | None,
    memory: Callable[[], Memory] | None,
    arriving: Input | None = None,
) -> Command:
    """Return the command of a request by ``client`` with the token ``grant``, and perhaps of input still ``arriving``.

    ``sent`` and ``memory`` are those of :class:`Command`.
    """
    return Command(
        (request.command or "").encode(),
        bytes_of(request.stdin or "", request.encoding),
        arriving,
        directory=None if request.cwd is None else request.cwd.encode(),
        environment=request.env,
        sent=sent,
        argv=words_of(request.argv),
        requester=Requester(client) if grant is None else Requester(client, tuple(grant.lineage_ids), grant.name),
        memory=memory,
        sandbox=sandbox_of(grant),
    )


def words_of(argv: Sequence[str] | None) -> tuple[bytes, ...]:
    """Return the words of an argv in bytes; none without one."""
    return tuple(word.encode() for word in argv or ())


def sandbox_of(grant: Grant | None) -> str:
    """Return the mark of the sandbox in which a token's command runs that may only look; empty for any other."""
    return new_nonce() if grant is not None and grant.read_only else ""


class Grounds:
    """Finds on which ground a request would run now. Safe to use from several threads."""

    def __init__(self, vault: Vault, registry: Registry, shells: ShellTable) -> None:
        self._vault, self._registry, self._shells = vault, registry, shells

    def of(
        self, connection: str, session: str | None = None, reads: Reads | None = None, fresh: bool = False
    ) -> Ground:
        """Return the ground of a request on a connection. Without ``reads`` the request starts a process, not a shell.

        ``fresh`` says that the request gets a shell of its own.
        :raises connmgr.errors.ConnmgrError: it is unknown where the connection leads.
        """
        record = self._vault.connections.get(connection)
        hosts = route_hosts(self._vault, self._registry, record)
        state = None
        if reads is not None:
            surroundings = None if fresh else self._shells.surroundings(connection, session)
            state = ShellState() if surroundings is None else state_of(surroundings)
        user = record.data.get("user") or (hosts[-1].user if hosts else None)
        path, digest = "/".join(record.path), Target.stored(record).digest
        return Ground(connection, path, digest, tuple(map(_shown, hosts)), user, state, reads or Reads())


def state_of(surroundings: ShellSnapshot) -> ShellState:
    """Return the state of a shell in ``surroundings``, compared with its start."""
    return shell_state(surroundings.directory, surroundings.variables, surroundings.start, surroundings.received)


def on(ground: Ground | None, admits: Callable[[], None] | None = None) -> Callable[[Session], None] | None:
    """Return the check, made when a command's turn has come, that the session is still the approved ``ground``.

    ``admits`` is called then too, and raises if the command may not begin any more.
    """
    if ground is None and admits is None:
        return None

    def require(session: Session) -> None:
        if admits is not None:
            admits()
        if ground is not None:
            ground.require(session.connection_digest, state_of(session.surroundings))

    return require


def _shown(host: Dialled) -> str:
    name = f"[{host.host}]" if ":" in host.host else host.host
    return f"{host.user}@{name}:{host.port}"


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
    start: bool,
    fresh: bool = False,
    ground: Ground | None = None,
    admits: Callable[[], None] | None = None,
    turn_timeout: float | None = None,
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
            borrowed.begin(command, timeout, cancellation, turn_timeout=turn_timeout, require=require) as running,
        ):
            yield CommandStart(running, False)
        return
    restarted = False
    try:
        with contextlib.ExitStack() as stopping, contextlib.ExitStack() as lending:

            def begin() -> RunningCommand:
                borrowed = lending.enter_context(shells.using(connection, access, session))
                return lending.enter_context(
                    borrowed.begin(command, timeout, cancellation, turn_timeout=turn_timeout, require=require)
                )

            if fresh:
                session = fresh_session()
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
