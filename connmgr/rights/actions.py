"""The actions of endpoints: their declaration, and reasons to refuse one although the token has the scope for it.

A reason (:data:`Limit`) is a function named by what it refuses. It gets the request as a message of the contract, so a
limit fits only the endpoints whose requests have the fields that it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from connmgr.contract.category import CategoryRemoveRequest
from connmgr.contract.connection import (
    ConnectionAddRequest,
    ConnectionLabelRequest,
    ConnectionLoginRequest,
    ConnectionRemoveRequest,
    ConnectionToggleRequest,
    ConnectionUpdateRequest,
)
from connmgr.contract.fs import ExtractRequest, PathRequest, UploadRequest
from connmgr.contract.inventory import HOST, INVENTORY
from connmgr.contract.message import Absent, Message
from connmgr.contract.multiplex import MultiplexForwardRequest, MultiplexRenewRequest
from connmgr.contract.secret import SudoRequest
from connmgr.contract.shell import StopRequest
from connmgr.errors import PolicyDenied, ScopeDenied
from connmgr.paths import is_loopback
from connmgr.rights.grant import Grant
from connmgr.rights.rule import READ, WRITE
from connmgr.rights.scopes import TEXT
from connmgr.rights.visibility import Visibility
from connmgr.vault.names import DEFAULT, LOCAL, SEPARATOR, segment

Request = TypeVar("Request", bound=Message, contravariant=True)

Limit = Callable[[Visibility, Grant, Request], None]
"""Raises ScopeDenied or PolicyDenied if a token may not have a request carried out.

Called when the token has the scopes of the action, and sees everything that the request names.
"""

TouchedPaths = Sequence[tuple[bytes, str]]
"""The paths of a request, each with the action of the rules that apply to it: ``fs.read``, ``fs.write``."""


def _no_paths(_request: Message) -> TouchedPaths:
    return ()


@dataclass(frozen=True)
class Action(Generic[Request]):
    """An action, as its endpoint declares it."""

    name: str
    """Such as ``shell.exec``; used in the audit log, for plugins, and in :mod:`connmgr.rights.scopes`."""

    runs: bool = False
    """Whether the request says what to run, which needs a scope too and is subject to the rules over commands."""

    takes_input: bool = False
    """Whether the program that runs reads input that the caller sends later."""

    in_shell: Callable[[Request], bool] = lambda _: False
    """Whether what runs begins with the directory and the variables of a shell."""

    on_terminal: Callable[[Request], bool] = lambda _: False
    """Whether what runs gets a terminal."""

    limits: Sequence[Limit[Request]] = ()
    """Further conditions of a request, in this order."""

    paths: Callable[[Request], TouchedPaths] = _no_paths
    """The paths of a request, for dry runs only: when it is carried out, the remote host reports the real paths."""

    whole: Callable[[Request], bool] = lambda _: False
    """Whether a request covers everything below its paths that are directories; see :func:`always`."""

    @property
    def has_rules(self) -> bool:
        """Whether rules over commands or paths decide about a request."""
        return self.runs or self.paths is not _no_paths


def always(_request: Message) -> bool:
    """Return True for any request."""
    return True


AboutPath = PathRequest | ExtractRequest | UploadRequest


def reads_path(request: AboutPath) -> TouchedPaths:
    """Return that a request reads its ``path``."""
    return [(request.path, READ)]


def writes_path(request: AboutPath) -> TouchedPaths:
    """Return that a request writes, makes or removes its ``path``."""
    return [(request.path, WRITE)]


# Limits, by the group of their endpoints: shells and files.


def stops_others(_visibility: Visibility, grant: Grant, request: StopRequest) -> None:
    """Refuse to stop what may be others' work.

    That is everything on a connection, unless the token may run anything there; and the shared shell, if it only looks.
    """
    if request.all and not grant.is_unbound:
        raise ScopeDenied("Stopping all shells of a connection needs the scope shell.any without rules over commands.")
    if grant.read_only and request.session is None:
        # Whoever started it, all use it.
        raise ScopeDenied("The token may only look (readOnly): it cannot stop the shell that others share.")


def puts_programs(_visibility: Visibility, grant: Grant, _request: Message) -> None:
    """Refuse to put a program on the machine if the token has rules over paths, which would not bind the program."""
    if grant.has_rules_over_paths:
        raise PolicyDenied("A token with rules over paths cannot put a program on the machine.")


def changes_attributes(_visibility: Visibility, grant: Grant, _request: Message) -> None:
    """Refuse chmod and chown if the token has rules over paths: they cannot be held to one file while others move."""
    if grant.has_rules_over_paths:
        raise PolicyDenied("A token with rules over paths cannot change modes and owners.")


# Tunnels, systems and logins.

_TUNNEL = frozenset({"tunnel"})
_AGENT = frozenset({"ssh.agent"})
_SIGNED = frozenset({"ssh.certificate"})


def toggles(visibility: Visibility, grant: Grant, request: ConnectionToggleRequest) -> None:
    """Refuse to toggle a tunnel or a system without the scope for it."""
    data = visibility.data_of(request.connection)
    is_tunnel = visibility.is_tunnel(data)
    grant.require_one(_TUNNEL if is_tunnel else TEXT)
    if not is_tunnel and not grant.is_unbound:
        raise ScopeDenied("Starting and stopping a system needs the scope shell.any without rules over commands.")
    if is_tunnel and not visibility.leads_away(data) and not visibility.visible(grant, [LOCAL]):
        raise ScopeDenied("The tunnel leads to the daemon's machine, which the token does not see.")


def forwards(visibility: Visibility, grant: Grant, request: MultiplexForwardRequest) -> None:
    """Refuse a forward that lets other machines into the daemon's machine unless the token sees that.

    A Unix socket is for a token that may run anything: those of agents, of Docker or of systemd do that.
    """
    # Other than a new link, which undoes no rule: also those that deny or ask count here, for no rule sees what is run.
    may_run_all = grant.is_unbound and not any(ancestor.rules.over_commands for ancestor in grant.lineage)
    if (request.socket is not None or request.to_socket is not None) and not may_run_all:
        raise ScopeDenied(
            "The token may not forward Unix sockets, by which anything can be run: that needs shell.any without rules "
            "over commands."
        )
    leads_here = request.kind == "remote" or request.socket is not None or not is_loopback(request.host)
    if leads_here and not visibility.visible(grant, [LOCAL]):
        raise ScopeDenied("The token does not see the daemon's machine, and may not let other machines into it.")


def renews_link(_visibility: Visibility, grant: Grant, _request: MultiplexRenewRequest) -> None:
    """Refuse to put a new link in place of one that others use, unless the token may run anything there."""
    if not grant.is_unbound:
        raise ScopeDenied("The token may not close what others use: that needs shell.any without rules over commands.")


def lends_agent(_visibility: Visibility, grant: Grant, request: ConnectionLoginRequest) -> None:
    """Refuse to name an ssh-agent without the scope for it: the daemon's user could have one with more rights."""
    if request.agent is not None:
        grant.require_one(_AGENT)


