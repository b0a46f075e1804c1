"""Reasons to refuse a token's request although it has the scope for it, and sees all its subjects.

Each function is one reason, and is named by what it refuses. Endpoints declare their reasons
(:class:`connmgr.rights.action.Action`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from connmgr.contract.message import ABSENT
from connmgr.errors import PolicyDenied, ScopeDenied
from connmgr.rights.grant import Grant, joined
from connmgr.rights.scopes import TEXT
from connmgr.rights.visibility import Visibility, is_loopback
from connmgr.vault.names import DEFAULT, LOCAL, segment

Request = Mapping[str, Any]

_TUNNEL = frozenset({"tunnel"})
_AGENT = frozenset({"ssh.agent"})
_RUNS = ("shell", "commands")
"""Members of a connection's data that name programs to run when it is opened."""


def stops_others(_visibility: Visibility, grant: Grant, request: Request) -> None:
    """Refuse to stop everything on a connection unless the token may run anything there: it may be others' work."""
    if request.get("all") and not grant.is_unbound:
        raise ScopeDenied("The token may not stop what others use: it may not run anything it likes.")


def puts_programs(_visibility: Visibility, grant: Grant, _request: Request) -> None:
    """Refuse to put a program on the machine if the token has rules over paths, which would not bind the program."""
    if grant.has_rules_over_paths:
        raise PolicyDenied("A caller with rules over paths may not put a program on the machine.")


def toggles(visibility: Visibility, grant: Grant, request: Request) -> None:
    """Refuse to toggle a tunnel or a system without the scope for it."""
    data = visibility.data_of(request["connection"])
    is_tunnel = visibility.is_tunnel(data)
    grant.require_one(_TUNNEL if is_tunnel else TEXT)
    if not is_tunnel and not grant.is_unbound:
        raise ScopeDenied("The token may not run anything it likes, and neither start nor stop what machines run.")
    if is_tunnel and not visibility.ways_of(data)[1] and not visibility.visible(grant, [LOCAL]):
        raise ScopeDenied("The token does not see the daemon's machine, and may open no tunnel that leads there.")


def lends_agent(_visibility: Visibility, grant: Grant, request: Request) -> None:
    """Refuse to name an ssh-agent without the scope for it: the daemon's user could have one with more rights."""
    if request.get("agent") is not None:
        grant.require_one(_AGENT)


def escapes_rules(_visibility: Visibility, grant: Grant, _request: Request) -> None:
    """Refuse to create or change connections if rules apply only to some, because a new name could evade them."""
    if any(one.rules.go_by_connections for one in grant.lineage):
        raise ScopeDenied("The token has rules for certain connections, and may neither make nor change any.")


def chooses_data(visibility: Visibility, grant: Grant, request: Request) -> None:
    """Refuse data by which a token could reach or run more than it may."""
    if not isinstance(data := request.get("data"), Mapping):
        return
    if "connection" in request:
        data = {"type": visibility.data_of(request["connection"])["type"], **data}
    if visibility.is_tunnel(data):
        _makes_tunnel(visibility, grant, data)
    if data.get("forwardAgent"):
        grant.require_one(_AGENT)
    wraps, dials = visibility.ways_of(data)
    if not grant.is_unbound and (wraps or any(data.get(name) for name in _RUNS)):
        raise ScopeDenied("The token may not run anything it likes, and not choose what a connection runs.")
    if not wraps and not dials and not visibility.visible(grant, [LOCAL]):
        raise ScopeDenied("The token does not see the daemon's machine, and may have no connection there.")


def _makes_tunnel(visibility: Visibility, grant: Grant, data: Mapping[str, Any]) -> None:
    """Refuse a tunnel that would open without the token, or let other machines into the daemon's machine."""
    if _TUNNEL.isdisjoint(grant.scopes):
        raise ScopeDenied("The token lacks the scope tunnel, and may not make a tunnel that others would open.")
    forward = visibility.forward(data)
    if forward is None:
        return
    if forward.auto_start:
        raise ScopeDenied("What a token opens ends with it: the token may make no tunnel with autoStart.")
    if not is_loopback(forward.host) and not visibility.visible(grant, [LOCAL]):
        raise ScopeDenied("The token does not see the daemon's machine, and may listen on its loopback alone.")


