"""Filters as SQL: all matching ids as one value, in the order of their paths."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy.sql.operators import custom_op

from connmgr.secrets.keyfile import VaultKey
from connmgr.vault import category_rows, glob, patterns
from connmgr.vault.path import SEPARATOR, fold
from connmgr.vault.principal_rows import check_key
from connmgr.vault.tables import category as category_table
from connmgr.vault.tables import connection as connection_table

Value = TypeVar("Value")

MAX_INDEXED_PATH_BYTES = 1000
"""Longest path in PostgreSQL's index of short paths, made by the migration 0005."""

MAX_GLOBS = 200
"""Above this number of GLOBs per filter, SQLite only narrows the search and Python decides."""

# PostgreSQL cannot index paths of any length. If all paths are short, its index of short ones suffices for a search.
_LONG = sa.func.octet_length(connection_table.c.path) > sa.literal_column(str(MAX_INDEXED_PATH_BYTES))
_ANY_LONG = sa.select(sa.exists().where(_LONG))


class Listed(NamedTuple):
    """A connection that was found; ``category`` is a uuid. The record is not verified."""

    id: str
    path: tuple[str, ...]
    category: str
    type: str


class CategoryQuery:
    """A search for categories.

    :raises InvalidRequest: a malformed filter.
    """

    def __init__(self, filter: str) -> None:
        self._paths = PathFilter(category_table, filter, below_root=True)

    def run(self, tx: sa.Connection, key: VaultKey) -> list[str]:
        """Return the ids of matching categories, after verifying them."""
        check_key(tx, key)
        condition = self._paths.condition(tx)
        category_rows.verify(tx, key, condition)
        return _ids(tx, category_table, [condition])


class ConnectionQuery:
    """A search for connections by category, path, type and name; a name is the path, or category and path.

    :raises InvalidRequest: a malformed filter.
    """

    def __init__(self, category_filter: str, connection_filter: str, type_filter: str, name_filter: str = "*") -> None:
        self._categories = PathFilter(category_table, category_filter, below_root=True)
        self._paths = PathFilter(connection_table, connection_filter)
        self._types = glob.compile(type_filter)
        self._names = NameFilter(name_filter)

    def run(self, tx: sa.Connection, key: VaultKey) -> list[str]:
        """Return the ids of the connections that match; raise as :meth:`_conditions`."""
        return _ids(tx, connection_table, self._conditions(tx, key))

    def listed(self, tx: sa.Connection, key: VaultKey) -> list[Listed]:
        """Return the matching connections with the parts of their names; raise as :meth:`run`."""
        path, id = connection_table.c.path, connection_table.c.id
        order: sa.ColumnElement[str] = path
        conditions = _given(self._conditions(tx, key))
        if tx.dialect.name == "postgresql":
            order = path.collate("C")
            conditions += [] if tx.scalar(_ANY_LONG) else [sa.not_(_LONG)]
        columns = (id, path, connection_table.c.category, connection_table.c.type)
        selected = sa.select(*columns).where(*conditions).order_by(order, id)
        return [Listed(id, tuple(path.split(SEPARATOR)), *more) for id, path, *more in tx.execute(selected)]

    def _conditions(self, tx: sa.Connection, key: VaultKey) -> list[sa.ColumnElement[bool] | None]:
        """Return the conditions on a row.

        The compared categories are verified here, because using a connection does not read its category. Connections
        are verified when they are read.
        :raises IntegrityError: a matching category was changed outside of connmgr.
        :raises VaultUnavailable: the vault's key was rotated since ``key`` was loaded.
        """
        check_key(tx, key)
        conditions = [self._paths.condition(tx), self._names.condition(tx, key)]
        in_categories = self._categories.condition(tx)
        ids = sa.select(category_table.c.id)
        # A condition that excludes nothing is omitted: testing every connection would cost more than the search.
        if in_categories is not None and tx.scalar(ids.where(sa.not_(in_categories)).limit(1)) is not None:
            found = category_rows.verify(tx, key, in_categories)
            conditions.append(_among(tx, _scanned(tx, connection_table.c.category), found))
        if self._types is not None:
            types, matches = _types(tx), glob.Matcher(self._types)
            matching = [type for type in types if matches(fold(type))]
            if matching != types:
                conditions.append(_scanned(tx, connection_table.c.type).in_(matching))
        return conditions


