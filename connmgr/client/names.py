"""Finds connections by their names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from connmgr.client.errors import ClientError

if TYPE_CHECKING:
    from connmgr.client import Client

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
UNKNOWN = "unknown_connection"


def named(client: Client, name: str) -> list[str]:
    """Return the uuids of the connections with exactly this ``name``, ignoring case.

    The name is, in this order, a whole path, the end of a path, or the end of category and path.
    """
    if not is_text(name):
        return []
    literal = escape(name)
    found = client.connection.query(f"**/{literal}")
    if len(found) > 1:
        exact = client.connection.query(literal)
        found = exact or found
    return found or client.connection.query(name=f"**/{literal}")


def meant(client: Client, name: str) -> list[str]:
    """Like :func:`named`; if there are none, find ``name`` as a part of paths that reaches into their last segment."""
    # A match in an earlier segment alone would be a connection that contains the one meant.
    found = named(client, name)
    return found if found or not is_text(name) else client.connection.query(f"**{escape(name)}*")


def only(client: Client, *names: str) -> str:
    """Return the uuid of the connection meant by the first of ``names`` that means any; a uuid means itself.

    :raises ClientError: ``unknown_connection``: no connection is meant, or several are.
    """
    for name in names:
        found = [name.lower()] if UUID.fullmatch(name) else named(client, name)
        if len(found) > 1:
            message = f"{name!r} is the name of {len(found)} connections: write the category before it, or the uuid."
            raise ClientError(message, UNKNOWN, 0)
        if found:
            return found[0]
    shown = " or ".join(repr(name) for name in dict.fromkeys(names))
    raise ClientError(f"No connection is called {shown}. `connmgr ls` lists them.", UNKNOWN, 0)


def escape(name: str) -> str:
    """Return a filter that matches ``name`` literally."""
    return re.sub(r"[*?\[\]{},]", lambda found: f"[{found[0]}]", name)


def is_text(name: str) -> bool:
    """Whether ``name`` is valid UTF-8, as every name in the vault is."""
    return not any("\ud800" <= character <= "\udfff" for character in name)