# Adding, changing and removing connections.

AddOrUpdate = ConnectionAddRequest | ConnectionUpdateRequest

_FOLLOWS = frozenset({INVENTORY, HOST})

_RUNS = ("shell", "commands")
"""Members of a connection's data that name programs to run when it is opened."""


def escapes_rules(_visibility: Visibility, grant: Grant, _request: Message) -> None:
    """Refuse to create or change connections if rules apply only to some, because a new name could evade them."""
    if any(ancestor.rules.go_by_connections for ancestor in grant.lineage):
        raise ScopeDenied("A token with per-connection rules cannot create or change connections.")


def chooses_data(visibility: Visibility, grant: Grant, request: AddOrUpdate) -> None:
    """Refuse data by which a token could reach or run more than it may."""
    if request.data is None:
        return
    data = request.data
    if isinstance(request, ConnectionUpdateRequest):
        data = {"type": visibility.data_of(request.connection)["type"], **data}
    if visibility.is_tunnel(data):
        _makes_tunnel(visibility, grant, data)
    if data.get("forwardAgent"):
        grant.require_one(_AGENT)
    wraps = visibility.is_wrapper(data)
    if not grant.is_unbound and (wraps or any(data.get(name) for name in _RUNS)):
        raise ScopeDenied("Data that run a program need the scope shell.any without rules over commands.")
    if not wraps and not visibility.leads_away(data) and not visibility.visible(grant, [LOCAL]):
        raise ScopeDenied("The connection would be on the daemon's machine, which the token does not see.")


def chooses_list(
    visibility: Visibility,
    _grant: Grant,
    request: ConnectionAddRequest | ConnectionUpdateRequest | ConnectionLabelRequest,
) -> None:
    """Refuse the labels by which a connection follows an inventory.

    The renewal gives the connection the host's address in the owner's name, and with it whatever secret goes over it.
    """
    if isinstance(request, ConnectionUpdateRequest) and request.labels is not None:
        before, after = visibility.stored(request.connection).labels, request.labels
        touched = {name for name in _FOLLOWS if before.get(name) != after.get(name)}
    elif isinstance(request, ConnectionLabelRequest):
        touched = {*request.labels, *request.remove} & _FOLLOWS
    else:
        touched = (request.labels or {}).keys() & _FOLLOWS
    if touched:
        raise ScopeDenied(
            f"Only the owner sets or removes the label {min(touched)}: it makes a connection follow a list of hosts."
        )


def chooses_certificates(visibility: Visibility, grant: Grant, request: AddOrUpdate) -> None:
    """Refuse to say where a signer's certificates let in without the scope for it: by data, or by another category."""
    if not _SIGNED.isdisjoint(grant.scopes):
        return
    data = request.data
    if isinstance(request, ConnectionUpdateRequest) and (data is not None or request.category is not None):
        stored = visibility.data_of(request.connection)
        data = stored if data is None else {"type": stored["type"], **data}
    if data is not None and visibility.signer_of(data) is not None:
        raise ScopeDenied(
            "The connection logs in by certificates: to add or change it needs the scope ssh.certificate."
        )


