"""The search for connections and categories by filters: all matching ids as one value, in the order of their paths.

A filter becomes GLOB on SQLite, and ranges and LIKE on PostgreSQL. Both answer it from one index that has all columns
of a search in the order of the answer (migrations 0005 and 0008). :mod:`connmgr.vault.names` says what filters mean.
Searching 100,000 connections takes 15 to 70 ms on either, finding a literal name 1 ms (``python -m
benchmarks.vault_query``).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, combinations, islice, pairwise, takewhile
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy.sql.operators import custom_op

from connmgr.computing import in_pieces
from connmgr.secrets.vault_key import VaultKey
from connmgr.vault import category_rows, names
from connmgr.vault import where as conditions
from connmgr.vault.database import Database
from connmgr.vault.names import ACROSS, ANY, SEPARATOR, Alternative, CharacterSet, Many, Token, fold
from connmgr.vault.principal_rows import check_key
from connmgr.vault.schema import category as category_table
from connmgr.vault.schema import chunks
from connmgr.vault.schema import connection as connection_table

Value = TypeVar("Value")

MAX_INDEXED_PATH_BYTES = 1000
"""Longest path in PostgreSQL's index of short paths, made by the migration 0005. An entry of a B-tree has at most a
third of a page, 2,704 bytes, and a longer path could not be stored at all."""

MAX_GLOBS = 200
"""Above this number of GLOBs per filter, SQLite only narrows the search and Python decides."""

# PostgreSQL cannot index paths of any length. If all paths are short, its index of short ones suffices for a search.
_LONG = sa.func.octet_length(connection_table.c.path) > sa.literal_column(str(MAX_INDEXED_PATH_BYTES))
_ANY_LONG = sa.select(sa.exists().where(_LONG))

Range = tuple[str, str]

_SPECIAL = "*?["
_SPECIAL_IN_LIKE = "%_\\"
_LAST = chr(sys.maxunicode)

# Built once, because building a statement costs more than looking up a row.
_PATHS = {
    kind: sa.select(table.c.id, table.c.path).where(table.c.id.in_(sa.bindparam("some", expanding=True)))
    for kind, table in (("connection", connection_table), ("category", category_table))
}


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

    ``where`` is a condition of :mod:`connmgr.vault.where`.
    :raises InvalidRequest: a malformed filter or condition.
    """

    def __init__(
        self,
        category_filter: str,
        connection_filter: str,
        type_filter: str,
        name_filter: str = "*",
        where: str | None = None,
    ) -> None:
        self._where = None if where is None else conditions.parse(where)
        self._categories = PathFilter(category_table, category_filter, below_root=True)
        self._paths = PathFilter(connection_table, connection_filter)
        self._types = names.compile_pattern(type_filter)
        self._names = NameFilter(name_filter)

    def run(self, tx: sa.Connection, key: VaultKey) -> list[str]:
        """Return the ids of the connections that match; raise as :meth:`_conditions`."""
        return _ids(tx, connection_table, self._conditions(tx, key))

    def listed(self, tx: sa.Connection, key: VaultKey) -> list[Listed]:
        """Return the matching connections with the parts of their names; raise as :meth:`run`."""
        path, id = connection_table.c.path, connection_table.c.id
        order: sa.ColumnElement[str] = path
        query = _given(self._conditions(tx, key))
        if tx.dialect.name == "postgresql":
            order = path.collate("C")
            query += [] if tx.scalar(_ANY_LONG) else [sa.not_(_LONG)]
        columns = (id, path, connection_table.c.category, connection_table.c.type)
        selected = sa.select(*columns).where(*query).order_by(order, id)
        return [Listed(id, tuple(path.split(SEPARATOR)), *more) for id, path, *more in in_pieces(tx.execute(selected))]

    def _conditions(self, tx: sa.Connection, key: VaultKey) -> list[sa.ColumnElement[bool] | None]:
        """Return the conditions on a row.

        The compared categories are verified here, because using a connection does not read its category. Connections
        are verified when they are read.
        :raises IntegrityError: a matching category was changed outside of connmgr.
        :raises VaultUnavailable: the vault's key was rotated since ``key`` was loaded.
        """
        check_key(tx, key)
        clauses = [self._paths.condition(tx), self._names.condition(tx, key)]
        in_categories = self._categories.condition(tx)
        ids = sa.select(category_table.c.id)
        # A condition that excludes nothing is omitted: testing every connection would cost more than the search.
        if in_categories is not None and tx.scalar(ids.where(sa.not_(in_categories)).limit(1)) is not None:
            categories = category_rows.verify(tx, key, in_categories)
            clauses.append(_among(tx, _scanned(tx, connection_table.c.category), categories))
        if self._types is not None:
            types, matches = _types(tx), names.Matcher(self._types)
            matching = [type for type in types if matches(fold(type))]
            if matching != types:
                clauses.append(_scanned(tx, connection_table.c.type).in_(matching))
        if self._where is not None:
            clauses.append(conditions.sql(self._where, tx, key, partial(_among, tx)))
        return clauses


