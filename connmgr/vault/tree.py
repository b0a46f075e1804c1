"""Relations in the vault: which connections run over which, and what lies below a path."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any, TypeVar

import sqlalchemy as sa

from connmgr.vault.tables import connection_reference

Value = TypeVar("Value")

_CHUNK_VALUES = 500
"""Values in one ``IN``, far below the limit of either database."""


def chunks(values: Iterable[Value]) -> Iterator[list[Value]]:
    """Yield ``values`` in lists that fit into one statement."""
    rest = iter(values)
    while some := list(islice(rest, _CHUNK_VALUES)):
        yield some


def closure(tx: sa.Connection, ids: Iterable[str], edges: sa.Table, source: str, target: str) -> list[str]:
    """Return ``ids`` and, at any depth, every ``source`` in ``edges`` whose ``target`` is among them, each once."""
    found: dict[str, None] = dict.fromkeys(ids)
    edge: Sequence[str] = list(found)
    statement = _one_step(edges, source, target)
    while edge:
        reached = [id for some in chunks(edge) for id in tx.scalars(statement, {"some": some})]
        edge = [id for id in dict.fromkeys(reached) if id not in found]
        found.update(dict.fromkeys(edge))
    return list(found)


@cache
def _one_step(edges: sa.Table, source: str, target: str) -> sa.Select[Any]:
    # Cached, because building a statement costs more than running it.
    return sa.select(edges.c[source]).where(edges.c[target].in_(sa.bindparam("some", expanding=True)))


def dependents(tx: sa.Connection, ids: Iterable[str]) -> list[str]:
    """Return the connections ``ids`` and all that run over them."""
    return closure(tx, ids, connection_reference, "source", "target")


def carriers(tx: sa.Connection, ids: Iterable[str]) -> list[str]:
    """Return the connections ``ids`` and all that they run over."""
    return closure(tx, ids, connection_reference, "target", "source")
