"""The hosts that the links of a connection lead to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from connmgr.errors import TransportUnsupported
from connmgr_ssh.config import DEFAULT_PORT, MAX_NESTING, Destination, resolve


def destination_of(data: Mapping[str, Any]) -> Destination:
    """Return how to reach the host of a connection's ``data``."""
    port = data["port"] if data["port"] != DEFAULT_PORT else None
    return resolve(data["host"], port, data.get("user"))


def jumps(destination: Destination, depth: int = 0) -> list[Destination]:
    """Return the hosts of ProxyJump that lead to ``destination``, in their order, after those that lead to the first.

    :raises TransportUnsupported: they form a circle, or :func:`resolve` fails for one.
    """
    if depth == MAX_NESTING:
        raise TransportUnsupported(f"~/.ssh/config: ProxyJump of {destination.alias} leads in a circle.")
    hosts = [resolve(hop.host, hop.port, hop.user) for hop in destination.jumps]
    return [*jumps(hosts[0], depth + 1), *hosts] if hosts else []