def _makes_tunnel(visibility: Visibility, grant: Grant, data: Mapping[str, Any]) -> None:
    """Refuse a tunnel that would open without the token, or let other machines into the daemon's machine."""
    if _TUNNEL.isdisjoint(grant.scopes):
        # Without the scope it could not open the tunnel itself, but somebody else would.
        raise ScopeDenied("The token lacks the scope tunnel, without which it cannot add or change a tunnel.")
    forward = visibility.forward(data)
    if forward is None:
        return
    if forward.auto_start:
        # What a token opens ends with the token; the daemon would open this one again.
        raise ScopeDenied("A token cannot add or change a tunnel with autoStart.")
    if not is_loopback(forward.host) and not visibility.visible(grant, [LOCAL]):
        raise ScopeDenied("The token does not see the daemon's machine, so its tunnels can listen on loopback only.")


def changes_what_others_need(
    visibility: Visibility, grant: Grant, request: ConnectionUpdateRequest | ConnectionRemoveRequest
) -> None:
    """Refuse to remove or change connections over which connections out of sight run."""
    connections = [request.connection] if isinstance(request, ConnectionUpdateRequest) else request.connections
    if not grant.sees_all and not visibility.sees_dependents(grant, connections):
        raise ScopeDenied("Other connections, which the token does not see, run over this one.")


def puts_out_of_sight(visibility: Visibility, grant: Grant, request: ConnectionAddRequest) -> None:
    """Refuse to add a connection where the token would not see it."""
    if not grant.sees_all:
        path, category = visibility.position(request.name, request.data)
        visibility.require_place(grant, path, request.category or category)


def moves_out_of_sight(visibility: Visibility, grant: Grant, request: ConnectionUpdateRequest) -> None:
    """Refuse a name, data or a category by which a connection, or one below it, would leave the token's sight."""
    if grant.sees_all:
        return
    stored = visibility.stored(request.connection)
    name = stored.name if request.name is None else request.name
    if request.data is not None:
        path = visibility.position(name, {"type": stored.type, **request.data}).path
    else:
        path = SEPARATOR.join((*stored.path[:-1], segment(name)))
    visibility.require_place(grant, path, request.category or stored.category)
    if request.category is not None:
        for below in visibility.below(stored):
            visibility.require_place(grant, SEPARATOR.join((path, *below.path[len(stored.path) :])), request.category)


def draws_secrets(visibility: Visibility, grant: Grant, request: AddOrUpdate) -> None:
    """Refuse to lead a secret that the token may not open to a host that it has chosen.

    That is a secret of a connection above the changed one, or a password for sudo: the next request that uses the
    connection above, or elevates, would send it to that host.
    """
    if "secret.decrypt" in grant.scopes:
        return
    if isinstance(request, ConnectionAddRequest):
        if request.temporary:
            # It is in no category, and nothing runs over it.
            return
        category = request.category or visibility.position(request.name, request.data).category
        if visibility.has_sudo_password(None, category):
            raise _draws("a password for sudo is stored for this place")
        return
    if request.category is not None and visibility.has_sudo_password(None, request.category):
        raise _draws("a password for sudo is stored for this place")
    if request.data is not None and (path := visibility.with_secret_over(request.connection)) is not None:
        raise _draws(f"a secret of {path} goes over this connection")


def draws_fetched_secrets(visibility: Visibility, _grant: Grant, request: ConnectionUpdateRequest) -> None:
    """Refuse to lead a secret from elsewhere to a host that the token has chosen, whatever its scopes.

    With ``secret.decrypt`` it could read what the vault keeps, but nothing of what others keep.
    """
    if request.data is not None and (path := visibility.with_source_over(request.connection)) is not None:
        raise ScopeDenied(
            f"Only the owner changes this connection: {path} has a secret from elsewhere, which goes over it."
        )


def draws_default_sudo_password(visibility: Visibility, grant: Grant, request: CategoryRemoveRequest) -> None:
    """Refuse to move the content of removed categories to the default one, if sudo has a password there.

    The token may have added it, with hosts of its own.
    """
    moves = not request.remove_contents
    if moves and "secret.decrypt" not in grant.scopes and visibility.has_sudo_password(None, DEFAULT):
        raise _draws("a password for sudo is stored for the default category, to which the content would move")


def _draws(why: str) -> ScopeDenied:
    return ScopeDenied(f"The token lacks the scope secret.decrypt: {why}.")


# Categories.


def sets_passwords_of_categories(_visibility: Visibility, grant: Grant, request: SudoRequest) -> None:
    """Refuse to store or remove the password for sudo of a category: it serves connections that the token may not see.

    A changed password also ends the elevated shells of all of them.
    """
    # Null is a wish too: it removes the password.
    if request.category is not None and not isinstance(request.password, Absent) and not grant.sees_all:
        raise ScopeDenied("Only a token that sees every connection can change the password of a category.")


def changes_categories(_visibility: Visibility, grant: Grant, _request: Message) -> None:
    """Refuse to change categories: filters cannot tell what is below one, or how a new one is called."""
    if not grant.sees_all:
        raise ScopeDenied("Only a token that sees every connection can change categories.")
