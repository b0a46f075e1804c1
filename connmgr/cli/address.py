"""Hosts named by their address: no connection to them has to be stored."""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import click

from connmgr.cli.names import find_exactly
from connmgr.client import Client

SCHEME = "ssh://"
_USER_AND_HOST = re.compile(r"(?P<user>[^@/:\s]+)@(?P<host>[^@/:\s]+)")


class Address(NamedTuple):
    """``user@host`` or ``ssh://user@host:port``; ~/.ssh/config decides about parts that are None."""

    host: str
    user: str | None
    port: int | None

    @property
    def data(self) -> dict[str, Any]:
        """The data of a connection to it."""
        given = {"user": self.user, "port": self.port}
        return {"type": "ssh", "host": self.host, **{name: value for name, value in given.items() if value is not None}}

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (f"{self.user}@" if self.user else "") + host + (f":{self.port}" if self.port else "")


def reach(client: Client, name: str, *, store: bool = False) -> str:
    """Return the uuid of the connection that ``name`` means, or of one to the address ``name``, added if need be.

    The daemon keeps an added connection in memory until some time after its shell has ended, unless ``store``.
    :raises Failure: as :func:`connmgr.cli.names.find`.
    :raises click.UsageError: ``name`` is a malformed ``ssh://`` address; or with ``store``, no address.
    """
    address = read(name)
    if address is None:
        if store:
            raise click.UsageError(f"--store is for USER@HOST and {SCHEME}[USER@]HOST[:PORT], and {name!r} is neither.")
        return client.connection.find(name)
    return find_exactly(client, name) or client.connection.add(str(address), address.data, temporary=not store)


def read(name: str) -> Address | None:
    """Return the address that ``name`` is, or None if it does not have the form of an address.

    :raises click.UsageError: it begins with ``ssh://`` and is not an address.
    """
    if not name.startswith(SCHEME):
        found = _USER_AND_HOST.fullmatch(name)
        return Address(found["host"], found["user"], None) if found else None
    try:
        parts = urlsplit(name)
        port = parts.port
    except ValueError as error:
        raise click.UsageError(f"{name!r} is not of the form {SCHEME}[USER@]HOST[:PORT]: {error}.") from None
    if parts.password is not None:
        raise click.UsageError(
            "A password in an address is seen by all users of this machine: `connmgr add ssh NAME host=… "
            "--secret password` asks for it."
        )
    if not parts.hostname or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise click.UsageError(f"{name!r} is not of the form {SCHEME}[USER@]HOST[:PORT].")
    return Address(parts.hostname, parts.username, port)
