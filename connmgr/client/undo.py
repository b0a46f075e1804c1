"""``client.undo``: what tokens have changed in files, and putting it back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from connmgr.client.group import Group
from connmgr.contract.undo import UndoQueryRequest, UndoReadRequest, UndoRestoreRequest


class Undo(Group):
    """``/undo``; answers are dicts as in docs/API.md."""

    def query(
        self,
        *,
        token: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        connection: str | None = None,
    ) -> list[dict[str, Any]]:
        """Describe the changes, the newest first: of a token, by its id or name, or on connections that match."""
        request = UndoQueryRequest(
            token=token, since=since, until=until, connection_filter="*" if connection is None else connection
        )
        return list(self._tell("/undo/query", request)["changes"])

    def read(self, change: str) -> bytes:
        """Return the content that a file had before a change."""
        return bytes(self._tell("/undo/read", UndoReadRequest(change=change)))

    def restore(
        self, connection: str, changes: Sequence[str], *, dry_run: bool = False, force: bool = False
    ) -> list[dict[str, Any]]:
        """Undo changes on one connection, the newest first, and tell what became of each.

        A file that somebody has changed since is left alone, unless with ``force``.
        """
        request = UndoRestoreRequest(connection=connection, changes=list(changes), dry_run=dry_run, force=force)
        return list(self._tell("/undo/restore", request)["results"])
