"""``/tunnel``: what the tunnels are doing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from connmgr.client.endpoints import Group, given


class Tunnels(Group):
    """``/tunnel``; :meth:`connmgr.client.endpoints.Connections.toggle` opens and closes tunnels."""

    def query(self, connections: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Tell what tunnels do, all of them where none are named; each is a dict as docs/API.md has it."""
        named = None if connections is None else list(connections)
        return list(self._post("/tunnel/query", **given(connections=named))["tunnels"])
