"""``/tunnel``: the states of tunnels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from connmgr.client.endpoints import Group, given


class Tunnels(Group):
    """``/tunnel``; :meth:`connmgr.client.endpoints.Connections.toggle` opens and closes tunnels."""

    def query(self, connections: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Describe the tunnels of ``connections``, or all; each is a dict as in docs/API.md."""
        named = None if connections is None else list(connections)
        return list(self._post("/tunnel/query", **given(connections=named))["tunnels"])