def changes_what_others_need(visibility: Visibility, grant: Grant, request: Request) -> None:
    """Refuse to remove or change connections over which connections out of sight run."""
    named = [request["connection"]] if "connection" in request else request["connections"]
    if not grant.sees_all and not visibility.sees_dependents(grant, named):
        raise ScopeDenied("The token may neither remove nor change what other connections run over.")


def puts_out_of_sight(visibility: Visibility, grant: Grant, request: Request) -> None:
    """Refuse to add a connection where the token would not see it."""
    if not grant.sees_all:
        path, category = visibility.position(request["name"], request["data"], request.get("positions", {}))
        visibility.require_place(grant, path, request.get("category", category))


def moves_out_of_sight(visibility: Visibility, grant: Grant, request: Request) -> None:
    """Refuse a name, data or a category by which a connection, or one below it, would leave the token's sight."""
    if grant.sees_all:
        return
    stored = visibility.stored(request["connection"])
    name = request.get("name", stored.name)
    if "data" in request:
        path = visibility.position(name, {"type": stored.type, **request["data"]}, request.get("positions", {})).path
    else:
        path = joined((*stored.path[:-1], segment(name)))
    visibility.require_place(grant, path, request.get("category", stored.category))
    if "category" in request:
        for below in visibility.below(stored):
            visibility.require_place(grant, joined((path, *below.path[len(stored.path) :])), request["category"])


def draws_secrets(visibility: Visibility, grant: Grant, request: Request) -> None:
    """Refuse to lead a secret that the token may not open to a host that it has chosen.

    That is a secret of a connection above the changed one, or a password for sudo: the next request that uses the
    connection above, or elevates, would send it to that host.
    """
    if "secret.decrypt" in grant.scopes or request.get("temporary"):
        return
    connection = request.get("connection")
    if connection is None:
        category = visibility.position(request["name"], request["data"], request.get("positions", {})).category
        if visibility.has_sudo_password(None, request.get("category", category)):
            raise _draws("a password for sudo is stored for this place")
        return
    if "category" in request and visibility.has_sudo_password(None, request["category"]):
        raise _draws("a password for sudo is stored for this place")
    if "data" in request and (path := visibility.with_secret_over(connection)) is not None:
        raise _draws(f"a secret of {path} goes over this connection")


def draws_default_sudo_password(visibility: Visibility, grant: Grant, request: Request) -> None:
    """Refuse to move the content of removed categories to the default one, if sudo has a password there.

    The token may have added it, with hosts of its own.
    """
    moves = not request["removeContents"]
    if moves and "secret.decrypt" not in grant.scopes and visibility.has_sudo_password(None, DEFAULT):
        raise _draws("a password for sudo is stored for the default category, to which the content would move")


def _draws(why: str) -> ScopeDenied:
    return ScopeDenied(f"The token lacks the scope secret.decrypt: {why}.")


def sets_passwords_of_categories(_visibility: Visibility, grant: Grant, request: Request) -> None:
    """Refuse to store or remove the password for sudo of a category: it serves connections that the token may not see.

    A changed password also ends the elevated shells of all of them.
    """
    # Null is a wish too: it removes the password.
    if "category" in request and getattr(request, "password", ABSENT) is not ABSENT and not grant.sees_all:
        raise ScopeDenied("The token sees certain connections alone, and may change no password of a category.")


def changes_categories(_visibility: Visibility, grant: Grant, _request: Request) -> None:
    """Refuse to change categories: filters cannot tell what is below one, or how a new one is called."""
    if not grant.sees_all:
        raise ScopeDenied("The token sees certain connections alone, and may not change categories.")