class PathFilter:
    """A filter over the paths of ``table``."""

    def __init__(self, table: sa.Table, pattern: str, *, below_root: bool = False) -> None:
        self._table = table
        self._alternatives = names.compile_pattern(pattern, below_root=below_root)

    def condition(self, tx: sa.Connection) -> sa.ColumnElement[bool] | None:
        """Return the condition on a row, or None if every row fulfils it."""
        return None if self._alternatives is None else _on_path(tx, self._table, self._alternatives)


class NameFilter:
    """A filter over the names of connections: the path, or category (with or without the root) and path."""

    def __init__(self, pattern: str) -> None:
        self._paths = PathFilter(connection_table, pattern)
        self._within = [(names.beneath_root(category), [path]) for category, path in names.divided(pattern)]

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
        categories: Iterable[names.Alternative],
        paths: Iterable[names.Alternative],
    ) -> sa.ColumnElement[bool]:
        in_categories = _on_path(tx, category_table, categories)
        ids = category_rows.verify(tx, key, in_categories)
        return sa.and_(
            _on_path(tx, connection_table, paths), _among(tx, _scanned(tx, connection_table.c.category), ids)
        )


def _on_path(tx: sa.Connection, table: sa.Table, alternatives: Iterable[names.Alternative]) -> sa.ColumnElement[bool]:
    """Return the condition on a row of ``table``: one of ``alternatives`` matches its path."""
    some = list(alternatives)
    path, depth = table.c.path, table.c.depth
    if tx.dialect.name == "postgresql":
        possible = (alternative for alternative in some if not is_impossible(alternative))
        return sa.or_(sa.false(), *(_liked(path.collate("C"), depth, alternative) for alternative in possible))
    deepest = tx.scalar(sa.select(sa.func.max(depth))) if any(map(is_mixed, some)) else None
    every = chain.from_iterable(globs_of(alternative, deepest or 0) for alternative in some)
    globs = set(islice(every, MAX_GLOBS + 1))
    if len(globs) > MAX_GLOBS:
        return _decided_here(tx, table, some)
    scanned = _scanned(tx, depth)
    return sa.or_(sa.false(), *(_matches(path, scanned, at, pattern) for at, pattern in globs))


def _decided_here(tx: sa.Connection, table: sa.Table, alternatives: list[names.Alternative]) -> sa.ColumnElement[bool]:
    loose = sa.or_(*(table.c.path.op("GLOB")(pattern) for pattern in set(map(loose_glob_of, alternatives))))
    candidates = tx.execute(sa.select(table.c.id, table.c.path).where(loose))
    matches = names.Matcher(alternatives)
    return _among(tx, table.c.id, [id for id, path in in_pieces(candidates) if matches(path)])


def _matches(
    path: sa.ColumnElement[str], depth: sa.ColumnElement[int], at: int | None, pattern: str
) -> sa.ColumnElement[bool]:
    if at is None:
        return path.op("GLOB")(pattern)
    if all(part and not part.strip("*") for part in pattern.split(SEPARATOR)):
        return depth == at
    return sa.and_(depth == at, path.op("GLOB")(pattern))


def _liked(
    path: sa.ColumnElement[str], depth: sa.ColumnElement[int], alternative: names.Alternative
) -> sa.ColumnElement[bool]:
    """Return PostgreSQL's condition by LIKE, which takes a fourth of the time of a regular expression."""
    begins = literal_prefix(alternative)
    if len(begins) == len(alternative):
        return path == begins
    bounds = [path >= begins] if begins else []
    end = first_text_after(begins)
    if end is not None:
        # A range in the index, also for a plan that is made without the text.
        bounds.append(path < end)
    if names.ACROSS not in alternative:
        bounds.append(depth == alternative.count(SEPARATOR) + 1)
    pattern = like_of(alternative)
    if names.ACROSS in alternative or any(part.strip("%") or not part for part in pattern.split(SEPARATOR)):
        bounds.append(path.like(pattern))
    sets = placed_sets(alternative)
    if sets is None or is_mixed(alternative):
        bounds.append(path.regexp_match(regex_of(alternative)))
    else:
        bounds += [_in_set(path, *placed) for placed in sets]
    return sa.and_(*bounds)


def _in_set(path: sa.ColumnElement[str], place: int, characters: names.CharacterSet) -> sa.ColumnElement[bool]:
    """Return the condition that the character at ``place`` is in the set; no separator can be there."""
    start = place if place > 0 else sa.func.char_length(path) + place + 1
    character = sa.func.substr(path, start, 1)
    inside = sa.or_(*(character.between(low, high) for low, high in characters.ranges))
    return sa.not_(inside) if characters.negated else inside


