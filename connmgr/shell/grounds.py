"""The grounds of approvals (:mod:`connmgr.rights.ground`), from the vault and the running shells."""

from __future__ import annotations

from collections.abc import Callable

from connmgr.engine.session import Session
from connmgr.engine.state import ShellSnapshot
from connmgr.links.chain import Target, route_hosts
from connmgr.plugin import Dialled
from connmgr.registry import Registry
from connmgr.rights.ground import Ground, Reads, ShellState, shell_state
from connmgr.shell.shells import ShellTable
from connmgr.vault import Vault


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
        stored = self._vault.connections.get(connection)
        hosts = route_hosts(self._vault, self._registry, stored)
        state = None
        if reads is not None:
            surroundings = None if fresh else self._shells.surroundings(connection, session)
            state = ShellState() if surroundings is None else state_of(surroundings)
        user = stored.data.get("user") or (hosts[-1].user if hosts else None)
        path, digest = "/".join(stored.path), Target.stored(stored).digest
        return Ground(connection, path, digest, tuple(map(_shown, hosts)), user, state, reads or Reads())


def state_of(surroundings: ShellSnapshot) -> ShellState:
    """Return the state of a shell in ``surroundings``, compared with its start."""
    return shell_state(surroundings.directory, surroundings.variables, surroundings.start)


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