class PathFilter:
    """A filter over the paths of ``table``."""

    def __init__(self, table: sa.Table, pattern: str, *, below_root: bool = False) -> None:
        self._table = table
        self._alternatives = glob.compile(pattern, below_root=below_root)

    def condition(self, tx: sa.Connection) -> sa.ColumnElement[bool] | None:
        """Return the condition on a row, or None if every row fulfils it."""
        return None if self._alternatives is None else _on_path(tx, self._table, self._alternatives)


class NameFilter:
    """A filter over the names of connections: the path, or category (with or without the root) and path."""

    def __init__(self, pattern: str) -> None:
        self._paths = PathFilter(connection_table, pattern)
        self._within = [(glob.beneath_root(category), [path]) for category, path in glob.divided(pattern)]

    def condition(self, tx: sa.Connection, key: VaultKey) -> sa.ColumnElement[bool] | None:
        """Return the condition on a row, or None if every row fulfils it.

        :raises IntegrityError: a compared category was changed outside of connmgr.
        """
        alone = self._paths.condition(tx)
        if alone is None:
            return None
        return sa.or_(alone, *(self._both(tx, key, *pair) for pair in self._within))

    def _both(
        self,
        tx: sa.Connection,
        key: VaultKey,
        categories: Iterable[glob.Alternative],
        paths: Iterable[glob.Alternative],
    ) -> sa.ColumnElement[bool]:
        in_categories = _on_path(tx, category_table, categories)
        found = category_rows.verify(tx, key, in_categories)
        return sa.and_(
            _on_path(tx, connection_table, paths), _among(tx, _scanned(tx, connection_table.c.category), found)
        )


def _on_path(tx: sa.Connection, table: sa.Table, alternatives: Iterable[glob.Alternative]) -> sa.ColumnElement[bool]:
    """Return the condition on a row of ``table``: one of ``alternatives`` matches its path."""
    some = list(alternatives)
    path, depth = table.c.path, table.c.depth
    if tx.dialect.name == "postgresql":
        possible = (one for one in some if not patterns.impossible(one))
        return sa.or_(sa.false(), *(_liked(path.collate("C"), depth, one) for one in possible))
    deepest = tx.scalar(sa.select(sa.func.max(depth))) if any(map(patterns.mixed, some)) else None
    found = chain.from_iterable(patterns.globs(one, deepest or 0) for one in some)
    globs = set(islice(found, MAX_GLOBS + 1))
    if len(globs) > MAX_GLOBS:
        return _decided_here(tx, table, some)
    scanned = _scanned(tx, depth)
    return sa.or_(sa.false(), *(_matches(path, scanned, at, pattern) for at, pattern in globs))


def _decided_here(tx: sa.Connection, table: sa.Table, alternatives: list[glob.Alternative]) -> sa.ColumnElement[bool]:
    loose = sa.or_(*(table.c.path.op("GLOB")(pattern) for pattern in set(map(patterns.loose_glob, alternatives))))
    candidates = tx.execute(sa.select(table.c.id, table.c.path).where(loose))
    matches = glob.Matcher(alternatives)
    return _among(tx, table.c.id, [id for id, path in candidates if matches(path)])


def _matches(
    path: sa.ColumnElement[str], depth: sa.ColumnElement[int], at: int | None, pattern: str
) -> sa.ColumnElement[bool]:
    if at is None:
        return path.op("GLOB")(pattern)
    if all(part and not part.strip("*") for part in pattern.split(SEPARATOR)):
        return depth == at
    return sa.and_(depth == at, path.op("GLOB")(pattern))


