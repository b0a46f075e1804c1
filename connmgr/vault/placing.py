"""The beginning of a connection's path: another connection's path, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from connmgr.plugin import AnyConnectionType, Tunnel, Wrapper
from connmgr.vault.wellknown import LOCAL


class Placing(NamedTuple):
    """The part of a path before the connection's own name: the path of ``parent``, a uuid, and ``folder``."""

    parent: Any = None
    folder: str | None = None


def placing(kind: AnyConnectionType, data: Mapping[str, Any]) -> Placing:
    """Return the placing of a connection with ``data``, in which references are in the clients' form."""
    if not isinstance(kind, Wrapper | Tunnel) or not kind.via:
        return Placing()
    named = data.get(kind.via)
    if isinstance(kind, Wrapper):
        return Placing(named)
    # A connection on the local machine needs no path before its name.
    id = named.get("storeId") if isinstance(named, Mapping) else named
    return Placing(None if isinstance(id, str) and id.lower() == LOCAL else named, kind.folder)