def _scanned(tx: sa.Connection, column: sa.Column[Value]) -> sa.ColumnElement[Value]:
    """Return ``column`` hidden from SQLite's choice of index: the index with all columns of a search is better."""
    if tx.dialect.name == "postgresql":
        return column
    # A term with a unary plus is not used with an index (https://sqlite.org/optoverview.html).
    return sa.UnaryExpression(column, operator=custom_op("+"))


def _among(tx: sa.Connection, column: sa.ColumnElement[str], values: list[str]) -> sa.ColumnElement[bool]:
    """Return the condition that ``column`` is one of ``values``; all values are bound as a single parameter."""
    if tx.dialect.name == "postgresql":
        # Not imported at the top: a daemon with its vault on SQLite does not need it.
        from sqlalchemy.dialects import postgresql

        return column == sa.any_(sa.literal(values, postgresql.ARRAY(sa.Text)))
    # One parameter each, because their number is limited: 65,535 in PostgreSQL's protocol, 32,766 in SQLite 3.32, and
    # 999 before.
    return column.in_(sa.select(sa.func.json_each(json.dumps(values)).table_valued("value").c.value))


def _ids(tx: sa.Connection, table: sa.Table, conditions: Iterable[sa.ColumnElement[bool] | None]) -> list[str]:
    applied = _given(conditions)
    if tx.dialect.name != "postgresql":
        return _split(tx.scalar(_joined(sa.func.group_concat, table, table.c.path, applied)))
    join, path = sa.func.string_agg, table.c.path.collate("C")
    if table is connection_table:
        # Tried first; the same answer says whether that was all, because a round trip costs more than most searches.
        short = _joined(join, table, path, [*applied, sa.not_(_LONG)])
        joined, any_long = tx.execute(short.add_columns(_ANY_LONG.scalar_subquery())).one()
        if not any_long:
            return _split(joined)
    return _split(tx.scalar(_joined(join, table, path, applied)))


def _joined(
    join: Callable[..., sa.ColumnElement[str]],
    table: sa.Table,
    path: sa.ColumnElement[str],
    conditions: Iterable[sa.ColumnElement[bool]],
) -> sa.Select[Any]:
    matching = sa.select(table.c.id).where(*conditions).order_by(path, table.c.id).subquery()
    return sa.select(join(matching.c.id, " "))


def _split(joined: str | None) -> list[str]:
    return joined.split(" ") if joined else []


def _given(conditions: Iterable[sa.ColumnElement[bool] | None]) -> list[sa.ColumnElement[bool]]:
    return [condition for condition in conditions if condition is not None]


def _types(tx: sa.Connection) -> list[str]:
    # Jumps in the index from each type to the next.
    types = sa.select(sa.func.min(connection_table.c.type).label("type")).cte("types", recursive=True)
    following = sa.select(sa.func.min(connection_table.c.type)).where(connection_table.c.type > types.c.type)
    types = types.union_all(sa.select(following.scalar_subquery()).where(types.c.type.is_not(None)))
    return list(tx.scalars(sa.select(types.c.type).where(types.c.type.is_not(None))))


def paths_of(database: Database, kind: str, ids: Iterable[str]) -> dict[str, str]:
    """Return the paths of the existing ones among ``ids``, from the rows, without verification.

    ``kind`` is ``connection`` or ``category``.
    :raises connmgr.errors.VaultUnavailable: the database does not answer.
    """

    def work(tx: sa.Connection) -> dict[str, str]:
        # SQLite keeps values of any type in any column.
        return {id: str(path) for some in chunks(ids) for id, path in tx.execute(_PATHS[kind], {"some": some})}

    return database.read(work)


def globs_of(alternative: Alternative, deepest: int) -> Iterator[tuple[int | None, str]]:
    """Yield patterns of SQLite's GLOB that together match exactly ``alternative``, for paths down to ``deepest``.

    Each comes with the number of segments that a path must have, or None for any number. GLOB's wildcards match
    separators too, but cannot do so in a path with as many separators as the pattern.
    """
    if is_impossible(alternative):
        return
    separators = alternative.count(SEPARATOR)
    across = alternative.count(ACROSS)
    if not across:
        yield separators + 1, loose_glob_of(alternative)
    elif not is_mixed(alternative):
        yield None, loose_glob_of(alternative)
    else:
        for depth in range(separators + 1, deepest + 1):
            for counts in _shared_out(depth - 1 - separators, across):
                yield depth, _glob(alternative, counts)


def is_mixed(alternative: Alternative) -> bool:
    """Whether some of its wildcards cross separators and others do not, which GLOB cannot express."""
    return ACROSS in alternative and any(not isinstance(token, str) and token != ACROSS for token in alternative)


