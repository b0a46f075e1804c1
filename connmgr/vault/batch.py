"""Many changes of categories and connections in one transaction: all of them are stored, or none."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol, TypeVar

import sqlalchemy as sa

from connmgr.secrets.vault_key import VaultKey
from connmgr.vault import connection_rows, dependencies
from connmgr.vault.categories import Categories, Path
from connmgr.vault.connection_rows import dependents
from connmgr.vault.connections import Connections, Permission, Removed
from connmgr.vault.database import Database
from connmgr.vault.names import DEFAULT, check_name

Own = TypeVar("Own", bound="Content")


class Content(Protocol):
    """The new content of a connection, as :meth:`Connections.add` accepts it."""

    @property
    def sealed(self) -> dict[str, Any]: ...

    @property
    def references(self) -> list[str]: ...

    @property
    def parent(self) -> str | None: ...

    @property
    def folder(self) -> str | None: ...

    @property
    def fingerprint(self) -> bytes: ...

    def equals(self, stored: Mapping[str, Any]) -> bool: ...

    def moved(self: Own, ids: Mapping[str, str]) -> Own:
        """Return a copy that refers to ``ids[id]`` wherever this one refers to ``id``."""


@dataclass(frozen=True)
class Addition:
    """A connection to add, unless an equivalent one is stored. Later additions may refer to its ``id``."""

    name: str
    type: str
    content: Content
    category: Path | None = None
    """None means the category of the connection that it runs in, or else the default category."""

    labels: Mapping[str, str] | None = None
    id: str = field(default_factory=lambda: str(uuid.uuid4()))


@dataclass(frozen=True)
class Change:
    """The changes of the stored connection ``id``; None means unchanged."""

    id: str
    name: str | None = None
    content: Content | None = None
    category: Path | None = None
    labels: Mapping[str, str] | None = None
    known: datetime | None = None
    """When the connection was last modified, as far as is known to whoever changes it."""


@dataclass(frozen=True)
class Batch:
    """The changes of one request. Missing categories, of ``categories`` and of the changes, are created first."""

    categories: Sequence[Path] = ()
    additions: Sequence[Addition] = ()
    changes: Sequence[Change] = ()
    removals: Sequence[str] = ()

    def paths(self) -> Iterable[Path]:
        """Yield the paths of all categories that it needs."""
        yield from self.categories
        yield from (item.category for item in self.additions if item.category is not None)
        yield from (item.category for item in self.changes if item.category is not None)


@dataclass(frozen=True)
class Applied:
    """The result of a batch: ``added`` has for each addition the connection's id, and whether the connection is new."""

    categories: Mapping[Path, str]
    """The categories that the batch names, and their ancestors."""

    made: Mapping[Path, str]
    """The missing categories among them, which were created."""

    added: Sequence[tuple[str, bool]]
    stale: Sequence[str]
    """The connections with changed data, and all connections over them: their shells must be stopped."""

    removed: Removed
    moved: Mapping[str, Sequence[str]]
    """For each changed connection the connections below it that moved with it to another category."""


class Batches:
    """Applies batches to a vault; safe to use from several threads."""

    def __init__(self, database: Database, key: VaultKey, categories: Categories, connections: Connections) -> None:
        self._database = database
        self._key = key
        self._categories = categories
        self._connections = connections

    def apply(
        self,
        batch: Batch,
        permits: Permission,
        is_visible: Callable[[str], bool] = lambda _: True,
        token: str | Literal[False] | None = None,
    ) -> Applied:
        """Make all changes of ``batch``, or none; ``permits`` and errors, but ConnectionChanged, are of Connections.

        A stored connection for whose id ``is_visible`` returns False equals none; ``token`` is as in ``change_row``.
        """
        erases = bool(batch.removals) or any(change.content is not None for change in batch.changes)
        return self._database.write(lambda tx: self._apply(tx, batch, permits, is_visible, token), erases=erases)

    def _apply(
        self,
        tx: sa.Connection,
        batch: Batch,
        permits: Permission,
        is_visible: Callable[[str], bool],
        token: str | Literal[False] | None,
    ) -> Applied:
        for addition in batch.additions:
            check_name(addition.name)
        known = {change.id: change.known for change in batch.changes if change.known is not None}
        connection_rows.require_unchanged(tx, known)
        paths = list(dict.fromkeys(batch.paths()))
        ids, new_categories = self._categories.ensure_within(tx, paths)
        additions = _Additions(tx, self._key, batch.additions, is_visible, token)
        added = additions.store(ids)
        moved: dict[str, Sequence[str]] = {}
        for change in batch.changes:
            changes: dict[str, Any] = {"name": change.name, "labels": change.labels}
            if change.category is not None:
                changes["category"] = ids[change.category]
            if change.content is not None:
                changes |= as_fields(change.content.moved(additions.folded))
            moved[change.id] = self._connections.update_within(tx, change.id, **changes, permits=permits, token=token)
        # Their links lead through what was changed, and are closed by the caller.
        stale = dependents(tx, [change.id for change in batch.changes if change.content is not None])
        connection_rows.require(tx, batch.removals)
        removed = self._connections.remove_within(tx, batch.removals) if batch.removals else Removed()
        return Applied(ids, new_categories, added, stale, removed, moved)


