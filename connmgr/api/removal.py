"""The consequences of removing connections from the vault."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from connmgr.api.account import caller, detail, part
from connmgr.api.services import services
from connmgr.vault.connections import Removed


def see_off(removed: Removed, named: Collection[str] = ()) -> None:
    """Record all removed connections besides ``named``, remove their jobs from the far sides, and end their shells.

    :raises connmgr.errors.ShellBusy: a shell is still being started or stopped, and ends after that.
    """
    services().subject_names.remember(removed.paths)
    for connection in removed.connections:
        if connection not in named:
            part({"connection": connection}, removed=True)
    for category in removed.categories:
        part({"category": category}, removed=True)
    if removed.jobs:
        # Before the shells, because the links end with them.
        detail(jobs=sum(map(len, removed.jobs.values())), jobsLeft=services().orphans.clear(removed.jobs))
    end_what_runs(removed.connections)


def end_what_runs(connections: Iterable[str]) -> None:
    """End the terminals, pipes, tunnels and shells of connections that were removed or changed.

    :raises connmgr.errors.ShellBusy: a shell is still being started or stopped, and ends after that.
    """
    ended = list(connections)
    # Nobody names the elevated ones over them.
    ended += services().vault.connections.sudo_passwords.over(set(ended))
    services().terminals.forget(ended)
    services().streams.forget(ended)
    services().tunnels.forget(ended, caller().token)
    services().shells.forget(ended)