def _liked(
    path: sa.ColumnElement[str], depth: sa.ColumnElement[int], alternative: glob.Alternative
) -> sa.ColumnElement[bool]:
    """Return PostgreSQL's condition by LIKE, which takes a fourth of the time of a regular expression."""
    begins = patterns.prefix(alternative)
    if len(begins) == len(alternative):
        return path == begins
    bounds = [path >= begins] if begins else []
    end = patterns.after(begins)
    if end is not None:
        # A range in the index, also for a plan that is made without the text.
        bounds.append(path < end)
    if glob.ACROSS not in alternative:
        bounds.append(depth == alternative.count(SEPARATOR) + 1)
    pattern = patterns.like(alternative)
    if glob.ACROSS in alternative or any(part.strip("%") or not part for part in pattern.split(SEPARATOR)):
        bounds.append(path.like(pattern))
    sets = patterns.placed_sets(alternative)
    if sets is None or patterns.mixed(alternative):
        bounds.append(path.regexp_match(patterns.regex(alternative)))
    else:
        bounds += [_in_set(path, *one) for one in sets]
    return sa.and_(*bounds)


def _in_set(path: sa.ColumnElement[str], place: int, one: glob.OneOf) -> sa.ColumnElement[bool]:
    """Return the condition that the character at ``place`` is in the set; no separator can be there."""
    start = place if place > 0 else sa.func.char_length(path) + place + 1
    character = sa.func.substr(path, start, 1)
    inside = sa.or_(*(character.between(low, high) for low, high in one.ranges))
    return sa.not_(inside) if one.negated else inside


def _scanned(tx: sa.Connection, column: sa.Column[Value]) -> sa.ColumnElement[Value]:
    """Return ``column`` hidden from SQLite's choice of index: the index with all columns of a search is better."""
    if tx.dialect.name == "postgresql":
        return column
    return sa.UnaryExpression(column, operator=custom_op("+"))


def _among(tx: sa.Connection, column: sa.ColumnElement[str], values: list[str]) -> sa.ColumnElement[bool]:
    """Return the condition that ``column`` is one of ``values``, which are one parameter, whatever their number."""
    if tx.dialect.name == "postgresql":
        # Not imported at the top: a daemon with its vault on SQLite does not need it.
        from sqlalchemy.dialects import postgresql

        return column == sa.any_(sa.literal(values, postgresql.ARRAY(sa.Text)))
    return column.in_(sa.select(sa.func.json_each(json.dumps(values)).table_valued("value").c.value))


def _ids(tx: sa.Connection, table: sa.Table, conditions: Iterable[sa.ColumnElement[bool] | None]) -> list[str]:
    given = _given(conditions)
    if tx.dialect.name != "postgresql":
        return _split(tx.scalar(_joined(sa.func.group_concat, table, table.c.path, given)))
    join, path = sa.func.string_agg, table.c.path.collate("C")
    if table is connection_table:
        # Tried first; the same answer says whether that was all, because a round trip costs more than most searches.
        short = _joined(join, table, path, [*given, sa.not_(_LONG)])
        found, any_long = tx.execute(short.add_columns(_ANY_LONG.scalar_subquery())).one()
        if not any_long:
            return _split(found)
    return _split(tx.scalar(_joined(join, table, path, given)))


def _joined(
    join: Callable[..., sa.ColumnElement[str]],
    table: sa.Table,
    path: sa.ColumnElement[str],
    conditions: Iterable[sa.ColumnElement[bool]],
) -> sa.Select[Any]:
    matching = sa.select(table.c.id).where(*conditions).order_by(path, table.c.id).subquery()
    return sa.select(join(matching.c.id, " "))


def _split(found: str | None) -> list[str]:
    return found.split(" ") if found else []


def _given(conditions: Iterable[sa.ColumnElement[bool] | None]) -> list[sa.ColumnElement[bool]]:
    return [condition for condition in conditions if condition is not None]


def _types(tx: sa.Connection) -> list[str]:
    # Jumps in the index from each type to the next.
    types = sa.select(sa.func.min(connection_table.c.type).label("type")).cte("types", recursive=True)
    following = sa.select(sa.func.min(connection_table.c.type)).where(connection_table.c.type > types.c.type)
    types = types.union_all(sa.select(following.scalar_subquery()).where(types.c.type.is_not(None)))
    return list(tx.scalars(sa.select(types.c.type).where(types.c.type.is_not(None))))