def loose_glob_of(alternative: Alternative) -> str:
    """Return a GLOB that matches everything that ``alternative`` matches, and more if that is :func:`is_mixed`."""
    return _glob(alternative, [0] * len(alternative))


def like_of(alternative: Alternative) -> str:
    """Return a LIKE pattern for ``alternative``; exact if it has no sets and the path not more separators than it."""
    return "".join(map(_like_token, alternative))


def placed_sets(alternative: Alternative) -> list[tuple[int, CharacterSet]] | None:
    """Return the sets of characters, which LIKE cannot express, with their places in a matching path.

    Places count from 1 at the beginning, and from -1 at the end. Return None if a set is between tokens for any number
    of characters, because it then has no fixed place.
    """
    many = [at for at, token in enumerate(alternative) if isinstance(token, Many)]
    first, last = (many[0], many[-1]) if many else (len(alternative), -1)
    sets = [(at, token) for at, token in enumerate(alternative) if isinstance(token, CharacterSet) and token != ANY]
    if any(first < at < last for at, _ in sets):
        return None
    return [(at + 1 if at < first else at - len(alternative), token) for at, token in sets]


def regex_of(alternative: Alternative) -> str:
    """Return the regular expression of PostgreSQL that matches exactly ``alternative``."""
    return f"^{''.join(map(_regex_token, alternative))}$"


def literal_prefix(alternative: Alternative) -> str:
    """Return the characters with which every match of ``alternative`` begins."""
    return "".join(takewhile(lambda token: isinstance(token, str), alternative))  # type: ignore[arg-type]


def first_text_after(prefix: str) -> str | None:
    """Return the first text by code points after all that begin with ``prefix``; None if there is none."""
    text = prefix.rstrip(_LAST)
    if not text:
        return None
    following = chr(ord(text[-1]) + 1)
    # UTF-8 cannot encode a surrogate.
    return text[:-1] + ("\ue000" if following == "\ud800" else following)


def is_impossible(alternative: Alternative) -> bool:
    """Whether it matches nothing."""
    return CharacterSet((), negated=False) in alternative


def _shared_out(count: int, among: int) -> Iterator[list[int]]:
    """Yield every way to split ``count`` into ``among`` numbers."""
    for bars in combinations(range(count + among - 1), among - 1):
        edges = (-1, *bars, count + among - 1)
        yield [end - start - 1 for start, end in pairwise(edges)]


def _glob(alternative: Alternative, separators_across: list[int]) -> str:
    """Return the pattern in which the n-th ``**`` has at least the n-th number of separators."""
    counts = iter(separators_across)
    return "".join(
        "*" + f"{SEPARATOR}*" * next(counts) if token == ACROSS else _glob_token(token) for token in alternative
    )


def _glob_token(token: Token) -> str:
    if isinstance(token, Many):
        return "*"
    if isinstance(token, CharacterSet):
        return _glob_set(token)
    return f"[{token}]" if token in _SPECIAL else token


def _glob_set(characters: CharacterSet) -> str:
    """Return a set of GLOB, each member as a range: a hyphen after a single character would make a range too."""
    if not characters.ranges:
        return "?"
    # "]" is literal only at the beginning, so a range cannot end with it.
    ranges = [part for span in characters.ranges for part in _without(span, "]")]
    closing = "]" if any(low <= "]" <= high for low, high in characters.ranges) else ""
    if not characters.negated and not closing:
        # "^" negates at the beginning.
        ranges = [part for span in ranges for part in _without(span, "^")]
        if any(low <= "^" <= high for low, high in characters.ranges):
            if not ranges:
                return "^"
            ranges.append(("^", "^"))
    members = closing + "".join(f"{low}-{high}" for low, high in ranges)
    return f"[{'^' if characters.negated else ''}{members}]"


def _without(span: Range, character: str) -> Iterator[Range]:
    """Yield the parts of a range without one character."""
    low, high = span
    if not low <= character <= high:
        yield span
        return
    if low < character:
        yield low, chr(ord(character) - 1)
    if character < high:
        yield chr(ord(character) + 1), high


def _like_token(token: Token) -> str:
    if isinstance(token, Many):
        return "%"
    if isinstance(token, CharacterSet):
        return "_"
    return f"\\{token}" if token in _SPECIAL_IN_LIKE else token


def _regex_token(token: Token) -> str:
    if isinstance(token, Many):
        return ".*" if token.across else f"[^{SEPARATOR}]*"
    if isinstance(token, CharacterSet):
        ranges = [part for span in token.ranges for part in _without(span, SEPARATOR)]
        members = "".join(f"{_escaped(low)}-{_escaped(high)}" for low, high in ranges)
        return f"[^{SEPARATOR}{members}]" if token.negated else f"[{members}]"
    return _escaped(token)


def _escaped(character: str) -> str:
    return character if character.isalnum() or not character.isascii() else "\\" + character
