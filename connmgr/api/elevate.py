"""Requests that ask to run as another user: they are about the elevated connections over those that they name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from connmgr.api.account import account, caller
from connmgr.api.services import services
from connmgr.contract.message import Message, changed
from connmgr.errors import IntegrityError, InvalidRequest, SecretLocked
from connmgr.vault.names import OWNER, Elevation, elevation_of

MEMBER = "elevate"


@dataclass(frozen=True)
class Wanted:
    """The elevation that a request asks for, on behalf of whom, and whether its password is to be kept."""

    user: str
    holder: str | None
    gives: bool
    password: str | None = field(default=None, repr=False)


def elevated(request: Any, holder: str | None, *, gives: bool = True) -> Any:
    """Return a loaded request about the elevated connection that it asks for, or the request itself if for none.

    That belongs to ``holder``, a token, or the owner if None. With ``gives`` a password of the request is kept for it.
    A request about several connections stays as it is, until they are found: see :func:`each_elevated`.
    :raises InvalidRequest: the connection is already an elevated one.
    """
    if not isinstance(request, Mapping | Message) or MEMBER not in request:
        return request
    asked = request[MEMBER]
    wanted = Wanted(asked.user, holder, gives, asked.password)
    if "connection" not in request:
        account().elevation = wanted
        return request
    [found] = each_elevated([request["connection"]], wanted)
    return changed(request, elevate=None, connection=found)


def each_elevated(connections: Iterable[str], wanted: Wanted) -> dict[str, str]:
    """Return ``connections`` by the ids of the elevated ones over them; otherwise as :func:`elevated`."""
    found = {_elevation(id, wanted).id: id for id in connections}
    if wanted.gives and wanted.password is not None:
        _give(found, wanted.password)
    return found


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
        services().vault.connections.sudo_passwords.give(id, sealed, same=same)