def as_fields(content: Content) -> dict[str, Any]:
    """Return the content of a connection as :meth:`Connections.update` accepts it."""
    return {
        "data": content.sealed,
        "fingerprint": content.fingerprint,
        "references": content.references,
        "parent": content.parent,
    }


class _Additions:
    """The additions of a batch within a transaction, stored with few statements whatever their number."""

    def __init__(
        self,
        tx: sa.Connection,
        key: VaultKey,
        additions: Sequence[Addition],
        is_visible: Callable[[str], bool],
        token: str | Literal[False] | None,
    ) -> None:
        self._is_visible, self._token = is_visible, token
        self._tx = tx
        self._key = key
        self._additions = additions
        self.folded: dict[str, str] = {}
        """For each addition with an equivalent connection, its id and that connection's."""

        self._added: set[str] = set()
        own = {addition.id for addition in additions}
        over = {target for addition in additions for target in _targets(addition.content) if target not in own}
        self._known = dict(dependencies.load(tx, key, over))
        self._new: list[dict[str, Any]] = []
        self._references: dict[str, set[str]] = {}
        self._equal = connection_rows.candidates(tx, [addition.content.fingerprint for addition in additions])

    def store(self, categories: Mapping[Path, str]) -> list[tuple[str, bool]]:
        """Store the additions without an equivalent; return for each addition its id, and whether it was stored."""
        outcome = [
            self._settle(addition, None if addition.category is None else categories[addition.category])
            for addition in self._additions
        ]
        connection_rows.insert(self._tx, self._new, self._references)
        return outcome

    def _settle(self, addition: Addition, category: str | None) -> tuple[str, bool]:
        content = addition.content
        # It runs over an addition that exists already, under another id: with that one it may exist already, too.
        if not self.folded.keys().isdisjoint(_targets(content)):
            content = content.moved(self.folded)
            self._equal |= connection_rows.candidates(self._tx, [content.fingerprint])
        same = self._equal.setdefault(content.fingerprint, [])
        for row in same:
            # A record that was changed outside of connmgr equals none.
            alike = row["type"] == addition.type and connection_rows.intact(row, self._key)
            if not alike or not content.equals(connection_rows.load(row, self._key).data):
                continue
            if row["id"] in self._added or self._is_visible(row["id"]):
                self.folded[addition.id] = row["id"]
                return row["id"], False
        row = self._row(addition, content, category)
        same.append(row)
        return addition.id, True

    def _row(self, addition: Addition, content: Content, category: str | None) -> dict[str, Any]:
        targets = _targets(content)
        # A stored equivalent is known only once something runs over it.
        folded = targets - self._known.keys()
        if folded:
            self._known |= dependencies.load(self._tx, self._key, folded)
        parent = self._known[content.parent] if content.parent else None
        category = category or (DEFAULT if parent is None else parent["category"])
        row = connection_rows.new(
            addition.id,
            addition.name,
            addition.type,
            content.sealed,
            content.fingerprint,
            category,
            content.parent,
            addition.labels,
        )
        row["cache"] = connection_rows.marked(row["cache"], self._token or None)
        row |= connection_rows.placed(row["name"], parent, content.folder)
        row["way"] = dependencies.digest(self._known[target] for target in targets)
        row["mac"] = connection_rows.mac(row, self._key)
        self._known[addition.id] = row
        self._new.append(row)
        self._added.add(addition.id)
        self._references[addition.id] = targets
        return row


def _targets(content: Content) -> set[str]:
    return {*content.references, *([content.parent] if content.parent else [])}
