"""Which connections a request is about: those that it names, or chooses, or the elevated ones over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from connmgr.api.context import caller, request_context
from connmgr.api.services import services
from connmgr.contract import message
from connmgr.contract.common import Elevate, Selecting, ShellNamed
from connmgr.contract.run import RunStartRequest
from connmgr.contract.shell import BroadcastRequest
from connmgr.errors import IntegrityError, InvalidRequest, SecretLocked, UnknownConnection
from connmgr.vault import Connection
from connmgr.vault.names import OWNER, Elevation, elevation_of

Request = TypeVar("Request")


def selected(request: Selecting, *, most: int, what: str) -> list[str]:
    """Return the ids of the connections that ``request`` is about, each once, and of those that the caller sees.

    Named ones are not looked up. ``what`` names the request in the error for more than ``most``.
    :raises connmgr.errors.InvalidRequest: they are more.
    :raises connmgr.errors.IntegrityError: a compared category or fact was changed outside of connmgr.
    """
    if request.connections is not None:
        ids = list(dict.fromkeys(request.connections))
    else:
        category, path, type = (
            "*" if filter is None else filter
            for filter in (request.category_filter, request.connection_filter, request.type_filter)
        )
        matching = services().vault.connections.query(category, path, type, where=request.where)
        ids = services().authorisation.visible(caller(), matching)
    if len(ids) > most:
        raise InvalidRequest(f"{len(ids):,} connections; {what} takes {most:,} at most.")
    return ids


def with_shells(stored: dict[str, Connection | IntegrityError]) -> set[str]:
    """Return the ids of those connections whose types have shells, or whose type cannot be read."""
    kinds = {entry.type.name for entry in services().registry if entry.type.usage_category == "shell"}
    return {
        id for id, connection in stored.items() if not isinstance(connection, Connection) or connection.type in kinds
    }


@dataclass(frozen=True)
class Wanted:
    """The elevation that a request asks for, on behalf of whom, and whether its password is to be kept."""

    user: str
    holder: str | None
    gives: bool
    password: str | None = field(default=None, repr=False)


def elevated(request: Request, holder: str | None, *, gives: bool = True) -> Request:
    """Return a loaded request about the elevated connection that it asks for, or the request itself if for none.

    That belongs to ``holder``, a token, or the owner if None. With ``gives`` a password of the request is kept for it.
    A request about several connections stays as it is, until they are found: see :func:`each_elevated`.
    :raises InvalidRequest: the connection is already an elevated one.
    """
    if not isinstance(request, ShellNamed | BroadcastRequest):
        return request
    wish = Elevate() if isinstance(request, RunStartRequest) and request.sudo else request.elevate
    if wish is None:
        return request
    wanted = Wanted(wish.user, holder, gives, wish.password)
    if isinstance(request, BroadcastRequest):
        request_context().elevation = wanted
        return request
    [id] = each_elevated([request.connection], wanted)
    return message.replace(request, elevate=None, connection=id)


def each_elevated(connections: Iterable[str], wanted: Wanted) -> dict[str, str]:
    """Return ``connections`` by the ids of the elevated ones over them; otherwise as :func:`elevated`."""
    elevated_ids = {_elevation(id, wanted).id: id for id in connections}
    if wanted.gives and wanted.password is not None:
        _give(elevated_ids, wanted.password)
    return elevated_ids


def _elevation(connection: str, wanted: Wanted) -> Elevation:
    if elevation_of(connection) is not None:
        raise InvalidRequest("elevate: The connection is an elevated one already.")
    return Elevation(connection, wanted.holder or OWNER, wanted.user)


def _give(ids: Iterable[str], password: str) -> None:
    principals, access = services().vault.principals, caller().access

    def same(sealed: Mapping[str, Any]) -> bool:
        # A shell stays open if its password is given again; sealing it anew would change its connection.
        try:
            return principals.unseal(sealed, access) == password
        except (SecretLocked, IntegrityError):
            return False

    sealed = principals.seal(password, access)
    for id in ids:
        elevation = elevation_of(id)
        if elevation is not None:
            # The answer about an unknown connection is that of the request itself.
            with suppress(UnknownConnection):
                services().vault.connections.give_sudo_password(elevation, sealed, same=same)
